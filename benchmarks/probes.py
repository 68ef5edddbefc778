"""Which layers of a masked language model matter, by three probes, and whether their rankings tell which ones to keep.

    python -m benchmarks.probes --data ../shared/data --models ../shared/models

Every run is a short supervised contrastive training (caption groups, NLI triplets), scored on STS-B dev. Then the three
best layers of each ranking, the three worst and three evenly spaced ones are fine-tuned alike. What is finished lies in
--work: the same command goes on after an interruption.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.common import folder, write_result
from distilface.artifact import atomic_file
from distilface.cli.options import numbers
from distilface.cli.progress import progress
from distilface.config import load_config
from distilface.encoder import SentenceEncoder
from distilface.evaluation import dev_score, load_scored
from distilface.probing import ProbeConfig, probe
from distilface.probing.results import interval
from distilface.shrinking import shrink
from distilface.shrinking.layers import evenly_spaced, read_ranking
from distilface.tokenizer import write_json
from distilface.training import TrainConfig, train

MODEL = "distilbert-l6-h384-mlm"
KEPT = 3
GRIDS: dict[str, dict[str, Any]] = {"progressive": {}, "localized": {"window": 2}, "permutation": {"orders": 4}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with senteval/ and the training files")
    parser.add_argument("--models", required=True, help=f"folder with {MODEL}")
    parser.add_argument("--steps", type=int, default=24, help="optimizer steps of each run (24)")
    parser.add_argument("--batch-size", type=int, default=32, help="examples a step (32)")
    parser.add_argument("--seeds", default="0,1,2", help="comma-separated (0,1,2)")
    parser.add_argument("--pairs", type=int, default=300, help="STS-B dev pairs that score a probe's run (300)")
    parser.add_argument("--work", type=Path, default=Path("runs/probes"), help="folder of finished runs")
    arguments = parser.parse_args()
    data = folder(arguments.data, "data folder")
    model = str(folder(arguments.models, "models folder") / MODEL)
    seeds = numbers(arguments.seeds, "--seeds")
    recipe = recipe_for(data, model, arguments.steps, arguments.batch_size)
    rankings = {}
    for name, grid in GRIDS.items():
        config = load_config(ProbeConfig, overrides=recipe | {
            "probe": name, "grid": grid | {"seeds": seeds},
            "eval": {"sts": str(data / "senteval"), "limit": arguments.pairs}})
        out = arguments.work / name
        with progress() as report:
            result = probe(config, out, progress=report)
        rankings[name] = read_ranking(out / "ranking.json")
        print(f"{name}: {rankings[name]}", flush=True)
        print(write_result(f"probe_{name}", {
            "config": config.model_dump(mode="json"), "cells": result.cells, "minutes": cell_minutes(out),
            "scores": [asdict(item) for item in result.summaries],
            "ranking": [asdict(item) for item in result.ranking]}), flush=True)
    rows = check(rankings, recipe, data, seeds, arguments.work / "check")
    print(write_result("probe_ranking", {
        "recipe": recipe, "kept": KEPT, "pairs": len(load_scored(data / "senteval")), "rankings": rankings} | rows))


def recipe_for(data: Path, model: str, steps: int, batch_size: int) -> dict[str, Any]:
    """What every run has in common; no more text is read than one source alone could need."""
    limit = max(2, steps) * batch_size
    return {
        "model": {"name": model, "pooling": "mean_last"},
        "data": [{"path": str(data / "caption_groups.tsv.gz"), "kind": "groups", "limit": limit},
                 {"path": str(data / "nli_triplets.tsv.gz"), "kind": "triplets", "limit": limit}],
        "train": {"max_steps": steps, "batch_size": batch_size, "learning_rate": 1e-4, "max_length": 32,
                  "warmup_ratio": 0.1, "precision": "auto"},
    }


def check(rankings: dict[str, list[int]], recipe: dict[str, Any], data: Path, seeds: Sequence[int],
          work: Path) -> dict[str, Any]:
    """Dev Spearman of the best, the worst and evenly spaced layers, fine-tuned alike: each over seeds, and paired."""
    layers = len(next(iter(rankings.values())))
    even = kept_scores(evenly_spaced(layers, KEPT), recipe, data, seeds, work)
    rows: list[dict[str, Any]] = [{"layers": "evenly spaced", "ranking": None} | even]
    answers = []
    for name, ranking in rankings.items():
        best = kept_scores(sorted(ranking[:KEPT]), recipe, data, seeds, work)
        worst = kept_scores(sorted(ranking[-KEPT:]), recipe, data, seeds, work)
        rows += [{"layers": "best", "ranking": name} | best, {"layers": "worst", "ranking": name} | worst]
        answers.append({"ranking": name} | {
            f"best_minus_{word}": spread([a - b for a, b in zip(best["scores"], other["scores"], strict=True)])
            for word, other in (("even", even), ("worst", worst))})
    for row in rows:
        print(f"{row['ranking'] or '-'}, {row['layers']} {row['kept_layers']}: {row['mean']:.2f}", flush=True)
    return {"rows": rows, "answers": answers}


def kept_scores(kept: Sequence[int], recipe: dict[str, Any], data: Path, seeds: Sequence[int],
                work: Path) -> dict[str, Any]:
    """Fine-tune the model with these layers only, once for each seed; a finished run is read from ``work``."""
    scores = []
    for seed in seeds:
        known = work / f"{'-'.join(map(str, kept))}-{seed}.json"
        asked = recipe | {"kept": list(kept), "seed": seed}
        stored = json.loads(known.read_text(encoding="utf-8")) if known.is_file() else {}
        if stored.get("asked") != asked:
            with tempfile.TemporaryDirectory() as scratch:
                small, out = Path(scratch) / "small", Path(scratch) / "out"
                shrink(recipe["model"]["name"], small, keep_layers=kept)
                config = load_config(TrainConfig, overrides=recipe | {
                    "model": recipe["model"] | {"name": str(small)},
                    "train": recipe["train"] | {"seed": seed, "tensorboard": False}})
                started = time.monotonic()
                train(config, out, progress=False)
                stored = {"asked": asked, "seconds": time.monotonic() - started,
                          "score": dev_score(SentenceEncoder.load(out), data / "senteval")}
            with atomic_file(known) as file:
                write_json(file, stored)
        scores.append(stored["score"])
    return {"kept_layers": list(kept), "scores": scores} | spread(scores)


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and 95 % interval."""
    mean, low, high = interval(values)
    return {"mean": mean, "low": low, "high": high}


def cell_minutes(out: Path) -> float:
    """Time of all runs of a grid, however often it was interrupted."""
    return sum(json.loads(file.read_text(encoding="utf-8"))["seconds"] for file in (out / "cells").glob("*.json")) / 60


if __name__ == "__main__":
    main()
