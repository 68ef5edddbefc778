// Texts to unit vectors, with the bundle's tokenizer and graph.
import { Tokenizer } from "@huggingface/tokenizers";
import * as ort from "onnxruntime-web/wasm";
import compressed from "virtual:wasm";
import { MOST_CHARACTERS } from "./text.js";

let memory; // the runtime keeps its WebAssembly memory to itself; its size is what the page shows
const Memory = WebAssembly.Memory;
WebAssembly.Memory = class extends Memory {
  constructor(descriptor) {
    super(descriptor);
    memory = this;
  }
};

async function runtime() {
  const bytes = Uint8Array.from(atob(compressed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

export class Encoder {
  static async create(bundle) {
    ort.env.wasm.numThreads = 1; // more need headers that a plain static server doesn't send
    ort.env.wasm.wasmBinary = await runtime();
    const session = await ort.InferenceSession.create(bundle.graph, { executionProviders: ["wasm"] });
    return new Encoder(session, bundle);
  }

  constructor(session, { manifest, tokenizer, settings }) {
    this.session = session;
    this.limit = manifest.max_seq_length;
    this.dim = manifest.dim;
    this.tokenizer = new Tokenizer(tokenizer, settings);
    this.pad = this.tokenizer.token_to_id(settings.pad_token) ?? 0;
  }

  /** Bytes of the runtime's memory, the model in it. */
  get bytes() {
    return memory?.buffer.byteLength ?? 0;
  }

  ids(text) {
    const whole = text.isWellFormed?.() === false ? text.toWellFormed() : text; // half an emoji becomes U+FFFD
    const ids = Array.from(this.tokenizer.encode(whole.slice(0, MOST_CHARACTERS)).ids);
    return ids.length > this.limit ? [...ids.slice(0, this.limit - 1), ids.at(-1)] : ids;
  }

  /** One run of the graph on these rows of ids, padded together: Float32Array of rows.length x dim. */
  async run(rows) {
    const width = Math.max(...rows.map((row) => row.length));
    const filled = (value) => {
      const data = new BigInt64Array(rows.length * width);
      rows.forEach((row, i) => { for (let j = 0; j < width; j++) data[i * width + j] = BigInt(value(row, j)); });
      return new ort.Tensor("int64", data, [rows.length, width]);
    };
    const values = { input_ids: (row, j) => row[j] ?? this.pad, attention_mask: (row, j) => (j < row.length ? 1 : 0),
      token_type_ids: () => 0 };
    const feeds = Object.fromEntries(this.session.inputNames.map((name) => [name, filled(values[name])]));
    const { sentence_embedding: output } = await this.session.run(feeds, ["sentence_embedding"]);
    return output.data;
  }
}
