// The measuring page of `--target web`: asks its server for tasks and times them here, inside the browser.
import { Tokenizer } from "@huggingface/tokenizers";
import * as ort from "onnxruntime-web";

let session;
let tokenizer;
let limit;
let pad;

const json = async (path) => (await fetch(path)).json();

function ids(text) {
  const found = Array.from(tokenizer.encode(text).ids); // it leaves the length limit to its caller
  return found.length > limit ? [...found.slice(0, limit - 1), found.at(-1)] : found;
}

async function run(rows) {
  const width = Math.max(...rows.map((row) => row.length));
  const filled = (value) => {
    const data = new BigInt64Array(rows.length * width);
    rows.forEach((row, i) => { for (let j = 0; j < width; j++) data[i * width + j] = BigInt(value(row, j)); });
    return new ort.Tensor("int64", data, [rows.length, width]);
  };
  const values = { input_ids: (row, j) => row[j] ?? pad, attention_mask: (row, j) => (j < row.length ? 1 : 0),
    token_type_ids: () => 0 };
  const feeds = Object.fromEntries(session.inputNames.map((name) => [name, filled(values[name])]));
  return (await session.run(feeds, ["sentence_embedding"])).sentence_embedding;
}

/** As distilface.batching: rows sorted by length, filled to a budget of padded tokens. */
async function encode(texts, budget) {
  const rows = texts.map(ids);
  const order = rows.map((_, i) => i).sort((a, b) => rows[b].length - rows[a].length || a - b);
  let vectors;
  for (let start = 0; start < order.length;) {
    const some = order.slice(start, start + Math.max(1, Math.floor(budget / rows[order[start]].length)));
    const { data, dims } = await run(some.map((i) => rows[i]));
    vectors ??= new Float32Array(rows.length * dims[1]);
    some.forEach((row, i) => vectors.set(data.subarray(i * dims[1], (i + 1) * dims[1]), row * dims[1]));
    start += some.length;
  }
  return vectors;
}

const actions = {
  async load(task) {
    ort.env.wasm.numThreads = task.threads;
    ort.env.wasm.wasmPaths = task.runtime;
    ({ max_seq_length: limit, pad_token_id: pad } = task);
    tokenizer = new Tokenizer(await json("/bundle/tokenizer.json"), await json("/bundle/tokenizer_config.json"));
    const graph = new Uint8Array(await (await fetch(`/bundle/${task.file}`)).arrayBuffer());
    session = await ort.InferenceSession.create(graph, { executionProviders: ["wasm"] });
    return { isolated: globalThis.crossOriginIsolated };
  },
  encode: ({ texts, batch_tokens: budget }) => encode(texts, budget),
  rows: async ({ rows }) => (await run(rows)).data,
  async latency({ texts, samples, turn_seconds: limitSeconds, warmup, fewest }) {
    for (let i = 0; i < warmup; i++) await run([ids(texts[i % texts.length])]);
    const seconds = [];
    const end = performance.now() + 1000 * limitSeconds;
    while (seconds.length < samples && (seconds.length < fewest || performance.now() < end)) {
      const start = performance.now();
      await run([ids(texts[seconds.length % texts.length])]);
      seconds.push((performance.now() - start) / 1000);
    }
    return { seconds };
  },
  async throughput({ texts, batch_tokens: budget }) {
    const start = performance.now();
    await encode(texts, budget);
    return { seconds: (performance.now() - start) / 1000 };
  },
};

for (;;) {
  const task = await json("/task");
  if (!task.op) continue; // nothing to do yet
  let answer;
  try {
    answer = await actions[task.op](task);
  } catch (error) {
    answer = { error: String(error?.message ?? error).split("\n")[0] };
  }
  const body = answer instanceof Float32Array ? answer : JSON.stringify(answer);
  await fetch("/answer", { method: "POST", body, headers: {
    "content-type": answer instanceof Float32Array ? "application/octet-stream" : "application/json" } });
}
