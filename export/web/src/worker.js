// All computing, off the page's thread. One task at a time: a query goes before the next batch of lines.
import { FolderSource, readBundle, UrlSource } from "./bundle.js";
import { Encoder } from "./encoder.js";
import { Lines } from "./lines.js";

const RESULTS = 12;
const tasks = [];
let encoder;
let bundle;
let lines;
let query; // the latest only: an older one has no reader any more
let asked = { text: null, vector: null };
let running = false;
let reported = 0;

self.onmessage = ({ data }) => {
  if (data.type === "query") query = data;
  else tasks.push(data);
  pump();
};

async function pump() {
  if (running) return;
  running = true;
  for (;;) {
    const task = tasks.shift();
    if (task) await attempt(task.id, () => actions[task.type](task));
    else if (query && encoder && lines) {
      const current = query;
      query = undefined;
      await attempt(current.id, () => answer(current));
    } else if (encoder && lines && !lines.finished) {
      await attempt(undefined, embed);
      await new Promise((resolve) => { setTimeout(resolve); }); // lets a message in
    } else break;
  }
  running = false;
}

async function attempt(id, action) {
  try {
    await action();
  } catch (error) {
    if (id === undefined) lines = undefined; // a batch that fails would fail again
    self.postMessage({ type: "error", id, message: explain(error) });
  }
}

function explain(error) {
  const message = String(error?.message ?? error).split("\n")[0];
  return /memory|allocat/i.test(message) ? `out of memory (${message}); use a smaller text` : message;
}

const actions = {
  async load({ base, files, variant }) {
    encoder = undefined;
    const started = performance.now();
    const source = files ? new FolderSource(files) : new UrlSource(base);
    bundle = await readBundle(source, variant, (loaded, total) => self.postMessage({ type: "loading", loaded, total }));
    self.postMessage({ type: "starting" });
    const created = await Encoder.create(bundle);
    delete bundle.graph; // the runtime has its own copy
    encoder = created;
    self.postMessage({ type: "ready", variant: bundle.name, size: bundle.variant.size, dim: encoder.dim,
      limit: encoder.limit, milliseconds: performance.now() - started, memory: encoder.bytes });
  },

  index({ texts }) {
    lines = new Lines(texts, encoder);
    query = undefined;
    progress();
  },

  async encode({ id, texts }) {
    const vectors = [];
    for (const text of texts) vectors.push(Array.from(await encoder.run([encoder.ids(text)])));
    self.postMessage({ type: "encoded", id, vectors, ids: texts.map((text) => encoder.ids(text)) });
  },

  async check() {
    let worst = 1;
    for (const { text, ids, vector } of bundle.golden) {
      const found = encoder.ids(text);
      if (found.join() !== ids.join()) throw new Error(`other ids than the bundle's for ${JSON.stringify(text.slice(0, 40))}`);
      worst = Math.min(worst, cosine(await encoder.run([found]), vector));
    }
    const floor = bundle.name === "fp32" ? 0.99999 : bundle.variant.cosine_floor;
    self.postMessage({ type: "checked", count: bundle.golden.length, worst, floor });
  },
};

async function embed() {
  await lines.step();
  if (performance.now() - reported > 100 || lines.finished) progress();
}

function progress() {
  reported = performance.now();
  self.postMessage({ type: "progress", done: lines.done, total: lines.texts.length, milliseconds: lines.milliseconds,
    memory: encoder?.bytes ?? 0, vectors: lines.bytes });
}

async function answer({ id, text }) {
  const started = performance.now();
  if (asked.text !== text || asked.encoder !== encoder) {
    asked = { text, encoder, vector: await encoder.run([encoder.ids(text)]) };
    asked.milliseconds = performance.now() - started;
  }
  const embedded = performance.now();
  const results = lines.nearest(asked.vector, RESULTS);
  self.postMessage({ type: "results", id, results, searched: lines.done, embedding: asked.milliseconds,
    searching: performance.now() - embedded });
}

function cosine(a, b) {
  let [dot, first, second] = [0, 0, 0];
  for (let i = 0; i < a.length; i++) {
    dot += a[i] * b[i];
    first += a[i] * a[i];
    second += b[i] * b[i];
  }
  return dot / Math.sqrt(first * second);
}
