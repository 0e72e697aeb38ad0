// Lays out what the gallery shows: ../static/app/place-NAME.json for each ../gallery/results/NAME.json.gz.
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { gunzipSync } from "node:zlib";

import { kept } from "./node_modules/.record/places.js";

const results = new URL("../gallery/results/", import.meta.url);
for (const file of existsSync(results) ? readdirSync(results) : []) {
  if (!file.endsWith(".json.gz")) continue;
  const data = JSON.parse(gunzipSync(readFileSync(new URL(file, results))).toString());
  const found = await kept(data.comparison);
  const name = file.slice(0, -".json.gz".length);
  if (found) writeFileSync(new URL(`../static/app/place-${name}.json`, import.meta.url), JSON.stringify(found));
}
