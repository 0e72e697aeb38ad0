// Send a model, follow its job, fetch the result: node optimize.mjs MODEL RESULT (files .json), Node 18 or a browser
import { readFile, writeFile } from "node:fs/promises";

const url = process.env.SUPEROPT_URL ?? "http://127.0.0.1:8000";
const key = process.env.SUPEROPT_KEY ? { Authorization: `Bearer ${process.env.SUPEROPT_KEY}` } : {};
const media = "application/vnd.superopt.graph+json";
const [model, result] = process.argv.slice(2);

async function ask(path, options = {}) {
  const answer = await fetch(url + path, { ...options, headers: { ...key, ...options.headers } });
  if (!answer.ok) throw new Error((await answer.json()).detail); // RFC 9457: type, title, status, detail
  return answer;
}

const sent = await ask("/v1/jobs?time_limit=60", { method: "POST", headers: { "Content-Type": media }, body: await readFile(model) });
let job = await sent.json();
while (!["succeeded", "failed", "cancelled"].includes(job.state)) {
  await new Promise((resolve) => setTimeout(resolve, 500));
  job = await (await ask(job.links.self)).json();
}
if (job.state !== "succeeded") throw new Error(job.problem?.detail ?? job.state);
const graph = await ask(job.links.result, { headers: { Accept: media } });
await writeFile(result, Buffer.from(await graph.arrayBuffer()));
const report = await (await ask(job.links.report)).json();
console.log(`${job.status}: ${report.cost.before_us.toFixed(0)} µs -> ${report.cost.after_us.toFixed(0)} µs, estimated`);
