// The built page in a real headless Chromium. BUNDLE names a bundle with an INT8 graph; REFERENCE a JSON file of what
// distilface's own runtime finds: {texts, queries, nearest: [[{line, score}]]}. CHROMIUM overrides the browser.
import assert from "node:assert/strict";
import { existsSync, readFileSync, statSync, createReadStream } from "node:fs";
import { createServer } from "node:http";
import { dirname, extname, join, resolve } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const dist = resolve(dirname(fileURLToPath(import.meta.url)), "..", "dist");
const bundle = resolve(process.env.BUNDLE);
const reference = JSON.parse(readFileSync(process.env.REFERENCE, "utf8"));
const golden = JSON.parse(readFileSync(join(bundle, "golden.json"), "utf8")).texts;
const manifest = JSON.parse(readFileSync(join(bundle, "distilface.json"), "utf8"));
const types = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".json": "application/json" };
const patience = { timeout: 60_000 };
const altered = new Map(); // path to the text served instead
let server;
let origin;
let browser;
let page; // with the INT8 graph, shared by the tests in their order
const requests = [];

before(async () => {
  server = createServer((request, response) => {
    const path = decodeURIComponent(new URL(request.url, "http://localhost").pathname);
    if (altered.has(path)) return response.end(altered.get(path));
    const file = path.startsWith("/bundle/") ? join(bundle, path.slice(8)) : join(dist, path === "/" ? "index.html" : path);
    if (!existsSync(file)) return response.writeHead(404).end();
    response.writeHead(200, { "content-type": types[extname(file)] ?? "application/octet-stream",
      "content-length": statSync(file).size });
    return createReadStream(file).pipe(response);
  }).listen(0, "127.0.0.1");
  await new Promise((done) => { server.once("listening", done); });
  origin = `http://127.0.0.1:${server.address().port}`;
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
    args: process.getuid?.() === 0 ? ["--no-sandbox"] : [] });
  page = await open(`${origin}/`);
  await ready(page);
});

after(async () => {
  await browser?.close();
  server?.close();
});

async function open(url) {
  const opened = await browser.newPage();
  opened.on("request", (request) => requests.push(request.url()));
  opened.on("pageerror", (error) => assert.fail(`error on the page: ${error.message}`));
  opened.on("console", (message) => { if (message.type() === "error" && !/404/.test(message.text())) assert.fail(message.text()); });
  await opened.goto(url);
  return opened;
}

const ready = (opened) => opened.waitForSelector("#model[data-state=ready]", patience);
const drop = (opened, name, content) => opened.setInputFiles("#text-input",
  { name, mimeType: "text/plain", buffer: Buffer.from(content) });
const embedded = (opened) => opened.waitForSelector("#text[data-state=ready]", patience);
const told = (opened, text) => opened.locator("#text-status", { hasText: text }).waitFor({ timeout: 300_000 });
const numbered = (count) => Array.from({ length: count }, (_, i) => `${reference.texts[i % reference.texts.length]} ${i}`);
const error = async (opened) => (await opened.waitForSelector("#error:not([hidden])", patience)).textContent();
const search = async (opened, query, count) => {
  const shown = (wanted) => opened.waitForFunction((number) =>
    document.querySelectorAll("#results > li").length === number, wanted, patience);
  await opened.fill("#query", "");
  await shown(0);
  await opened.fill("#query", query);
  await shown(count);
};

test("golden texts give the golden ids and vectors", async () => {
  const { vectors, ids } = await page.evaluate((texts) => globalThis.distilface.encode(texts), golden.map(({ text }) => text));
  const name = ["int8-static", "int8-token", "int8-dynamic"].find((item) => item in manifest.variants);
  assert.match(await page.textContent("#model-status"), new RegExp(`^${name}, `));
  golden.forEach((item, i) => {
    assert.deepEqual(ids[i], item.ids, item.text);
    const [dot, a, b] = [[vectors[i], item.vector], [vectors[i], vectors[i]], [item.vector, item.vector]]
      .map(([x, y]) => x.reduce((sum, value, k) => sum + value * y[k], 0));
    assert.ok(dot / Math.sqrt(a * b) >= manifest.variants[name].cosine_floor, `${item.text}: ${dot / Math.sqrt(a * b)}`);
    assert.ok(Math.abs(Math.sqrt(a) - 1) < 1e-5, item.text);
  });
  await page.getByRole("button", { name: "Check golden vectors" }).click();
  await page.waitForSelector("#stat-check[data-state=good]", patience);
});

test("half an emoji is replaced, not refused", async () => {
  const { vectors } = await page.evaluate(() => globalThis.distilface.encode(["half \ud83d", "half \ufffd"]));
  assert.deepEqual(vectors[0], vectors[1]);
});

test("files without text are refused or said to be empty", async () => {
  await drop(page, "empty.txt", "");
  await told(page, "empty.txt holds no text: nothing to search.");
  assert.equal(await page.textContent("#news"), "empty.txt holds no text.");
  assert.equal(await page.isHidden("#remove"), true);
  assert.equal(await page.isDisabled("#query"), true);
  await drop(page, "blank.txt", "\n  \n\t\r\n");
  await told(page, "blank.txt holds no text");
  await drop(page, "picture.png", Buffer.from([0x89, 0x50, 0x4e, 0x47, 0xff, 0xfe]));
  assert.match(await error(page), /picture\.png is not UTF-8 text/);
  await drop(page, "zeros.bin", Buffer.alloc(10));
  assert.match(await error(page), /zeros\.bin is not a text file/);
});

test("the keyboard alone is enough", async () => {
  await page.getByRole("button", { name: "Use an example" }).press("Enter");
  await embedded(page);
  assert.equal(await page.isHidden("#error"), true);
  await page.keyboard.press("/");
  await page.keyboard.type("Kne");
  await page.keyboard.type("ad the dough for ten minutes, then let it rest under a cloth.");
  await page.waitForFunction(() => document.querySelector("#results .line")?.textContent.startsWith("Knead"), null, patience);
  await page.keyboard.press("ArrowDown");
  await page.keyboard.press("Enter");
  assert.deepEqual(await page.locator(".around .number").allTextContents(), ["8", "9", "10", "11", "12"]);
  await page.keyboard.press("ArrowDown");
  assert.equal(await page.evaluate(() => [...document.querySelectorAll(".result")].indexOf(document.activeElement)), 1);
  await page.keyboard.press("ArrowUp");
  await page.keyboard.press("ArrowUp");
  assert.equal(await page.evaluate(() => document.activeElement.id), "query");
  await page.keyboard.press("Escape");
  assert.equal(await page.inputValue("#query"), "");
  assert.equal(await page.locator("#results > li").count(), 0);
});

test("everything that can be used has a name", async () => {
  for (const [role, name] of [["searchbox", "What are you looking for?"], ["button", "Use an example"],
    ["button", "Check golden vectors"], ["region", "Model"], ["region", "Text"], ["search", "Search"]]) {
    assert.equal(await page.getByRole(role, { name }).count(), 1, `${role} ${name}`);
  }
  assert.equal(await page.getByLabel(/Drop a text file here/).count(), 1);
});

test("10,000 lines: searched while they are embedded, and all of them in the end", async () => {
  const lines = numbered(10_000);
  await page.evaluate(() => {
    globalThis.longest = 0;
    globalThis.found = [];
    let last = performance.now();
    globalThis.clock = setInterval(() => {
      globalThis.longest = Math.max(globalThis.longest, performance.now() - last);
      last = performance.now();
    }, 20);
    new MutationObserver(() => globalThis.found.push(document.getElementById("found").textContent))
      .observe(document.getElementById("found"), { childList: true });
  });
  await drop(page, "long.txt", lines.join("\n"));
  await told(page, "of 10,000 lines embedded");
  for (const text of ["x", "xy", lines[9_000]]) await page.fill("#query", text);
  await page.waitForFunction(() => globalThis.found.some((text) => text.includes("embedded so far")), null, patience);
  await told(page, "long.txt: 10,000 lines, all embedded");
  assert.equal(await page.textContent("#news"), "long.txt: 10,000 lines, all embedded");
  await page.waitForFunction(() => document.getElementById("found").textContent.endsWith("nearest of 10,000 lines"), null, patience);
  assert.equal(await page.locator("#results .line").first().textContent(), lines[9_000]);
  assert.equal(await page.locator("#results .number").first().textContent(), "9,001");
  assert.match(await page.textContent("#stat-memory"), /^\d+ MB: model [\d.]+ MB, vectors [\d.]+ MB$/);
  const longest = await page.evaluate(() => { clearInterval(globalThis.clock); return globalThis.longest; });
  assert.ok(longest < 1000, `the page stood still for ${longest} ms`);
});

test("a book in one line, a text replaced and one removed while they are embedded", async () => {
  await drop(page, "book.txt", `${"a long word ".repeat(100_000)}\n${reference.texts[1]}`);
  await embedded(page);
  await search(page, reference.texts[1], 2);
  const [near, book] = await page.locator("#results .line").allTextContents();
  assert.equal(near, reference.texts[1]);
  assert.match(book, /^a long word .{980,1000} …$/);
  await drop(page, "many.txt", numbered(10_000).join("\n"));
  await told(page, "of 10,000 lines embedded");
  await drop(page, "few.txt", "turn on the light\nplay music");
  await told(page, "few.txt: 2 lines, all embedded");
  await search(page, "play music", 2);
  assert.equal(await page.locator("#results .line").first().textContent(), "play music");
  await drop(page, "many.txt", numbered(10_000).join("\n"));
  await told(page, "of 10,000 lines embedded");
  await page.getByRole("button", { name: "Remove" }).press("Enter");
  await told(page, "No text yet.");
  await page.locator("#stat-memory", { hasText: "vectors 0.0 MB" }).waitFor(patience);
  assert.equal(await page.isDisabled("#query"), true);
  assert.equal(await page.locator("#results > li").count(), 0);
  assert.equal(await page.isHidden("#remove"), true);
});

test("the float graph finds the lines that distilface finds", async () => {
  const float = await open(`${origin}/?variant=fp32`);
  await ready(float);
  await drop(float, "lines.txt", reference.texts.join("\n"));
  await embedded(float);
  for (const [i, query] of reference.queries.entries()) {
    await search(float, query, Math.min(12, reference.texts.length));
    const lines = (await float.locator("#results .number").allTextContents()).map((text) => Number(text) - 1);
    const scores = (await float.locator("#results .score").allTextContents()).map(Number);
    reference.nearest[i].forEach(({ line, score }, k) => {
      assert.equal(lines[k], line, `${query}: place ${k + 1}`);
      assert.ok(Math.abs(scores[k] - score) < 1e-3, `${query}: ${scores[k]} and ${score}`);
    });
  }
  await float.close();
});

test("opened from a disk, it takes the bundle's folder", async () => {
  const local = await open(pathToFileURL(join(dist, "index.html")).href);
  assert.match(await local.textContent("#model-status"), /^Opened from a disk/);
  await local.setInputFiles("#bundle-input", bundle);
  await ready(local);
  await local.getByRole("button", { name: "Use an example" }).click();
  await embedded(local);
  await search(local, "turn off the lights in the hallway, please.", 12);
  assert.match(await local.locator("#results .line").first().textContent(), /^Turn off the lights/);
  await local.close();
});

test("a bundle that is damaged, too new or elsewhere is refused in words", async () => {
  const cases = [
    ["/?variant=fp16x", null, null, /has no variant "fp16x"; it has fp32/],
    ["/?bundle=nowhere", null, null, /distilface\.json is not there \(404\)/],
    ["/", "/bundle/distilface.json", JSON.stringify({ ...manifest, format_version: 99 }), /format version 99/],
    ["/", "/bundle/golden.json", readFileSync(join(bundle, "golden.json"), "utf8").replace("Hello", "Hallo"), /was altered/],
    ["/", "/bundle/tokenizer_config.json", "{}", /has 2 bytes, the manifest says/],
  ];
  for (const [url, path, text, expected] of cases) {
    if (path) altered.set(path, text);
    const opened = await open(origin + url);
    assert.match(await error(opened), expected);
    assert.equal(await opened.isVisible("#bundle-input"), true);
    await opened.close();
    altered.clear();
  }
  const opened = await open(`${origin}/?bundle=https://example.org/`);
  assert.match(await opened.textContent("#model-status"), /lies on another origin/);
  await opened.close();
});

test("nothing was asked of any other origin", () => {
  const foreign = requests.filter((url) => !url.startsWith(`${origin}/`) && !/^(blob|data|file):/.test(url));
  assert.deepEqual(foreign, []);
  assert.ok(requests.some((url) => url.endsWith(".onnx")));
});
