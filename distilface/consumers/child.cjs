// One JavaScript consumer on one graph: node child.cjs probe|NAME REQUEST ANSWER. As child.py, for Node.
"use strict";
const fs = require("node:fs");
const path = require("node:path");
const { createRequire } = require("node:module");

const [, , name, requestFile, answerFile] = process.argv;
const request = JSON.parse(fs.readFileSync(requestFile, "utf8"));
const load = createRequire(path.join(request.modules, "child.cjs")); // the user's packages, not ours
const json = (file) => JSON.parse(fs.readFileSync(path.join(request.folder, file), "utf8"));
const rows = (flat, width) => Array.from({ length: flat.length / width }, (_, i) =>
  Array.from(flat.slice(i * width, (i + 1) * width)));

function encode() {
  const { Tokenizer } = load("@huggingface/tokenizers");
  const tokenizer = new Tokenizer(json("tokenizer.json"), json("tokenizer_config.json"));
  return request.texts.map((text) => {
    const ids = Array.from(tokenizer.encode(text).ids); // it leaves the length limit to its caller
    return ids.length > request.max_seq_length ? [...ids.slice(0, request.max_seq_length - 1), ids.at(-1)] : ids;
  });
}

async function onnx(packageName) {
  const ort = load(packageName);
  if (ort.env.wasm) ort.env.wasm.numThreads = 1;
  const session = await ort.InferenceSession.create(path.join(request.folder, request.file));
  const ids = encode();
  const width = Math.max(...ids.map((row) => row.length));
  const fill = (value) => new ort.Tensor("int64",
    BigInt64Array.from(ids.flatMap((row) => Array.from({ length: width }, (_, i) => BigInt(value(row, i))))),
    [ids.length, width]);
  const values = { input_ids: (row, i) => row[i] ?? request.pad_token_id, attention_mask: (row, i) => (i < row.length ? 1 : 0),
    token_type_ids: () => 0 };
  const feeds = Object.fromEntries(session.inputNames.map((input) => [input, fill(values[input])]));
  const { sentence_embedding: output } = await session.run(feeds, ["sentence_embedding"]);
  return { vectors: rows(output.data, output.dims[1]), ids };
}

function transformers() {
  const library = load("@huggingface/transformers");
  Object.assign(library.env, { allowRemoteModels: false, allowLocalModels: true, useFSCache: false,
    localModelPath: path.dirname(request.folder) });
  const dtypes = { model: "fp32", model_fp16: "fp16", model_int8: "int8", model_uint8: "uint8", model_quantized: "q8",
    model_q4: "q4" };
  const stem = path.basename(request.file, ".onnx");
  const file = dtypes[stem] ? { dtype: dtypes[stem] } : { dtype: "fp32", model_file_name: stem };
  return { library, model: path.basename(request.folder), options: { ...file, device: "cpu" } };
}

async function tokenized(tokenizer) {
  return tokenizer(request.texts, { padding: true, truncation: true });
}

function idsOf(batch) {
  const width = batch.input_ids.dims[1];
  const mask = rows(batch.attention_mask.data, width);
  return rows(batch.input_ids.data, width).map((row, i) => row.filter((_, j) => mask[i][j] === 1n).map(Number));
}

const consumers = {
  probe: () => ({ versions: Object.fromEntries(request.distributions.map((item) => {
    try {
      let folder = path.dirname(load.resolve(item));
      while (!fs.existsSync(path.join(folder, "package.json"))
        || JSON.parse(fs.readFileSync(path.join(folder, "package.json"), "utf8")).name !== item) {
        folder = path.dirname(folder);
      }
      return [item, JSON.parse(fs.readFileSync(path.join(folder, "package.json"), "utf8")).version];
    } catch {
      return [item, null];
    }
  })) }),
  onnxruntime_node: () => onnx("onnxruntime-node"),
  onnxruntime_web: () => onnx("onnxruntime-web"),
  transformers_js_first_output: async () => {
    const { library, model, options } = transformers();
    const extract = await library.pipeline("feature-extraction", model, options);
    const output = await extract(request.texts, { pooling: request.pooling, normalize: true });
    return { vectors: output.tolist(), ids: idsOf(await tokenized(extract.tokenizer)) };
  },
  transformers_js_sentence_embedding: async () => {
    const { library, model, options } = transformers();
    const network = await library.AutoModel.from_pretrained(model, options);
    const batch = await tokenized(await library.AutoTokenizer.from_pretrained(model));
    const { sentence_embedding: output } = await network(batch);
    return { vectors: output.tolist(), ids: idsOf(batch) };
  },
};

Promise.resolve(consumers[name]()).then(
  (answer) => { fs.writeFileSync(answerFile, JSON.stringify(answer)); process.exit(0); },
  (error) => { console.error(String(error?.message ?? error)); process.exit(1); },
);
