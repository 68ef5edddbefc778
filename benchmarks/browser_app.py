"""Measure the page of export/web on a real model and real lines, in a headless Chromium.

    python -m benchmarks.browser_app --data DATA --bundle runs/minilm

The page is built under ``--environments``; Node.js with npm and Chromium must be there. What it finds is compared
with `distilface.Encoder` on the same graph. Chromium runs at the usual priority, whatever that of this command.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import folder, write_result
from distilface.artifact import Bundle
from distilface.benchmarking.browser import find_browser
from distilface.data import iter_texts
from distilface.errors import GateError
from distilface.runtime import Encoder

WEB = Path(__file__).parents[1] / "export" / "web"
DRIVER = Path(__file__).with_suffix(".mjs")
QUERIES = 20
NEAREST = 10


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Nothing on standard error."""


def built(environment: Path) -> Path:
    """A copy of the page with its packages, those of the lock file, built; the packages are kept for the next time."""
    npm = shutil.which("npm") or "npm"
    shutil.copytree(WEB, environment, dirs_exist_ok=True, ignore=shutil.ignore_patterns("node_modules", "dist"))
    if not (environment / "node_modules").is_dir():
        subprocess.run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=environment, check=True)
    subprocess.run([npm, "run", "build"], cwd=environment, check=True)
    return environment


@contextmanager
def served(site: Path) -> Iterator[str]:
    """The address of a folder, on this machine alone."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def measure(web: Path, bundle: Bundle, variant: str, texts: list[str], unseen: list[str],
            picture: Path) -> dict[str, Any]:
    """The figures of one variant: load, index ``texts``, ask ``unseen`` and as many of the texts themselves."""
    step = len(texts) // QUERIES
    own = range(step // 2, len(texts), step)
    with tempfile.TemporaryDirectory() as work:
        site = Path(work, "site")
        shutil.copytree(web / "dist", site)
        (site / "bundle").symlink_to(bundle.folder.resolve(), target_is_directory=True)
        lines, queries = Path(work, "lines.txt"), Path(work, "queries.json")
        lines.write_text("\n".join(texts), encoding="utf-8", newline="\n")
        queries.write_text(json.dumps([*(texts[line] for line in own), *unseen]), encoding="utf-8")
        with served(site) as origin:
            done = subprocess.run(
                ["node", str(DRIVER), f"{origin}?variant={variant}", str(lines), str(queries), str(picture)], cwd=web,
                env=os.environ | {"CHROMIUM": find_browser()}, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    foreign = [url for url in found["requests"] if not url.startswith((origin, "blob:", "data:"))]
    if foreign:
        raise GateError(f"the page asked {foreign[0]!r}, which is not its own origin")
    answers = found.pop("answers")
    encoder = Encoder.load(bundle.folder, variant)
    hits = encoder.search(unseen, encoder.encode(texts), NEAREST)
    same = [len({number - 1 for number in answer["numbers"][:NEAREST]} & set(row.tolist()))
            for answer, row in zip(answers[len(own):], hits.indices, strict=True)]
    return found | {
        "requests": len(found["requests"]), "foreign_requests": 0,
        "lines_per_second": len(texts) / found["index_seconds"],
        "query_cpu_milliseconds": 1000 * found["answer_cpu_seconds"] / len(answers),
        **{f"{name}_milliseconds": median(answer[name] for answer in answers) for name in ("embed", "search", "shown")},
        "own_lines_first": sum(answer["numbers"][0] == line + 1 for answer, line in zip(answers, own, strict=False)),
        "own_lines_asked": len(own), "same_nearest": sum(same) / (NEAREST * len(same)), "nearest": NEAREST}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with sentences.txt.gz, one sentence a line")
    parser.add_argument("--bundle", required=True, help="bundle of a real model, for example of export.minilm")
    parser.add_argument("--variants", nargs="+", default=["int8"])
    parser.add_argument("--lines", type=int, default=10_000)
    parser.add_argument("--environments", type=Path, default=Path("runs/environments"))
    parser.add_argument("--pictures", type=Path, default=Path("runs"), help="folder for the screenshots")
    arguments = parser.parse_args()
    bundle = Bundle.open(folder(arguments.bundle, "bundle"))
    source = iter_texts(str(folder(arguments.data, "data") / "sentences.txt.gz"))
    words = (" ".join(text.split()) for text in islice(source, 2 * arguments.lines))
    sentences = list(islice(dict.fromkeys(filter(None, words)), arguments.lines + QUERIES))
    texts, unseen = sentences[: arguments.lines], sentences[arguments.lines :]
    web = built(arguments.environments / "web")
    arguments.pictures.mkdir(parents=True, exist_ok=True)
    rows = {}
    for name in map(bundle.resolve_variant, arguments.variants):
        rows[name] = measure(web, bundle, name, texts, unseen, arguments.pictures.resolve() / f"browser_app_{name}.png")
        print(name, rows[name])
    print(write_result("browser_app", {"architecture": bundle.manifest.architecture, "dim": bundle.manifest.dim,
                                       "lines": len(texts), "rows": rows}))


if __name__ == "__main__":
    main()
