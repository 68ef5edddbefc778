"""What `compress` finds within a budget: STS and retrieval of the best graph, beside the whole float32 model.

    python -m benchmarks.budgets --data ../shared/data --run 12MB

The search sees dev pairs alone, and text without the captions of the last 2,000 pictures; these and the seven test sets
only report.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.common import folder, write_result
from benchmarks.distill import mix
from benchmarks.held_out import HeldOut, measured, write_rows
from distilface.compression import Budget, compress
from distilface.compression.budget import parse_size
from distilface.compression.points import Point
from distilface.loading import MINILM, load_any
from distilface.runtime import Encoder

RUNS: dict[str, dict[str, Any]] = {
    "12MB": {"size": "12MB", "drop": 0.5},
    "10MB": {"size": "10MB"},
    "6MB": {"size": "6MB", "minutes": 20.0},
    "4MB": {"size": "4MB", "minutes": 10.0},
}
SENTENCES, CAPTIONS = 60_000, 40_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with senteval/ and the training files")
    parser.add_argument("--run", required=True, choices=list(RUNS))
    parser.add_argument("--keep", help="folder of the search; run again, it goes on")
    arguments = parser.parse_args()
    data = folder(arguments.data, "data folder")
    recipe = RUNS[arguments.run]
    held = HeldOut(data)
    with tempfile.TemporaryDirectory() as work:
        text = write_rows(Path(work) / "text.txt", ((row,) for row in mix(data, held, SENTENCES, CAPTIONS)))
        started = time.monotonic()
        found = compress(MINILM, arguments.keep or Path(work) / "search", Budget(parse_size(recipe["size"]),
                         recipe.get("drop")), data / "senteval", text, modes=("static", "token", "w8", "w4"),
                         minutes=recipe.get("minutes"), progress=lambda step: print(step, flush=True))
        minutes = (time.monotonic() - started) / 60
        scores = measured(Encoder.load(found.bundle), data, held)
    teacher = measured(load_any(MINILM), data, held)
    best = found.best
    print(f"{best.words}: {best.size / 1e6:.1f} MB, avg7 {scores['avg7']:.2f}, recall@1 {scores['recall@1']:.2f}")
    print(write_result(f"budget_{arguments.run}", {
        "run": arguments.run, "budget": recipe, "minutes": minutes, "reference_dev": found.reference,
        "best": _facts(best), "front": [_facts(point) for point in found.front], "scores": scores, "fp32": teacher}))


def _facts(point: Point) -> dict[str, Any]:
    """Without the commands, which name this run's temporary files."""
    return {key: value for key, value in asdict(point).items() if key != "commands"}


if __name__ == "__main__":
    main()
