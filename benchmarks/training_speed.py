"""Training speed against sentence-transformers' own trainer: sentences a second, and quality after equal steps.

    python -m benchmarks.training_speed --data ../shared/data --model ../shared/models/distilbert-l6-h384-mlm

Unsupervised SimCSE, two views of each sentence, at batch 128 and length 32: `distilface.training.train` against
SentenceTransformerTrainer with MultipleNegativesRankingLoss, the same model, sentences, learning rate, schedule,
temperature and number of steps. Every run is a fresh process; sides and precisions take turns, and the medians count.

A run is one epoch over ``steps * 128`` sentences, so both sides train on the same text, short and long. Timed is the
training loop from its first step to its last, of both without loading and saving; sentence-transformers tokenises in
its loop, and distilface before it: that time is given apart.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.common import folder, write_result

BATCH, LENGTH, RATE, WARMUP, TEMPERATURE = 128, 32, 5e-5, 0.1, 0.05
PRECISIONS = ("fp32", "bf16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with sentences.txt.gz and senteval/")
    parser.add_argument("--model", required=True, help="the masked language model")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--run", help=argparse.SUPPRESS, choices=list(SIDES))
    parser.add_argument("--precision", help=argparse.SUPPRESS, choices=PRECISIONS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    data = folder(arguments.data, "data folder")
    if arguments.run:
        print(json.dumps(_run(arguments, data)))
        return
    runs = []
    for seed in range(arguments.rounds):
        for precision in PRECISIONS:
            for side in SIDES:
                runs.append(_fresh(arguments, side, precision, seed))
                print(runs[-1], flush=True)
    print(write_result("training_speed", {"steps": arguments.steps, "rounds": arguments.rounds, "batch_size": BATCH,
                                          "max_length": LENGTH, "rows": summary(runs), "runs": runs}))


def summary(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each side and precision, the peer in fp32 first; ratios are of medians, to the peer."""
    cells = {(run["side"], run["precision"]): [other for other in runs if (other["side"], other["precision"])
                                               == (run["side"], run["precision"])] for run in runs}
    speed = {cell: median(run["sentences_per_second"] for run in found) for cell, found in cells.items()}
    return [{"side": side, "precision": precision, "sentences_per_second": speed[side, precision],
             "to_peer": speed[side, precision] / speed["sentence-transformers", precision],
             "to_peer_fp32": speed[side, precision] / speed["sentence-transformers", "fp32"],
             "dev_before": mean(run["dev_before"] for run in cells[side, precision]),
             "dev_after": mean(run["dev_after"] for run in cells[side, precision]),
             "prepare_seconds": median(run["prepare_seconds"] for run in cells[side, precision])}
            for side in SIDES for precision in PRECISIONS if (side, precision) in cells]


def _fresh(arguments: argparse.Namespace, side: str, precision: str, seed: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.training_speed", "--data", arguments.data, "--model", arguments.model,
               "--steps", str(arguments.steps), "--run", side, "--precision", precision, "--seed", str(seed)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"side": side, "precision": precision, "seed": seed} | found


def _run(arguments: argparse.Namespace, data: Path) -> dict[str, float]:
    """Train once; how fast, and how good before and after."""
    from distilface.data import iter_texts
    from distilface.evaluation import dev_score, load_scored

    texts = list(islice((text for text in iter_texts(data / "sentences.txt.gz") if text.strip()),
                        arguments.steps * BATCH))
    pairs = load_scored(data / "senteval")
    with tempfile.TemporaryDirectory() as work:
        started = time.perf_counter()
        encoder, loop = SIDES[arguments.run](arguments, texts, Path(work))
        before = dev_score(encoder, pairs)
        prepared = time.perf_counter()
        seconds, trained = loop()
        total = time.perf_counter() - prepared
        return {"sentences_per_second": len(texts) / seconds, "prepare_seconds": total - seconds,
                "dev_before": before, "dev_after": dev_score(trained, pairs), "start_seconds": prepared - started}


Loop = Callable[[], tuple[float, Any]]


def _ours(arguments: argparse.Namespace, texts: Sequence[str], work: Path) -> tuple[Any, Loop]:
    from distilface.config import load_config
    from distilface.encoder import SentenceEncoder
    from distilface.training import TrainConfig, train

    (work / "text.txt").write_text("\n".join(texts), encoding="utf-8")
    config = load_config(TrainConfig, overrides={
        "model": {"name": arguments.model, "pooling": "mean_last"}, "data": {"path": str(work / "text.txt")},
        "loss": {"temperature": TEMPERATURE},
        "train": {"batch_size": BATCH, "max_length": LENGTH, "learning_rate": RATE, "warmup_ratio": WARMUP,
                  "precision": arguments.precision, "max_steps": arguments.steps, "seed": arguments.seed,
                  "tensorboard": False, "token_cache": False}})

    def loop() -> tuple[float, Any]:
        result = train(config, work / "out", progress=False)
        return result.seconds, SentenceEncoder.load(result.out, max_seq_length=LENGTH)

    return SentenceEncoder.load(arguments.model, "mean_last", LENGTH), loop


def _theirs(arguments: argparse.Namespace, texts: Sequence[str], work: Path) -> tuple[Any, Loop]:
    import datasets
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
        losses,
        models,
    )
    from transformers import TrainerCallback

    body = models.Transformer(arguments.model, max_seq_length=LENGTH, model_args={"dtype": "float32"})
    model = SentenceTransformer(modules=[body, models.Pooling(body.get_embedding_dimension(), "mean")],
                                device="cpu")
    asked = SentenceTransformerTrainingArguments(
        output_dir=str(work), max_steps=arguments.steps, per_device_train_batch_size=BATCH, learning_rate=RATE,
        warmup_steps=round(WARMUP * arguments.steps), bf16=arguments.precision == "bf16", use_cpu=True,
        seed=arguments.seed, save_strategy="no", report_to="none", disable_tqdm=True)
    times: list[float] = []

    class Clock(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            times.append(time.perf_counter())

        def on_train_end(self, *_: Any, **__: Any) -> None:
            times.append(time.perf_counter())

    trainer = SentenceTransformerTrainer(
        model, asked, datasets.Dataset.from_dict({"anchor": list(texts), "positive": list(texts)}),
        loss=losses.MultipleNegativesRankingLoss(model, scale=1 / TEMPERATURE), callbacks=[Clock()])

    class Normalised:
        def encode(self, sentences: Sequence[str]) -> Any:
            return model.encode(list(sentences), normalize_embeddings=True, show_progress_bar=False)

    def loop() -> tuple[float, Any]:
        trainer.train()
        return times[1] - times[0], Normalised()

    return Normalised(), loop


SIDES: dict[str, Callable[[argparse.Namespace, Sequence[str], Path], tuple[Any, Loop]]] = {
    "sentence-transformers": _theirs, "distilface": _ours}


if __name__ == "__main__":
    main()
