"""How near a small student comes to its teacher: STS and retrieval of teacher, start and student.

    python -m benchmarks.distill --data ../shared/data --models ../shared/models --run layers3

``layers3``, ``layers2`` and ``layers1`` are all-MiniLM-L6-v2 with layers dropped, taught by the whole one; ``mlm`` is
the masked language model in MODELS, taught by all-MiniLM-L6-v2; ``mpnet`` is all-MiniLM-L6-v2 taught by the model, or
by the file of vectors, that --teacher names. No labels: the text is a mix of sentences and captions. The student
is measured as it is and as static INT8; layer runs also how much faster that is than the whole model's. The weights of
the last step count; STS-B dev only watches; the test sets, and the captions of the last 2,000 pictures, which no
training text holds, only report.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common import folder, write_result
from benchmarks.held_out import HeldOut, measured, write_rows
from distilface.artifact import check_output
from distilface.caching import cache_folder
from distilface.config import load_config
from distilface.data import iter_texts
from distilface.distillation import DistillConfig, distill
from distilface.distillation.run import load_student
from distilface.encoder import SentenceEncoder
from distilface.errors import UserError
from distilface.exporter import export
from distilface.loading import MINILM, load_any, resolve_model
from distilface.quantization import quantize
from distilface.runtime import Encoder

TRAIN = {"batch_size": 128, "max_length": 48, "warmup_ratio": 0.05, "schedule": "cosine", "precision": "auto"}
LAYERS = {"loss": {"cosine": 1.0, "similarity": 1.0}, "train": TRAIN | {"learning_rate": 4e-4},
          "sentences": 80_000, "captions": 60_000}
RUNS: dict[str, dict[str, Any]] = {
    "layers3": LAYERS | {"student": {"keep_layers": [0, 3, 5], "dropout": 0.0}, "steps": 850},
    "layers2": LAYERS | {"student": {"keep_layers": [0, 5], "dropout": 0.0}, "steps": 850},
    "layers1": LAYERS | {"student": {"keep_layers": [5], "dropout": 0.0}, "steps": 1400},
    "mlm": {"loss": {"cosine": 1.0, "similarity": 1.0}, "train": TRAIN | {"learning_rate": 3e-4},
            "student": {"name": "distilbert-l6-h384-mlm", "pooling": "mean_last", "dropout": 0.0},
            "sentences": 80_000, "captions": 60_000, "steps": 3000},
    "mpnet": {"loss": {"cosine": 1.0, "similarity": 1.0, "projection": "pca"},
              "train": TRAIN | {"learning_rate": 2e-4}, "student": {"name": MINILM, "dropout": 0.0},
              "sentences": 80_000, "captions": 60_000, "steps": 3000},
}
LAYER_RUNS = ("layers3", "layers2", "layers1")
EVALUATIONS = 10
CALIBRATION_TEXTS, SPEED_TEXTS, SPEED_ROUNDS = 1000, 1000, 9


def main() -> None:
    arguments = parser().parse_args()
    data = folder(arguments.data, "data folder")
    recipe = RUNS[arguments.run]
    held = HeldOut(data)
    mixed = mix(data, held, _given(arguments.sentences, recipe["sentences"]),
                _given(arguments.captions, recipe["captions"]))
    if arguments.texts:
        print(write_rows(Path(arguments.texts), ((text,) for text in mixed)))
        return
    with tempfile.TemporaryDirectory() as work:
        text = write_rows(Path(work) / "text.txt", ((text,) for text in mixed))
        config = configured(arguments, recipe, data, text)
        if arguments.keep:
            check_output(Path(arguments.keep), False, [])
        out = Path(arguments.keep or Path(work) / "model")
        vectors = cache_folder("teacher", config.teacher.cache)
        before = set(vectors.glob("*.npy"))
        started = time.monotonic()
        result = distill(config, out)
        minutes = (time.monotonic() - started) / 60
        computed = set(vectors.glob("*.npy")) != before
        student = SentenceEncoder.load(out)
        found: dict[str, Any] = {"student": measured(student, data, held)}
        print(f"{arguments.run}: {minutes:.1f} minutes, {_summary(found['student'])}", flush=True)
        quantized, int8 = _static(out, mixed, Path(work) / "int8")
        found["int8-static"] = measured(quantized, data, held)
        if arguments.run in LAYER_RUNS:
            whole, _ = _static(Path(resolve_model(config.student.name)), mixed, Path(work) / "whole")
            int8 |= _faster(quantized, whole, mixed[-SPEED_TEXTS:])
    found["start"] = measured(load_student(config.student), data, held)
    if config.teacher.name is not None:
        found["teacher"] = measured(load_any(config.teacher.name, pooling=config.teacher.pooling), data, held)
    for name, values in found.items():
        print(f"{name}: {_summary(values)}")
    parameters = sum(parameter.numel() for name, parameter in student.backbone.named_parameters()
                     if not name.startswith("pooler."))
    print(write_result(f"distill_{arguments.name or arguments.run}", {
        "run": arguments.run, "layers": student.num_layers, "parameters": parameters,
        "teacher": config.teacher.model_dump(mode="json"), "student": config.student.model_dump(mode="json"),
        "loss": config.loss.model_dump(mode="json"), "train": config.train.model_dump(mode="json"),
        "texts": len(mixed), "steps": result.steps, "selected_step": result.selected_step, "dev": result.dev,
        "minutes": minutes, "minutes_include_teacher": computed, "training_minutes": result.seconds / 60,
        "examples_per_second": result.examples_per_second, "scores": found,
        "int8-static": int8}))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--data", required=True, help="folder with senteval/ and the training files")
    found.add_argument("--models", help="folder with distilbert-l6-h384-mlm (run mlm)")
    found.add_argument("--run", required=True, choices=list(RUNS))
    found.add_argument("--teacher", help=f"model, .npy or .parquet vectors (run mpnet); default {MINILM}")
    found.add_argument("--steps", type=int)
    found.add_argument("--sentences", type=int, help="how many of sentences.txt.gz")
    found.add_argument("--captions", type=int, help="how many of caption_groups.tsv.gz")
    found.add_argument("--set", action="append", default=[], help="section.key=value of the distillation")
    found.add_argument("--cache", help="folder of teacher vectors; an empty one counts their making, too")
    found.add_argument("--name", help="result file distill_NAME.json; default the run")
    found.add_argument("--keep", help="folder to write the student to")
    found.add_argument("--texts", help="only write the training text to this file, to encode it with a teacher")
    return found


def configured(arguments: argparse.Namespace, recipe: dict[str, Any], data: Path, text: Path) -> DistillConfig:
    """The run's settings, the command line's having the last word."""
    student = dict(recipe["student"])
    if arguments.run == "mlm":
        if arguments.models is None:
            raise UserError("run mlm needs --models FOLDER, which holds distilbert-l6-h384-mlm")
        student["name"] = str(folder(arguments.models, "models folder") / student["name"])
    if arguments.run == "mpnet" and arguments.teacher is None:
        raise UserError("run mpnet needs --teacher: all-mpnet-base-v2, or a file of its vectors of the texts that "
                        "--texts writes")
    teacher = arguments.teacher or MINILM
    key = "vectors" if teacher.endswith((".npy", ".parquet")) else "name"
    if key == "vectors":
        student.setdefault("name", MINILM)
    steps = _given(arguments.steps, recipe["steps"])
    return load_config(DistillConfig, sets=arguments.set, overrides={
        "teacher": {key: teacher, "cache": arguments.cache}, "student": student, "loss": recipe["loss"],
        "data": {"path": str(text), "kind": "sentences"}, "train": recipe["train"] | {"max_steps": steps},
        "eval": {"sts": str(data / "senteval"), "every_steps": max(1, steps // EVALUATIONS), "keep": "last"}})


def mix(data: Path, held: HeldOut, sentences: int, captions: int) -> list[str]:
    """The training text: the first sentences and the first captions, each text once, in random order."""
    plain = [row[0] for row in held.spared(
        (text,) for text in islice(iter_texts(data / "sentences.txt.gz"), sentences) if text.strip())]
    described = islice((text for group in held.training for text in group), captions)
    mixed = list(dict.fromkeys([*plain, *described]))
    return [mixed[index] for index in np.random.default_rng(0).permutation(len(mixed))]


def _static(checkpoint: Path, texts: list[str], folder: Path) -> tuple[Encoder, dict[str, Any]]:
    """The checkpoint as a static INT8 graph, and what its manifest says of it."""
    export(checkpoint, folder)
    bundle = quantize(folder, "static", texts[:CALIBRATION_TEXTS], min_cosine=-1.0).bundle  # the scores are the judge
    record = bundle.variant("int8-static")
    facts = {"size": record.size, "integer_matmuls": record.integer_matmuls, "kept_float": record.float_matmuls}
    return Encoder.load(bundle.folder, "int8-static"), facts


def _faster(student: Encoder, whole: Encoder, texts: list[str]) -> dict[str, Any]:
    """How many times as many sentences a second: the two take turns, and the median of the rounds' ratios counts."""
    ratios = []
    for encoder in (student, whole):
        encoder.encode(texts)
    for _ in range(SPEED_ROUNDS):
        seconds = []
        for encoder in (student, whole):
            start = time.perf_counter()
            encoder.encode(texts)
            seconds.append(time.perf_counter() - start)
        ratios.append(seconds[1] / seconds[0])
    return {"times_as_fast": median(ratios), "ratios": ratios}


def _given(value: int | None, default: int) -> int:
    return default if value is None else value


def _summary(values: dict[str, Any]) -> str:
    return f"avg7 {values['avg7']:.2f}, recall@1 {values['recall@1']:.2f}, recall@10 {values['recall@10']:.2f}"


if __name__ == "__main__":
    main()
