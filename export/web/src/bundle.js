// A bundle, read from beside the page or from a folder the user chose, and checked against its manifest.

const FORMAT_VERSION = 1;
const INT8 = ["int8-static", "int8-token", "int8-dynamic"];

/** Files under a URL of this page's own origin. */
export class UrlSource {
  constructor(base) {
    this.base = base;
  }

  async read(path, size, onBytes) {
    let response;
    try {
      response = await fetch(new URL(path, this.base), { cache: "no-cache" });
    } catch {
      throw new Error(`${path} could not be read; is the bundle beside this page?`);
    }
    if (!response.ok) throw new Error(`${path} is not there (${response.status}); copy the bundle beside this page`);
    return collect(response.body, size, onBytes);
  }
}

/** Files of a chosen folder, by their path in it. */
export class FolderSource {
  constructor(files) {
    const manifest = files.find((file) => file.name === "distilface.json");
    if (!manifest) throw new Error("the folder holds no distilface.json; choose the folder of a bundle");
    const root = pathOf(manifest).slice(0, -"distilface.json".length);
    this.files = new Map(files.map((file) => [pathOf(file).slice(root.length), file]));
  }

  async read(path, size, onBytes) {
    const file = this.files.get(path);
    if (!file) throw new Error(`${path} is missing from the folder; copy the bundle again`);
    return collect(file.stream(), size, onBytes);
  }
}

const pathOf = (file) => file.webkitRelativePath || file.name;

async function collect(stream, size, onBytes) {
  const parts = [];
  let loaded = 0;
  for (const reader = stream.getReader(); ;) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    onBytes?.(loaded += value.length, size);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

/**
 * The manifest, the tokenizer's files and the graph of one variant.
 * @param {UrlSource | FolderSource} source
 * @param {string | null} wanted a variant's name; null for the INT8 one
 * @param {(loaded: number, total: number) => void} onBytes called while the graph is read
 */
export async function readBundle(source, wanted, onBytes) {
  const manifest = parse(await source.read("distilface.json"), "distilface.json");
  if (manifest.kind !== "bundle") throw new Error("distilface.json is not that of a bundle; export the checkpoint first");
  if (!(manifest.format_version <= FORMAT_VERSION)) {
    throw new Error(`the bundle has format version ${manifest.format_version}, this page reads up to ${FORMAT_VERSION}; `
      + "build the page of a newer distilface");
  }
  const names = Object.keys(manifest.variants);
  const name = wanted === null || wanted === "int8" ? INT8.find((item) => names.includes(item)) ?? names[0] : wanted;
  const variant = manifest.variants[name];
  if (!variant) throw new Error(`the bundle has no variant "${name}"; it has ${names.join(", ")}`);

  const checked = async (path, report) => {
    const record = manifest.files[path];
    if (!record) throw new Error(`${path} is not in the manifest; export the bundle again`);
    const bytes = await source.read(path, record.size, report);
    await compare(path, bytes, record);
    return bytes;
  };
  const [tokenizer, settings, golden] = [
    parse(await checked("tokenizer.json"), "tokenizer.json"),
    parse(await checked("tokenizer_config.json"), "tokenizer_config.json"),
    parse(await checked("golden.json"), "golden.json").texts,
  ];
  return { manifest, name, variant, tokenizer, settings, golden, graph: await checked(variant.file, onBytes) };
}

async function compare(path, bytes, record) {
  if (bytes.length !== record.size) {
    throw new Error(`${path} has ${bytes.length} bytes, the manifest says ${record.size}; copy the bundle again`);
  }
  if (!globalThis.crypto?.subtle) return; // an origin without TLS has no digests; the size must do
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  const hex = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  if (hex !== record.sha256) throw new Error(`${path} was altered: its sha256 is not the manifest's; copy the bundle again`);
}

function parse(bytes, name) {
  try {
    return JSON.parse(new TextDecoder().decode(bytes));
  } catch (error) {
    throw new Error(`${name} is no valid JSON (${error.message}); copy the bundle again`);
  }
}
