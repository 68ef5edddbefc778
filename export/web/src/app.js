// The page: what the user does, what the worker answers.
import example from "./example.js";
import { megabytes, MOST_CHARACTERS, MOST_LINES, readLines } from "./text.js";
import SearchWorker from "./worker.js?worker&inline";

const DEBOUNCE = 120; // milliseconds without a key before a query is sent
const REFRESH = 1000; // and between refreshed results while lines are still being embedded
const AROUND = 2; // lines shown before and after a result
const SHOWN = 1000; // characters of a line: a book in one line would stop the page

const at = (id) => document.getElementById(id);
const element = (name, className, text = "") => Object.assign(document.createElement(name), { className, textContent: text });
const worker = new SearchWorker();
const waiting = new Map(); // answers of encode, by id
const state = { ready: false, lines: [], name: "", done: 0, latest: 0, shown: "", timer: 0, refreshed: 0, check: null };

// ---------------------------------------------------------------- to the worker

let ids = 0;
const send = (type, values = {}) => {
  worker.postMessage({ type, id: ++ids, ...values });
  return ids;
};

function load() {
  const wanted = new URLSearchParams(location.search);
  const variant = wanted.get("variant");
  if (location.protocol === "file:") {
    askForFolder("Opened from a disk: a page can't read beside itself there.");
    return;
  }
  const base = new URL(wanted.get("bundle") ?? "bundle/", document.baseURI);
  if (base.origin !== location.origin) {
    askForFolder(`?bundle=${base} lies on another origin; copy the bundle beside this page.`);
    return;
  }
  if (!base.pathname.endsWith("/")) base.pathname += "/";
  modelStatus("Loading the model …");
  send("load", { base: base.href, variant });
}

function askForFolder(reason) {
  modelStatus(reason);
  at("model-progress").hidden = true;
  at("model-choice").hidden = false;
}

function ask() {
  clearTimeout(state.timer);
  const text = at("query").value.trim();
  if (!text || !state.ready || !state.lines.length) {
    state.latest = 0;
    at("stat-query").textContent = "";
    show([], "");
    return;
  }
  state.refreshed = performance.now();
  state.latest = send("query", { text });
}

// ---------------------------------------------------------------- from the worker

worker.onerror = (event) => fail(`the search stopped (${event.message || "its script could not start"}); reload the page`);
worker.onmessage = ({ data }) => handlers[data.type](data);

const handlers = {
  loading({ loaded, total }) {
    Object.assign(at("model-progress"), { max: total, value: loaded });
    modelStatus(`Loading the model: ${megabytes(loaded)} of ${megabytes(total)}`);
  },
  starting() {
    at("model-progress").removeAttribute("value"); // how long is not known
    modelStatus("Starting the model …");
  },
  ready({ variant, size, dim, limit, milliseconds, memory }) {
    state.ready = true;
    at("model-progress").hidden = true;
    at("model-choice").hidden = true;
    modelStatus(`${variant}, ${megabytes(size)}, vectors of ${dim}, up to ${limit} tokens a line; ready after `
      + `${(milliseconds / 1000).toFixed(1)} s`);
    at("model").dataset.state = "ready";
    at("check").disabled = false;
    tell("The model is ready.");
    memoryUse(memory, 0);
    index();
  },
  progress({ done, total, milliseconds, memory, vectors }) {
    if (total !== state.lines.length) return; // of a text that is gone
    state.done = done;
    Object.assign(at("text-progress"), { max: total || 1, value: done, hidden: done === total });
    const speed = milliseconds ? (1000 * done) / milliseconds : 0;
    const rate = speed ? ` at ${count(Math.round(speed))} lines/s` : "";
    const left = speed ? `, about ${count(Math.ceil((total - done) / speed))} s left` : "";
    if (total) {
      textStatus(done < total ? `${state.name}: ${count(done)} of ${count(total)} lines embedded${rate}${left}`
        : `${state.name}: ${lineCount(total)}, all embedded${rate}`);
    }
    if (total && done === total && at("text").dataset.state !== "ready") tell(`${state.name}: ${lineCount(total)}, all embedded`);
    at("text").dataset.state = done === total ? "ready" : "busy";
    memoryUse(memory, vectors);
    if (state.latest && (done === total || performance.now() - state.refreshed > REFRESH)) ask();
  },
  results({ id, results, searched, embedding, searching }) {
    if (id !== state.latest) return; // a newer query is on its way
    const all = state.lines.length;
    show(results, `${count(results.length)} nearest of ${searched < all ? `the ${count(searched)} lines embedded so far`
      : lineCount(all)}`);
    at("stat-query").textContent = `${(embedding + searching).toFixed(1)} ms: embed ${embedding.toFixed(1)}, `
      + `search ${searching.toFixed(1)}`;
  },
  encoded({ id, vectors, ids: rows }) {
    waiting.get(id)?.resolve({ vectors, ids: rows });
    waiting.delete(id);
  },
  checked({ count: texts, worst, floor }) {
    at("check").disabled = false;
    at("stat-check").dataset.state = worst >= floor ? "good" : "bad";
    at("stat-check").textContent = worst >= floor
      ? `${texts} texts: ids equal, cosine ${worst.toFixed(4)} or more (floor ${floor})`
      : `failed: cosine ${worst.toFixed(4)} is under the floor of ${floor}`;
  },
  error({ id, message }) {
    if (waiting.has(id)) {
      waiting.get(id).reject(new Error(message));
      waiting.delete(id);
      return;
    }
    if (id === state.check) at("check").disabled = false;
    if (!state.ready) askForFolder("No model yet.");
    fail(message);
  },
};

// ---------------------------------------------------------------- the model

function modelStatus(text) {
  at("model-status").textContent = text;
}

at("bundle-input").addEventListener("change", ({ target }) => {
  if (!target.files.length) return;
  fail("");
  at("model-progress").hidden = false;
  modelStatus("Reading the folder …");
  send("load", { files: [...target.files], variant: new URLSearchParams(location.search).get("variant") });
  target.value = "";
});

at("check").addEventListener("click", () => {
  at("check").disabled = true;
  Object.assign(at("stat-check"), { textContent: "checking …" });
  state.check = send("check");
});

function memoryUse(engine, vectors) {
  at("stat-memory").textContent = `${megabytes(engine + vectors)}: model ${megabytes(engine)}, vectors ${megabytes(vectors)}`;
}

// ---------------------------------------------------------------- the text

function textStatus(text) {
  at("text-status").textContent = text;
}

async function take(file) {
  fail("");
  textStatus(`Reading ${file.name} …`);
  let lines;
  try {
    lines = await readLines(file);
  } catch (error) {
    textStatus(state.lines.length ? `${state.name} is still the text.` : "No text yet.");
    fail(error.message);
    return;
  }
  if (lines.length > MOST_LINES) {
    fail(`${file.name} has ${count(lines.length)} lines; the first ${count(MOST_LINES)} are used`);
    lines.length = MOST_LINES;
  }
  Object.assign(state, { lines, name: file.name, done: 0 });
  at("text-progress").hidden = true;
  at("text").dataset.state = "";
  at("query").disabled = lines.length === 0;
  at("remove").hidden = lines.length === 0;
  if (!lines.length) {
    textStatus(`${file.name} holds no text: nothing to search.`);
    tell(`${file.name} holds no text.`);
    at("query").value = "";
  } else textStatus(`${file.name}: ${lineCount(lines.length)}${state.ready ? "" : ", waiting for the model"}`);
  ask();
  index();
}

function index() {
  if (!state.ready) return;
  send("index", { texts: state.lines.map(({ text }) => text.slice(0, MOST_CHARACTERS)) });
  ask();
}

at("text-input").addEventListener("change", ({ target }) => {
  if (target.files.length) take(target.files[0]);
  target.value = ""; // the same file may be chosen again after a change
});
at("example").addEventListener("click", () => take(new File([example], "example.txt")));

at("remove").addEventListener("click", () => {
  Object.assign(state, { lines: [], name: "", done: 0 });
  for (const id of ["remove", "text-progress"]) at(id).hidden = true;
  Object.assign(at("query"), { value: "", disabled: true });
  textStatus("No text yet.");
  fail("");
  ask();
  index(); // also ends what is still being embedded
  at("text-input").focus();
});

for (const [type, over] of [["dragenter", true], ["dragover", true], ["dragleave", false], ["drop", false]]) {
  document.addEventListener(type, (event) => {
    event.preventDefault();
    at("drop").classList.toggle("over", over);
  });
}
document.addEventListener("drop", ({ dataTransfer }) => {
  if (dataTransfer.files.length) take(dataTransfer.files[0]);
  else fail("that was no file; drop a text file");
});

// ---------------------------------------------------------------- the search

at("query").addEventListener("input", () => {
  clearTimeout(state.timer);
  state.timer = setTimeout(ask, DEBOUNCE);
});

function show(results, found) {
  const key = JSON.stringify(results);
  if (at("found").textContent !== found) at("found").textContent = found;
  if (key === state.shown) return; // keeps the focus and an opened result where they are
  state.shown = key;
  at("results").replaceChildren(...results.map(({ line, score }) => {
    const { number, text } = state.lines[line];
    const item = element("li", "");
    const button = element("button", "result");
    button.type = "button";
    button.setAttribute("aria-expanded", "false");
    button.dataset.line = line;
    const bar = element("span", "bar");
    bar.style.width = `${Math.max(0, score) * 100}%`;
    const value = element("span", "score", score.toFixed(3));
    value.setAttribute("aria-label", `score ${score.toFixed(3)}`);
    const place = element("span", "number", count(number));
    place.setAttribute("aria-label", `line ${number}`);
    button.append(place, element("span", "line", shown(text)), value, bar);
    item.append(button);
    return item;
  }));
}

at("results").addEventListener("click", ({ target }) => {
  const button = target.closest("button");
  if (!button) return;
  const open = button.getAttribute("aria-expanded") === "true";
  button.setAttribute("aria-expanded", String(!open));
  if (open) {
    button.nextSibling.remove();
    return;
  }
  const line = Number(button.dataset.line);
  const around = element("ul", "around");
  for (let i = Math.max(0, line - AROUND); i <= Math.min(state.lines.length - 1, line + AROUND); i++) {
    const row = element("li", i === line ? "this" : "");
    row.append(element("span", "number", count(state.lines[i].number)), element("span", "line", shown(state.lines[i].text)));
    around.append(row);
  }
  button.after(around);
});

document.addEventListener("keydown", (event) => {
  const { key } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const query = at("query");
  const buttons = [...at("results").querySelectorAll("button")];
  const current = buttons.indexOf(document.activeElement);
  const searching = document.activeElement === query || current >= 0;
  if (key === "/" && document.activeElement !== query && !query.disabled) query.focus();
  else if (key === "ArrowDown" && searching) buttons[Math.min(current + 1, buttons.length - 1)]?.focus();
  else if (key === "ArrowUp" && current >= 0) (buttons[current - 1] ?? query).focus();
  else if (key === "Escape" && searching) {
    query.value = "";
    query.focus();
    ask();
  } else return;
  event.preventDefault();
});

// ---------------------------------------------------------------- words

function fail(message) {
  Object.assign(at("error"), { textContent: message, hidden: !message });
}

/** For a screen reader: what came to an end, not every step on the way. */
function tell(message) {
  at("news").textContent = message;
}

const shown = (text) => (text.length > SHOWN ? `${text.slice(0, SHOWN)} …` : text);
const count = (number) => number.toLocaleString("en");
const lineCount = (number) => `${count(number)} ${number === 1 ? "line" : "lines"}`;

/** For the console and the tests: `await distilface.encode(["some text"])` gives {vectors, ids}. */
globalThis.distilface = {
  encode: (texts) => new Promise((resolve, reject) => {
    if (state.ready) waiting.set(send("encode", { texts }), { resolve, reject });
    else reject(new Error("the model is not loaded yet"));
  }),
};

load();
