"""Run every consumer on one bundle, each in an environment of its own, and write down its worst cosine.

    python -m export.minilm --calibration sentences.txt --out runs/minilm
    python -m benchmarks.consumers --bundle runs/minilm --environments runs/environments

The environments are made under ``--environments`` where they are missing: pip and npm install what
`benchmarks.environments` and the lock files of export/ name. Node.js with npm must be there.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.common import folder, write_result
from benchmarks.environments import python_of
from distilface.artifact import Bundle
from distilface.consumers import Outcome, check_consumers
from distilface.delivery import deliver
from distilface.loading import MINILM, resolve_model

ENVIRONMENTS = ("sentence-transformers-5", "sentence-transformers-6", "fastembed", "light-embed", "openvino", "mobile")
NODE_PACKAGES = ["onnxruntime-node@1.30.0", "onnxruntime-web@1.30.0", "@huggingface/tokenizers@0.2.0",
                 "@huggingface/transformers@4.3.2"]
TEXT = "onnxruntime-extensions"


def node_folder(environment: Path) -> Path:
    """A folder with the npm packages, which are installed if they are missing."""
    if not (environment / "node_modules").is_dir():
        environment.mkdir(parents=True, exist_ok=True)
        (environment / "package.json").write_text('{"private": true}\n', encoding="utf-8")
        npm = shutil.which("npm") or "npm"
        subprocess.run([npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", *NODE_PACKAGES],
                       cwd=environment, check=True)
    return environment


def measure(bundle: Path, checkpoint: Path, environments: Path) -> Iterator[Outcome]:
    """Outcomes of all consumers and variants; of sentence-transformers with torch, one for each of its versions."""
    pythons = {name: python_of(environments / name) for name in ENVIRONMENTS}
    others = [python for name, python in pythons.items() if name != "sentence-transformers-6"]
    for name in ("sentence-transformers-5", "sentence-transformers-6"):
        yield from check_consumers(bundle, pythons=[pythons[name]], checkpoint=checkpoint,
                                   names=["sentence-transformers, torch"])
    for outcome in check_consumers(bundle, pythons=others, node_folder=node_folder(environments / "node"),
                                   checkpoint=checkpoint):
        if outcome.consumer != "sentence-transformers, torch" and not outcome.consumer.startswith(TEXT):
            yield outcome
    for variant in Bundle.open(bundle).variant_names:
        with tempfile.TemporaryDirectory() as work:
            delivered = deliver(bundle, Path(work, "bundle"), variant, tokenizer_in_graph=True)
            yield from check_consumers(delivered.folder, pythons=[pythons["mobile"]], names=[TEXT])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", required=True, help="bundle with all variants, for example of export.minilm")
    parser.add_argument("--checkpoint", default=MINILM, help="what it was exported from")
    parser.add_argument("--environments", type=Path, default=Path("runs/environments"))
    arguments = parser.parse_args()
    bundle, checkpoint = folder(arguments.bundle, "bundle"), resolve_model(arguments.checkpoint)
    rows: list[dict[str, Any]] = []
    for outcome in measure(bundle, checkpoint, arguments.environments):
        print(outcome.line)
        rows.append({key: value for key, value in vars(outcome).items() if value not in (None, "")})
    manifest = Bundle.open(bundle).manifest
    floors = {name: variant.cosine_floor for name, variant in manifest.variants.items()}
    print(write_result("consumers", {"architecture": manifest.architecture, "dim": manifest.dim, "floors": floors,
                                     "texts": len(Bundle.open(bundle).golden()), "rows": rows}))


if __name__ == "__main__":
    main()
