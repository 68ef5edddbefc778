// One page that opens from a disk as well as from any static server: a classic script (modules don't load from file://)
// with the worker and ONNX Runtime's WebAssembly inside it.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { gzipSync } from "node:zlib";
import { defineConfig } from "vite";

const runtime = dirname(createRequire(import.meta.url).resolve("onnxruntime-web"));
const wasm = join(runtime, "ort-wasm-simd-threaded.wasm");

/** `virtual:wasm`: the WebAssembly of ONNX Runtime, gzipped, as base64 text. */
const embedRuntime = () => ({
  name: "embed-runtime",
  enforce: "pre",
  resolveId: (id) => (id === "virtual:wasm" ? "\0virtual:wasm" : undefined),
  load: (id) => (id === "\0virtual:wasm"
    ? `export default ${JSON.stringify(gzipSync(readFileSync(wasm), { level: 9 }).toString("base64"))};` : undefined),
  // The runtime's own reference to the file would put a second copy beside the page.
  transform: (code, id) => (id.includes("onnxruntime-web")
    ? code.replaceAll(/new URL\((["'`])[^"'`]*\.(?:wasm|mjs)\1,\s*import\.meta\.url\)/g, 'new URL("about:blank")')
    : undefined),
});

const classicScript = () => ({
  name: "classic-script",
  enforce: "post",
  transformIndexHtml: (html) => html
    .replace(/<script type="module" crossorigin/g, "<script defer")
    .replace(/<link rel="stylesheet" crossorigin/g, '<link rel="stylesheet"'),
});

export default defineConfig({
  base: "./",
  plugins: [embedRuntime(), classicScript()],
  worker: { format: "iife", plugins: () => [embedRuntime()] },
  build: {
    target: "es2022",
    modulePreload: false,
    chunkSizeWarningLimit: 10_000,
    rollupOptions: { output: { format: "iife", entryFileNames: "app.js", assetFileNames: "[name][extname]" } },
  },
});
