"""`--target web`: a bundle in ONNX Runtime's WebAssembly, in a headless Chromium that this process starts.

The page (page.js) fetches its tasks from a server on this machine's loopback, which also hands out the bundle and the
npm packages, and times them inside the browser: nothing of the way back and forth is in a latency.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from distilface.artifact import Bundle
from distilface.errors import GateError, UserError
from distilface.protocol import Vectors
from distilface.runtime.encoder import BATCH_TOKENS
from distilface.tokenizer import Tokenizer

PACKAGES = {"onnxruntime-web": "dist/ort.wasm.min.mjs", "@huggingface/tokenizers": "dist/tokenizers.mjs"}
"""What the page imports from npm, and the module of each."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
CHUNK = 1000
"""Texts a message: the vectors of all at once would be one string of many megabytes."""
START_SECONDS, TASK_SECONDS, POLL_SECONDS = 60, 1800, 5
_PAGE = Path(__file__).parent / "page.js"
_TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".wasm": "application/wasm", ".json": "application/json",
          ".html": "text/html"}


def find_browser() -> str:
    """Chromium or Chrome: what CHROMIUM names, or the first there is.

    Raises:
        UserError: there is none.
    """
    named = os.environ.get("CHROMIUM")
    found = shutil.which(named) if named else next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        what = f"CHROMIUM names {named!r}, which is no program" if named else f"found none of {', '.join(BROWSERS)}"
        raise UserError(f"--target web needs Chromium or Chrome and {what}; install one, or name it in CHROMIUM")
    return found


def find_packages(folder: Path) -> Path:
    """The node_modules of ``folder``, with what the page imports.

    Raises:
        UserError: a package is missing; says how to install it.
    """
    modules = folder.expanduser() / "node_modules"
    for name, file in PACKAGES.items():
        if not (modules / name / file).is_file():
            raise UserError(f"--target web needs the npm package {name!r} and {str(modules)!r} has none; run npm "
                            f"install {' '.join(PACKAGES)} (Node.js brings npm) there, or name another folder with "
                            "--npm-folder")
    return modules.resolve()


class Page:
    """A headless Chromium with the measuring page. `close` ends it; so does the end of this process."""

    def __init__(self, bundle: Path, packages: Path) -> None:
        self._tasks: queue.Queue[dict[str, Any]] = queue.Queue()
        self._answers: queue.Queue[Any] = queue.Queue()
        self.error = ""
        browser = find_browser()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, bundle, packages))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self._profile = tempfile.mkdtemp(prefix="distilface-web-")
        root = ["--no-sandbox"] if hasattr(os, "getuid") and os.getuid() == 0 else []
        self._process = subprocess.Popen(
            [browser, "--headless", *root, f"--user-data-dir={self._profile}", "--disable-gpu", "--no-first-run",
             "--disable-dev-shm-usage", "--disable-extensions", "--disable-background-networking",
             "--disable-background-timer-throttling", "--disable-renderer-backgrounding",
             f"http://127.0.0.1:{self._server.server_port}/"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._asked = threading.Event()
        atexit.register(self.close)
        self._wait_for_page(browser)

    def ask(self, op: str, **fields: Any) -> Any:
        """One task and its answer: a dict, or the flat float32 array that the page sent.

        Raises:
            GateError: the page could not do it, or the browser ended.
        """
        self._tasks.put({"op": op, **fields})
        end = time.monotonic() + TASK_SECONDS
        while True:
            try:
                answer = self._answers.get(timeout=1)
                break
            except queue.Empty:
                if self._process.poll() is not None or time.monotonic() > end:
                    raise GateError(f"the browser {self._ended()} during {op!r}; out of memory?") from None
        if isinstance(answer, dict) and "error" in answer:
            raise GateError(f"ONNX Runtime's WebAssembly failed on {op!r}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the browser and delete its profile."""
        atexit.unregister(self.close)
        self._process.terminate()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._server.shutdown()
        self._server.server_close()
        shutil.rmtree(self._profile, ignore_errors=True)

    def next_task(self) -> dict[str, Any]:
        """For the server: a task, or nothing after a while."""
        self._asked.set()
        try:
            return self._tasks.get(timeout=POLL_SECONDS)
        except queue.Empty:
            return {}

    def answered(self, answer: Any) -> None:
        """For the server: what the page sent."""
        self._answers.put(answer)

    def _wait_for_page(self, browser: str) -> None:
        end = time.monotonic() + START_SECONDS
        while not self._asked.wait(timeout=0.05):
            if self._process.poll() is not None or time.monotonic() > end:
                reason = self._ended()
                self.close()
                raise UserError(f"--target web: {browser} {reason} before the page ran; it must be a Chromium of 2023 "
                                "or newer that starts with --headless (name another in CHROMIUM)")

    def _ended(self) -> str:
        code = self._process.poll()
        return "did not answer" if code is None else f"ended with code {code}"


class WebEncoder:
    """One variant of a bundle in the browser; times itself there (see `worker`)."""

    def __init__(self, page: Page, bundle: Bundle, variant: str, threads: int, max_seq_length: int | None) -> None:
        self.page = page
        limit = max_seq_length or bundle.manifest.max_seq_length
        self.tokenizer = Tokenizer.load(bundle.folder, limit)
        self.max_seq_length = limit
        self.dim = bundle.manifest.dim
        loaded = page.ask("load", file=bundle.variant(variant).file, threads=threads, max_seq_length=limit,
                          pad_token_id=self.tokenizer.pad_token_id, runtime="/npm/onnxruntime-web/dist/")
        if threads > 1 and not loaded["isolated"]:
            raise GateError(f"the browser gives a page one thread and {threads} were asked for; use --threads 1")

    def encode(self, texts: Sequence[str], batch_tokens: int = BATCH_TOKENS) -> Vectors:
        """Unit vectors ``[len(texts), dim]``, by the tokenizer and the runtime of the page."""
        found = [self.page.ask("encode", texts=list(texts[start : start + CHUNK]), batch_tokens=batch_tokens)
                 for start in range(0, len(texts), CHUNK)]
        return np.concatenate(found).reshape(len(texts), self.dim)

    def embed_batch(self, rows: Sequence[Sequence[int]]) -> Vectors:
        """One run of the graph on exactly these rows, padded together."""
        vectors: Vectors = self.page.ask("rows", rows=[list(row) for row in rows]).reshape(len(rows), self.dim)
        return vectors

    def latency(self, **settings: Any) -> dict[str, Any]:
        """Seconds of single-text calls, measured in the page."""
        found: dict[str, Any] = self.page.ask("latency", **settings)
        return found

    def throughput(self, texts: Sequence[str], batch_tokens: int | None) -> dict[str, Any]:
        """Seconds of one pass over ``texts``, measured in the page."""
        found: dict[str, Any] = self.page.ask("throughput", texts=list(texts),
                                              batch_tokens=batch_tokens or BATCH_TOKENS)
        return found


def _handler(page: Page, bundle: Path, packages: Path) -> type[BaseHTTPRequestHandler]:
    modules = {name: f"/npm/{name}/{file}" for name, file in PACKAGES.items()}
    html = (f'<!doctype html><meta charset="utf-8"><script type="importmap">{json.dumps({"imports": modules})}</script>'
            '<script type="module" src="/page.js"></script>').encode()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/task":
                self._send(json.dumps(page.next_task()).encode(), ".json")
            elif path == "/":
                self._send(html, ".html")
            else:
                root, _, rest = path.lstrip("/").partition("/")
                file = {"bundle": bundle / rest, "npm": packages / rest, _PAGE.name: _PAGE}.get(root)
                if file is not None and file.is_file():
                    self._send(file.read_bytes(), file.suffix)
                else:
                    self.send_error(404)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            binary = self.headers["content-type"] == "application/octet-stream"
            page.answered(np.frombuffer(body, dtype="<f4").copy() if binary else json.loads(body))
            self._send(b"{}", ".json")

        def _send(self, body: bytes, suffix: str) -> None:
            self.send_response(200)
            self.send_header("content-type", _TYPES.get(suffix, "application/octet-stream"))
            self.send_header("content-length", str(len(body)))
            # What a page needs to have threads (SharedArrayBuffer) and exact clocks.
            self.send_header("cross-origin-opener-policy", "same-origin")
            self.send_header("cross-origin-embedder-policy", "require-corp")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing on standard error."""

    return Handler
