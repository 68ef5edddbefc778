// One run of the built page in a headless Chromium, from a folder with playwright-core:
// node browser_app.mjs URL LINES QUERIES.json PICTURE.png, with the figures as JSON on standard output.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const { chromium } = createRequire(join(process.cwd(), "package.json"))("playwright-core");
const [, , url, lines, queriesFile, picture] = process.argv;
const patience = { timeout: 3_600_000 };
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, ...patience,
  args: process.getuid?.() === 0 ? ["--no-sandbox"] : [] });
const devtools = await browser.newBrowserCDPSession();
const page = await browser.newPage({ viewport: { width: 1000, height: 900 } });
page.setDefaultTimeout(patience.timeout);
const requests = [];
page.on("request", (request) => requests.push(request.url()));

/** Of the page's own process: seconds of CPU so far, and the most memory it ever held. */
async function renderer() {
  const { processInfo } = await devtools.send("SystemInfo.getProcessInfo");
  const [ours] = processInfo.filter(({ type }) => type === "renderer").sort((a, b) => b.cpuTime - a.cpuTime);
  const [, kilobytes] = /VmHWM:\s+(\d+)/.exec(readFileSync(`/proc/${ours.id}/status`, "utf8"));
  return { seconds: ours.cpuTime, megabytes: Number(kilobytes) / 1024 };
}

const seconds = async (action) => {
  const started = performance.now();
  await action();
  return (performance.now() - started) / 1000;
};

const load = await seconds(async () => {
  await page.goto(url);
  await page.waitForSelector("#model[data-state=ready]", patience);
});
const loaded = await renderer();
await page.evaluate(() => {
  globalThis.longest = 0;
  let last = performance.now();
  setInterval(() => {
    globalThis.longest = Math.max(globalThis.longest, performance.now() - last);
    last = performance.now();
  }, 20);
});
const index = await seconds(async () => {
  await page.setInputFiles("#text-input", lines);
  await page.locator("#text-status", { hasText: "all embedded" }).waitFor(patience);
});
const indexed = await renderer();

/** From the key to the shown answer, the wait for a further key (120 ms) in it. */
const ask = (query) => page.evaluate((text) => new Promise((done) => {
  const started = performance.now();
  const shown = document.getElementById("stat-query");
  const watch = new MutationObserver(() => {
    watch.disconnect();
    const [embed, search] = shown.textContent.match(/embed ([\d.]+), search ([\d.]+)/).slice(1).map(Number);
    const numbers = [...document.querySelectorAll("#results .number")].map((item) => Number(item.textContent.replaceAll(",", "")));
    done({ embed, search, shown: performance.now() - started, numbers });
  });
  watch.observe(shown, { childList: true });
  const input = document.getElementById("query");
  input.value = text;
  input.dispatchEvent(new Event("input"));
}), query);

const answers = [];
for (const query of JSON.parse(readFileSync(queriesFile, "utf8"))) answers.push(await ask(query));
const answered = await renderer();
await page.click("#check");
const golden = page.locator("#stat-check[data-state]");
await golden.waitFor(patience);
await page.screenshot({ path: picture });
console.log(JSON.stringify({
  chromium: browser.version(), load_seconds: load, load_cpu_seconds: loaded.seconds, index_seconds: index,
  index_cpu_seconds: indexed.seconds - loaded.seconds, answer_cpu_seconds: answered.seconds - indexed.seconds, stall_milliseconds: await page.evaluate(() => globalThis.longest),
  shown_memory: await page.textContent("#stat-memory"), process_megabytes: (await renderer()).megabytes,
  golden: await golden.textContent(), answers, requests,
}));
await browser.close();
