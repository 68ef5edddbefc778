"""How far contrastive training lifts a masked language model of DistilBERT architecture: avg7 before and after.

    python -m benchmarks.train_mlm --data ../shared/data --model ../shared/models/distilbert-l6-h384-mlm --run sup

``unsup`` is SimCSE on plain sentences; ``words`` learns from the same sentences and from the model's own word
embeddings, weighted by how rare each word is; ``sup`` is caption groups and NLI triplets with hard negatives. STS-B dev
chooses the checkpoint of SimCSE, and watches the others; the test sets, and the captions of the last 2,000 pictures,
which no training row holds, only report.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import folder, write_result
from benchmarks.held_out import HeldOut, measured, write_rows
from distilface.config import load_config
from distilface.data import iter_texts, read_triplets
from distilface.distillation import DistillConfig, distill
from distilface.encoder import SentenceEncoder
from distilface.training import TrainConfig, TrainResult, train

RECIPES: dict[str, dict[str, Any]] = {
    "unsup": {
        "model": {"pooling": "mean_first_last"},
        "data": [{"path": "sentences.txt.gz", "kind": "sentences"}],
        "train": {"batch_size": 128, "learning_rate": 1e-4, "max_length": 32, "warmup_ratio": 0.1, "precision": "auto"},
        "keep": "best",
    },
    "words": {
        "model": {"pooling": "mean_first_last", "dropout": 0.0},
        "teacher": {"pooling": "sif"},
        "loss": {"cosine": 1.0, "similarity": 1.0},
        "data": [{"path": "sentences.txt.gz", "kind": "sentences", "limit": 150_000}],
        "train": {"batch_size": 128, "learning_rate": 5e-4, "max_length": 32, "warmup_ratio": 0.1, "precision": "auto"},
        "keep": "last",
    },
    "sup": {
        "model": {"pooling": "mean_last"},
        "data": [{"path": "caption_groups.tsv.gz", "kind": "groups"},
                 {"path": "nli_triplets.tsv.gz", "kind": "triplets"}],
        "train": {"batch_size": 128, "learning_rate": 1e-4, "max_length": 32, "warmup_ratio": 0.1, "precision": "auto"},
        "keep": "last",
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with senteval/ and the training files")
    parser.add_argument("--model", required=True, help="the masked language model")
    parser.add_argument("--run", required=True, choices=list(RECIPES))
    parser.add_argument("--steps", type=int, required=True)
    arguments = parser.parse_args()
    data = folder(arguments.data, "data folder")
    recipe = RECIPES[arguments.run]
    held = HeldOut(data)
    with tempfile.TemporaryDirectory() as work:
        sources = [source | {"path": str(spared(data, source["path"], held, Path(work)))} for source in recipe["data"]]
        settings = {"data": sources, "train": recipe["train"] | {"max_steps": arguments.steps},
                    "eval": {"sts": str(data / "senteval"), "every_steps": max(1, arguments.steps // 6),
                             "keep": recipe["keep"]}}
        before = measured(SentenceEncoder.load(arguments.model, "mean_last"), data, held)
        out = Path(work) / "model"
        started = time.monotonic()
        result = trained(recipe, arguments.model, settings, out)
        minutes = (time.monotonic() - started) / 60
        after = measured(SentenceEncoder.load(out), data, held)
    print(f"avg7 {before['avg7']:.2f} -> {after['avg7']:.2f}, recall@1 {before['recall@1']:.2f} -> "
          f"{after['recall@1']:.2f} in {minutes:.1f} minutes")
    print(write_result(f"train_{arguments.run}", {
        "recipe": recipe, "steps": result.steps, "selected_step": result.selected_step, "dev": result.dev,
        "minutes": minutes, "examples_per_second": result.examples_per_second,
        "before_untrained_mean_last": before, "after": after}))


def trained(recipe: dict[str, Any], model: str, settings: dict[str, Any], out: Path) -> TrainResult:
    """Run a recipe: its teacher, if it has one, is the model itself."""
    described = recipe["model"] | {"name": model}
    if "teacher" not in recipe:
        return train(load_config(TrainConfig, overrides=settings | {"model": described}), out)
    return distill(load_config(DistillConfig, overrides=settings | {
        "teacher": recipe["teacher"] | {"name": model}, "student": described, "loss": recipe["loss"]}), out)


def spared(data: Path, name: str, held: HeldOut, work: Path) -> Path:
    """A training file without the rows that hold a held-out caption."""
    rows: Iterable[Sequence[str]]
    if name == "caption_groups.tsv.gz":
        rows = held.training
    elif name == "nli_triplets.tsv.gz":
        rows = held.spared(read_triplets(data / name))
    else:
        rows = held.spared((text,) for text in iter_texts(data / name) if text.strip())
    return write_rows(work / name.removesuffix(".gz"), rows)


if __name__ == "__main__":
    main()
