/**
 * The pages, driven in Chromium: `node browse.mjs FACTS.json` reads names of scenarios, one a line (test_pages.py starts
 * the service and says in FACTS where it is). A scenario answers with a line of JSON: an error that says what it saw, or
 * an empty text. One browser serves all of them, each in contexts of its own. Screenshots are kept.
 */
import assert from "node:assert/strict";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [factsFile] = process.argv.slice(2);
const facts = JSON.parse(readFileSync(factsFile, "utf8"));
const require = createRequire(`${facts.web}/package.json`);
const { chromium } = require("playwright-core");
const axeSource = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

const FLAGS = [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
];
const WAIT = 60_000; // for machines that are busy with other things
mkdirSync(facts.screenshots, { recursive: true });

const browser = await chromium.launch({ executablePath: facts.chromium, args: FLAGS });
let complaints = [];

/** A page of its own; whatever its console or the browser complains about fails the scenario. */
async function open(path, { width = 1600, scheme = "light", ...options } = {}) {
  const context = await browser.newContext({ viewport: { width, height: 1000 }, colorScheme: scheme, baseURL: facts.base, ...options });
  context.setDefaultTimeout(WAIT);
  const page = await context.newPage();
  page.on("console", (message) => {
    if (message.type() === "error" && !/status of 4\d\d/.test(message.text())) complaints.push(message.text());
  });
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("dialog", (dialog) => {
    complaints.push(`a dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  await page.goto(path);
  return page;
}

async function keep(page, name, fullPage = true) {
  await page.screenshot({ path: `${facts.screenshots}/${name}.png`, fullPage });
}

async function drawn(page) {
  await page.waitForSelector("[data-drawn]");
}

const views = (page) => page.$$eval(".pane svg", (all) => all.map((svg) => svg.getAttribute("viewBox")));
const pagesOf = (jobs) => ({ optimize: "/", rules: "/rules?operator=Conv", rule: `/rules/${facts.rule}?seed=3`, corpus: "/corpus", model: "/corpus/lstm", pair: `/compare?a=lstm&b=${jobs.repvgg}/result`, api: "/api", algorithm: "/algorithms/conv:4:3", playground: "/playground", job: `/jobs/${jobs.repvgg}` });

const scenarios = {
  /** A file is chosen, its job followed, its result read and downloaded. */
  async upload() {
    const page = await open("/");
    await page.waitForLoadState("networkidle"); // its scripts are loaded
    await page.setInputFiles("#graph", { name: "mine.json", mimeType: "application/json", buffer: Buffer.from(readFileSync(facts.model)) });
    assert.match(await page.textContent("#chosen"), /mine\.json, \d/);
    await page.fill("input[name=time_limit]", "300");
    await page.click("button.primary");
    await page.waitForURL(/\/jobs\//);
    await page.waitForSelector(".headline");
    assert.equal(await page.textContent("h1"), "mine.json");
    await drawn(page);
    assert.match(await page.textContent("a.primary"), /Download ONNX/);
    assert.equal(await page.locator(".primary").count(), 1, "one primary button");
    const fold = await page.evaluate(() => ["a.primary", ".headline", ".answers dd:last-of-type"].map((q) => document.querySelector(q).getBoundingClientRect().bottom));
    assert.ok(fold.every((bottom) => bottom < 1000), `above the fold: ${fold.join(", ")}`);
    for (const label of ["Download ONNX", "Download JSON", "Download report"]) {
      const link = await page.getAttribute(`text=${label}`, "href");
      const answer = await page.request.get(link);
      assert.equal(answer.status(), 200, label);
    }
    assert.ok((await page.locator(".bars .name").count()) > 0, "cost bars");
    assert.ok((await page.locator("svg.plot .point").count()) > 0, "the roofline plot");
    await keep(page, "upload");
  },

  /** A file is dropped onto the page. */
  async drop() {
    const page = await open("/");
    await page.waitForLoadState("networkidle"); // its scripts are loaded
    const data = await page.evaluateHandle((text) => {
      const transfer = new DataTransfer();
      transfer.items.add(new File([text], "dropped.json"));
      return transfer;
    }, readFileSync(facts.model, "utf8"));
    await page.dispatchEvent("#drop", "drop", { dataTransfer: data });
    assert.match(await page.textContent("#chosen"), /dropped\.json/);
    assert.equal(await page.$eval("#graph", (input) => input.files[0].name), "dropped.json");
    const several = (names) => page.evaluateHandle((all) => {
      const transfer = new DataTransfer();
      for (const name of all) transfer.items.add(new File(["{}"], name));
      return transfer;
    }, names);
    await page.dispatchEvent("#drop", "drop", { dataTransfer: await several(["a.onnx", "b.onnx"]) });
    assert.match(await page.textContent("#problem"), /One model at a time.*a\.onnx, b\.onnx/s);
    assert.equal(await page.$eval("#graph", (input) => input.files[0].name), "dropped.json");
    await page.dispatchEvent("#drop", "drop", { dataTransfer: await several(["m.json", "m.safetensors"]) });
    assert.ok(await page.isHidden("#problem"));
    assert.match(await page.textContent("#chosen"), /m\.json/);
    assert.equal(await page.$eval("input[name=weights]", (input) => input.files[0].name), "m.safetensors");
  },

  /** What is wrong is said where it happened, and nothing that was filled in is lost. */
  async problems() {
    const page = await open("/");
    await page.fill("input[name=disable]", "no-such-rule");
    await page.selectOption("#example", { index: 1 });
    await page.click("button.primary");
    await page.waitForSelector("#problem:not([hidden])");
    assert.match(await page.textContent("#problem"), /A parameter is wrong.*no-such-rule/s);
    assert.equal(await page.inputValue("input[name=disable]"), "no-such-rule");
    await keep(page, "problem");
    await page.fill("input[name=disable]", "");
    await page.setInputFiles("#graph", { name: "none.onnx", mimeType: "application/octet-stream", buffer: Buffer.alloc(0) });
    await page.click("button.primary");
    await page.waitForSelector("#problem:not([hidden])");
    assert.match(await page.textContent("#problem"), /the model is empty/);
    await page.setInputFiles("#graph", { name: "bad.onnx", mimeType: "application/octet-stream", buffer: Buffer.from("garbage") });
    await page.click("button.primary");
    await page.waitForURL(/\/jobs\//);
    await page.waitForSelector("main .problem");
    assert.match(await page.textContent("main .problem"), /The model is not valid/);
    await keep(page, "problem-job");
  },

  /** A model is looked at and saved as SVG before it is optimized; the form stays filled in. */
  async look() {
    const page = await open("/");
    await page.setInputFiles("#graph", { name: "mine.json", mimeType: "application/json", buffer: Buffer.from(readFileSync(facts.model)) });
    await page.click("#look");
    await drawn(page);
    assert.equal(await page.textContent("#looked h2"), "mine.json");
    assert.equal(await page.$eval("#graph", (input) => input.files[0].name), "mine.json");
    assert.ok(await page.isHidden("[data-side=before]"));
    const [download] = await Promise.all([page.waitForEvent("download"), page.click("text=Save as SVG")]);
    assert.equal(download.suggestedFilename(), "mine.json.svg");
    const file = readFileSync(await download.path(), "utf8");
    const inside = await page.evaluate((text) => {
      const parsed = new DOMParser().parseFromString(text, "image/svg+xml");
      return { error: parsed.querySelector("parsererror") !== null, boxes: parsed.querySelectorAll("g > rect").length, styled: /class=|style=/.test(text) };
    }, file);
    assert.deepEqual({ ...inside, boxes: inside.boxes > 10 }, { error: false, boxes: true, styled: false });
    await keep(page, "look");
    await page.setInputFiles("#graph", { name: "bad.onnx", mimeType: "application/octet-stream", buffer: Buffer.from("garbage") });
    await page.click("#look");
    await page.waitForSelector("#problem:not([hidden])");
    assert.match(await page.textContent("#problem"), /The model is not valid/);
  },

  /** Jobs are listed where they were opened, without an account, and the list can be cleared. */
  async seen() {
    const page = await open("/");
    assert.ok(await page.isHidden("#seen"));
    await page.goto(`/jobs/${facts.jobs.hostile}`);
    await drawn(page);
    await page.goto("/");
    await page.waitForSelector("#seen:not([hidden])");
    assert.match(await page.textContent("#seen a"), /<img/);
    assert.equal(await page.locator("#seen img").count(), 0);
    await page.click("#seen a");
    await page.waitForURL(/\/jobs\//);
    await page.goto("/");
    await page.click("text=Clear this list");
    assert.ok(await page.isHidden("#seen"));
    await page.evaluate(() => localStorage.setItem("superopt.jobs", '[{"id": "x"}, 3, null]')); // another's, or damaged
    await page.reload();
    assert.ok(await page.isHidden("#seen"));
  },

  /** Names of operators are completed by keyboard; examples fill the form. */
  async playground() {
    const page = await open("/playground");
    await page.click("text=false: Relu and Neg");
    await page.waitForURL(/lhs=/);
    assert.equal(await page.inputValue("textarea[name=lhs]"), "Relu(Neg(x))");
    await page.fill("textarea[name=lhs]", "");
    await page.type("textarea[name=lhs]", "batchn");
    await page.waitForSelector("#complete-lhs:not([hidden])");
    await page.keyboard.press("ArrowDown");
    assert.equal(await page.getAttribute("textarea[name=lhs]", "aria-activedescendant"), "complete-lhs-0");
    await keep(page, "completion");
    await page.keyboard.press("Enter");
    assert.equal(await page.inputValue("textarea[name=lhs]"), "BatchNormalization(");
    assert.ok(await page.isHidden("#complete-lhs"));
    await page.fill("textarea[name=lhs]", "x + x");
    await page.click("button.primary");
    assert.match(await page.textContent(".problem"), /write Add\(x, x\)/);
  },

  /** An operation of the API is tried from its page. */
  async api() {
    const page = await open("/api");
    await page.click("#get_rules summary");
    await page.fill("#get_rules input[name=q]", "winograd");
    assert.match(await page.textContent("#get_rules .tryout pre"), /curl -X GET .*q=winograd/);
    await page.click("#get_rules button.primary");
    await page.waitForSelector("#get_rules strong.good");
    assert.match(await page.textContent("#get_rules .outcome"), /200.*Winograd F\(2, 3\)/s);
    await page.click("#post_judge summary >> nth=0");
    await page.click("#post_judge button.primary");
    await page.waitForSelector("#post_judge strong.good");
    assert.match(await page.textContent("#post_judge .outcome"), /proved_all_sizes/);
    await page.click("#get_rule summary >> nth=0");
    await page.fill("#get_rule input[name=rule_id]", "nope");
    await page.click("#get_rule button.primary");
    await page.waitForSelector("#get_rule strong.worse");
    assert.match(await page.textContent("#get_rule .outcome"), /404.*not-found/s);
    await keep(page, "tryout", false);
  },

  /** A long job is cancelled by its button. */
  async cancel() {
    const page = await open(`/jobs/${facts.jobs.long}`);
    await page.waitForSelector("#progress");
    assert.ok(await page.locator("progress").count());
    const seconds = async () => Number.parseInt(await page.textContent("#elapsed"), 10);
    const first = await seconds();
    await page.waitForFunction((n) => Number.parseInt(document.querySelector("#elapsed").textContent, 10) > n, first);
    assert.match(await page.textContent("#expects"), /The search takes at most 300\s?s|before it|as soon as/);
    assert.doesNotMatch(await page.textContent("#say"), /shortening|closing|phase/);
    await keep(page, "progress");
    await page.click("text=Cancel");
    await page.waitForSelector("text=The job was cancelled");
  },

  /** Both panes show one layout, move as one, and tell what changed, by mouse and by keyboard. */
  async compare() {
    const page = await open(`/jobs/${facts.jobs.repvgg}`);
    await drawn(page);
    assert.equal(await page.locator("svg.plot .point").count(), 2, "before and after in the roofline plot");
    const places = (side) => page.$$eval(`[data-side=${side}] [data-box]`, (all) =>
      Object.fromEntries(all.filter((n) => !n.matches(".before, .after")).map((n) => [n.dataset.box, ["x", "y"].map((k) => n.querySelector("rect").getAttribute(k)).join()])));
    assert.deepEqual(await places("before"), await places("after"));
    assert.ok((await page.locator("[data-side=before] .node.before").count()) > 0);
    assert.ok((await page.locator("[data-side=after] .node.after").count()) > 0);
    assert.equal(await page.locator("[data-side=before] .node.after, [data-side=after] .node.before").count(), 0);
    const ends = await page.$$eval(".pane .edge", (all) => all.filter((e) => !e.getAttribute("d")).length);
    assert.equal(ends, 0, "edges without a path");
    const first = await views(page);
    assert.equal(first[0], first[1]);
    await page.focus("[data-side=after] svg");
    const said = await page.textContent(".detail");
    for (const key of ["n", "ArrowDown", "+"]) {
      const before = await views(page);
      await page.keyboard.press(key);
      const after = await views(page);
      assert.equal(after[0], after[1], `in step after ${key}`);
      assert.notEqual(after[0], before[0], `${key} moves`);
    }
    assert.notEqual(await page.textContent(".detail"), said);
    await page.keyboard.press("Enter");
    assert.equal(await page.locator("[data-side=after] .node.chosen").count(), 1);
    await page.keyboard.press("0");
    await keep(page, "compare-all", false);
    await page.keyboard.press("p");
    const box = await page.locator("[data-side=before] .node.before").first();
    await page.click("text=Change ›");
    await box.dispatchEvent("click");
    assert.match(await page.textContent(".detail"), /only before/);
    await page.click("[data-show=before]");
    assert.ok(await page.isHidden("[data-side=after]"));
    await page.click("summary:has-text('changes in words')");
    assert.ok((await page.locator(".regions li a.chip").count()) > 0, "rules are linked");
    await page.click("text=Fold repeated parts");
    await page.waitForSelector(".node.fold");
    await keep(page, "compare-folded", false);
  },

  /** A thousand nodes: how long until they can be moved; the repeated ones are folded and can be unfolded. */
  async thousand() {
    const page = await open("about:blank");
    const began = Date.now();
    await page.goto(`/jobs/${facts.jobs.thousand}`);
    await drawn(page);
    const seconds = (Date.now() - began) / 1000;
    const boxes = Number(await page.getAttribute("[data-drawn]", "data-drawn"));
    writeFileSync(`${facts.screenshots}/thousand.json`, JSON.stringify({ seconds, boxes, load: facts.load }));
    assert.ok(boxes <= 900, `${boxes} boxes are drawn`);
    const count = await page.locator("[data-side=before] .node").count();
    await page.locator("[data-side=before] .node.fold").first().dispatchEvent("click");
    await page.waitForFunction((n) => document.querySelectorAll("[data-side=before] .node").length > n, count);
    await page.focus("[data-side=before] svg");
    const before = await views(page);
    await page.keyboard.press("ArrowDown");
    assert.notEqual((await views(page))[0], before[0]);
    await keep(page, "thousand", false);
  },

  /** Rules are filtered without leaving the page, opened, tried, and their certificate fetched. */
  async rules() {
    const page = await open("/rules");
    const all = await page.textContent("#found [role=status]");
    await keep(page, "rules-all", false);
    const named = () => page.$$eval(".rules code", (all) => all.map((id) => id.textContent));
    const first = await named();
    await page.click(".pages a[rel=next]");
    await page.waitForURL(/page=2/);
    assert.equal((await named()).filter((id) => first.includes(id)).length, 0, "the next page has other rules");
    await page.click(".pages [aria-label='Page 1']");
    await page.waitForURL(/rules$/);
    await page.selectOption("select[name=sort]", "used");
    await page.waitForFunction((id) => document.querySelector(".rules code").textContent === id, facts.rule);
    await page.selectOption("select[name=sort]", "");
    await page.waitForFunction((id) => document.querySelector(".rules code").textContent === id, first[0]);
    const [, family, count] = /^(.*?) ([\d,]+)$/.exec((await page.textContent(".families a:nth-child(2)")).trim());
    await page.click(".families a:nth-child(2)");
    await page.waitForURL(new RegExp(`family=${family}`));
    assert.match(await page.textContent("#found [role=status]"), new RegExp(`^${count} rules`));
    await page.click(".families a:nth-child(1)");
    await page.waitForURL(/rules$/);
    await page.selectOption("select[name=operator]", "BatchNormalization");
    await page.waitForFunction((text) => document.querySelector("#found [role=status]").textContent !== text, all);
    assert.match(page.url(), /operator=BatchNormalization/);
    assert.ok((await page.locator("select[name=family] option").count()) < (await page.locator("select[name=operator] option").count()));
    await page.fill("input[name=q]", facts.rule);
    await page.waitForURL(new RegExp(`q=${facts.rule}`));
    await page.click(`h2 a[href='/rules/${facts.rule}']`);
    await page.waitForURL(new RegExp(`/rules/${facts.rule}`));
    assert.equal(await page.locator(".sides svg.graph").count(), 2);
    assert.match(await page.textContent("main"), /proved for all sizes/);
    await page.fill("input[name=seed]", "42");
    await page.click("text=Evaluate both sides");
    await page.waitForSelector("#tried strong.good");
    assert.equal(await page.inputValue("input[name=seed]"), "43");
    const place = await page.getAttribute("a[download]", "href");
    const certificate = await (await page.request.get(place, { timeout: WAIT })).json();
    assert.equal(certificate.id, facts.rule);
    assert.match(await page.textContent("main"), /profile:recorded.*repvgg_a0/s);
    await keep(page, "rule");
  },

  /** All of the library can be read, filtered and tried, and a model sent, without JavaScript. */
  async plain() {
    const page = await open("/rules?operator=Conv", { javaScriptEnabled: false });
    await page.fill("input[name=q]", facts.rule);
    await page.click("text=Filter");
    await page.click(`h2 a[href='/rules/${facts.rule}']`);
    assert.match(await page.textContent("main"), /equals/);
    await page.click("text=Evaluate both sides");
    assert.match(await page.textContent("#tried"), /Both sides agree/);
    await keep(page, "rule-plain");
    await page.goto("/");
    await page.selectOption("#example", "repvgg_a0");
    await page.click("button.primary");
    await page.waitForURL(/\/jobs\//);
    for (let tries = 0; tries < 60 && (await page.locator(".headline").count()) === 0; tries += 1) {
      await page.waitForTimeout(1000);
      await page.reload();
    }
    assert.match(await page.textContent("main"), /Rules applied/);
  },

  /** The corpus is sorted, and leads to its models' optimization and to the rules. */
  async corpus() {
    const page = await open("/corpus");
    const names = () => page.$$eval("#models tbody tr", (rows) => rows.map((row) => row.id));
    const first = await names();
    await page.click("th button:text-is('parameters')");
    const sorted = await names();
    assert.notDeepEqual(sorted, first);
    assert.equal(await page.getAttribute("th:has-text('parameters')", "aria-sort"), "ascending");
    assert.match(await page.textContent("#repvgg_a0"), /0\.500/);
    await keep(page, "corpus", false);
    await page.click("#repvgg_a0 a");
    await page.waitForURL(/example=repvgg_a0/);
    assert.equal(await page.inputValue("#example"), "repvgg_a0");
  },

  /** What is recorded opens without a job: hot nodes, found nodes, another model beside it; a job is kept under a link. */
  async gallery() {
    const page = await open("/corpus");
    const began = Date.now();
    await page.click("#lstm a");
    await page.waitForURL(/\/corpus\/lstm/);
    await drawn(page);
    if (facts.load < 1) assert.ok(Date.now() - began < 1000, `${Date.now() - began} ms`);
    await page.click("text=Colour by time");
    assert.ok((await page.locator(".heated [data-heat]:not([data-heat='0'])").count()) > 0, "something is hot");
    assert.match(await page.textContent(".detail"), /Most time before: .*\u00a0(µs|ms)/);
    await page.fill(".bar input[type=search]", "sigmoid");
    await page.keyboard.press("Enter");
    assert.match(await page.textContent(".say"), /^1 of \d+ found/);
    assert.match(await page.textContent(".detail"), /Sigmoid.*estimated time/s);
    assert.equal(await page.locator(".node.chosen").count() > 0, true);
    await page.fill(".bar input[type=search]", "no such thing");
    await page.keyboard.press("Enter");
    assert.equal(await page.textContent(".say"), "none found");
    assert.ok((await page.locator("svg.timeline rect").count()) > 10, "the timeline");
    await keep(page, "gallery");
    await page.goto(`/jobs/${facts.jobs.repvgg}`); // from now on a job of this browser
    await page.waitForFunction(() => localStorage.getItem("superopt.jobs"));
    await page.goto("/corpus/lstm");
    await page.click("text=Compare with another");
    assert.equal(await page.inputValue("select[name=a]"), "lstm");
    await page.selectOption("select[name=b]", `${facts.jobs.repvgg}/result`);
    await page.click("button:text-is('Compare')");
    await drawn(page);
    await keep(page, "pair");
    await page.goto(`/jobs/${facts.jobs.thousand}`);
    await page.click("text=Keep under a short link");
    const link = await page.inputValue("#short");
    assert.ok(link.startsWith(facts.base), link);
    await page.click("#link button:text-is('Copy')");
    await page.waitForFunction(() => /Copied|Selected/.test(document.querySelector("#link [role=status]").textContent));
    await page.goto(link);
    assert.match(page.url(), new RegExp(facts.jobs.thousand));
  },

  /** Names are names: whatever a model is called, nothing of it becomes markup or script. */
  async hostile() {
    const page = await open(`/jobs/${facts.jobs.hostile}`);
    await drawn(page);
    await page.focus("[data-side=before] svg");
    await page.keyboard.press("Enter");
    await page.click("summary:has-text('changes in words')");
    assert.match(await page.textContent("main"), /<img/);
    assert.equal(await page.locator("main img, main script").count(), 0);
  },

  /** From the top of the page to a started job with the keyboard alone. */
  async keyboard() {
    const page = await open("/");
    const where = () => page.evaluate(() => document.activeElement?.id || document.activeElement?.textContent?.trim() || "");
    await page.keyboard.press("Tab");
    assert.equal(await where(), "To the content");
    await page.keyboard.press("Enter");
    const seen = [];
    for (let i = 0; i < 14 && seen.at(-1) !== "Optimize"; i += 1) {
      await page.keyboard.press("Tab");
      seen.push(await where());
      if (seen.at(-1) === "example") await page.keyboard.type("repvgg");
    }
    assert.ok(seen.includes("graph") && seen.includes("example"), seen.join(", "));
    assert.equal(await page.inputValue("#example"), "repvgg_a0");
    await page.keyboard.press("Enter");
    await page.waitForURL(/\/jobs\//);
  },

  /** Nothing is wider than the screen, no short word of a table breaks, and axe finds nothing serious, at either width and scheme. */
  async accessible() {
    const found = [];
    const axe = (page, options) => page.evaluate(async (given) => (await window.axe.run(document, given)).violations, { resultTypes: ["violations"], ...options });
    const page = await open("/", { reducedMotion: "reduce" }); // colours change at once
    for (const width of [1600, 390]) {
      await page.setViewportSize({ width, height: 1000 });
      for (const [name, path] of Object.entries(pagesOf(facts.jobs))) {
        await page.goto(path);
        if (["job", "model", "pair"].includes(name)) await drawn(page);
        await page.evaluate(axeSource); // by the debugger's way, which the pages' policy does not concern
        for (const scheme of width > 1000 ? ["light", "dark"] : ["light"]) {
          await page.emulateMedia({ colorScheme: scheme });
          const over = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
          if (over > 0) found.push(`${name} at ${width} is ${over} pixels too wide`);
          const broken = await page.$$eval("td", (cells) => cells.filter((cell) => {
            const text = document.createRange();
            text.selectNodeContents(cell);
            return /^\w{1,12}$/.test(cell.textContent.trim()) && text.getBoundingClientRect().height > 2 * parseFloat(getComputedStyle(cell).fontSize);
          }).map((cell) => cell.textContent.trim()));
          if (broken.length > 0) found.push(`${name} at ${width} breaks words of tables: ${broken.join(", ")}`);
          const issues = await axe(page, scheme === "light" ? {} : { runOnly: ["color-contrast"] }); // a scheme is colours, nothing else
          for (const issue of issues) {
            if (!["serious", "critical"].includes(issue.impact)) continue;
            found.push(`${name} ${width} ${scheme}: ${issue.id} (${issue.impact}) at ${issue.nodes.slice(0, 3).map((n) => n.target).join(" | ")}`);
          }
          await keep(page, `${name}-${width}-${scheme}`, !["rules", "corpus", "api"].includes(name));
        }
      }
    }
    assert.deepEqual(found, []);
  },
};

for await (const scenario of createInterface({ input: process.stdin })) {
  let error = "";
  complaints = [];
  try {
    await scenarios[scenario]();
    assert.deepEqual(complaints, [], "complaints of the browser");
  } catch (thrown) {
    error = String(thrown?.stack ?? thrown);
  }
  await Promise.all(browser.contexts().map((context) => context.close()));
  process.stdout.write(`${JSON.stringify(error)}\n`);
}
await browser.close();
