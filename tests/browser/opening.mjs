// node opening.mjs URL CHROMIUM [NAME…]: seconds, and processor seconds of the browser, until a recorded comparison is drawn.
// Exit code 1 where one takes longer than a second.
import { chromium } from "../../server/web/node_modules/playwright-core/index.mjs";

const [url, program, ...names] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath: program, args: ["--no-sandbox"] });
const cdp = await browser.newBrowserCDPSession();
const spent = async () => (await cdp.send("SystemInfo.getProcessInfo")).processInfo.reduce((sum, p) => sum + p.cpuTime, 0);
const all = names.length ? names : (await (await fetch(`${url}/v1/gallery`)).json()).models.map((m) => m.name);
const rows = [];
for (const name of all) {
  const page = await (await browser.newContext({ viewport: { width: 1600, height: 1000 } })).newPage();
  await page.goto(`${url}/corpus`);
  const [cpu, began] = [await spent(), Date.now()];
  await page.goto(`${url}/corpus/${name}`);
  await page.waitForSelector("#compare[data-drawn]");
  const seconds = (Date.now() - began) / 1000;
  rows.push({ name, seconds, cpu: (await spent()) - cpu });
  await page.context().close();
}
await browser.close();
rows.sort((a, b) => b.seconds - a.seconds);
for (const row of rows) console.log(`${row.name.padEnd(20)} ${row.seconds.toFixed(2)} s, ${row.cpu.toFixed(2)} s of processor time`);
const middle = (key) => rows.map((row) => row[key]).sort((a, b) => a - b)[rows.length >> 1];
const late = rows.filter((row) => row.seconds > 1).length;
console.log(
  `${rows.length - late} of ${rows.length} within a second; median ${middle("seconds").toFixed(2)} s, worst ${rows[0].seconds.toFixed(2)} s; ` +
    `processor median ${middle("cpu").toFixed(2)} s, worst ${Math.max(...rows.map((row) => row.cpu)).toFixed(2)} s`,
);
process.exit(late ? 1 : 0);
