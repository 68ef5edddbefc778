// Search the lines of a file by meaning: node search.mjs BUNDLE FILE "a query" [VARIANT]
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { Tokenizer } from "@huggingface/tokenizers";
import ort from "onnxruntime-node";

/** An encoder of one variant of a bundle: texts in, unit vectors (Float32Array) out. */
export async function load(bundle, variant) {
  const json = (name) => JSON.parse(readFileSync(join(bundle, name), "utf8"));
  const { variants, max_seq_length: limit, dim } = json("distilface.json");
  const name = variant ?? ["int8-static", "int8-dynamic"].find((item) => item in variants) ?? "fp32";
  if (!(name in variants)) throw new Error(`no variant ${name}; the bundle has ${Object.keys(variants).join(", ")}`);
  const tokenizer = new Tokenizer(json("tokenizer.json"), json("tokenizer_config.json"));
  const session = await ort.InferenceSession.create(join(bundle, variants[name].file));
  return async (texts) => {
    const vectors = [];
    for (const text of texts) { // one at a time: no padding, and nothing to sort by length
      let { ids } = tokenizer.encode(text);
      if (ids.length > limit) ids = [...ids.slice(0, limit - 1), ids.at(-1)]; // the tokenizer does not cut
      const tensor = (value) => new ort.Tensor("int64", BigInt64Array.from(ids, value), [1, ids.length]);
      const inputs = { input_ids: tensor(BigInt), attention_mask: tensor(() => 1n), token_type_ids: tensor(() => 0n) };
      const feeds = Object.fromEntries(session.inputNames.map((input) => [input, inputs[input]]));
      const { sentence_embedding: output } = await session.run(feeds, ["sentence_embedding"]);
      vectors.push(output.data.slice(0, dim));
    }
    return vectors;
  };
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const [bundle, file, query, variant] = process.argv.slice(2);
  if (!query) throw new Error('usage: node search.mjs BUNDLE FILE "a query" [VARIANT]');
  const encode = await load(bundle, variant);
  const lines = readFileSync(file, "utf8").split(/\r?\n/).filter((line) => line.trim());
  const [wanted, ...vectors] = await encode([query, ...lines]);
  const score = (vector) => vector.reduce((sum, value, i) => sum + value * wanted[i], 0); // unit vectors: the cosine
  const ranked = lines.map((line, i) => ({ line, score: score(vectors[i]) })).sort((a, b) => b.score - a.score);
  for (const item of ranked.slice(0, 5)) console.log(item.score.toFixed(4), item.line);
}
