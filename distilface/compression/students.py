"""Fewer layers, taught by the whole model: which layers stay, and how long each student may learn."""

from __future__ import annotations

import copy
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distilface.artifact import atomic_file
from distilface.compression.space import Base
from distilface.compression.workshop import Say, Workshop
from distilface.config import dump_config
from distilface.encoder import SentenceEncoder
from distilface.errors import UserError
from distilface.evaluation import StsPairs, dev_score
from distilface.shrinking.layers import drop_layers
from distilface.tokenizer import write_json

DEPTHS = (2 / 3, 1 / 2, 1 / 3, 1 / 6)
"""Shares of the layers that are tried."""
BATCH_SIZE = 128
MAX_LENGTH = 48
TEACHER_SHARE = 0.3
"""Share of the minutes that the teacher's vectors may take."""
TRIAL_STEPS = 5
CHOICE_PAIRS = 500
LEARNING_RATE_WIDTH = 0.1536
"""Learning rate times width: 4e-4 at 384, 2e-4 at 768."""


def depths(layers: int) -> list[int]:
    """How many layers are tried, from many to few."""
    return sorted({max(1, round(layers * share)) for share in DEPTHS} - {layers}, reverse=True)


def kept_layers(model: str, counts: Sequence[int], dev: StsPairs, say: Say) -> dict[int, tuple[int, ...]]:
    """The layers to keep, by how many: one after the other goes whose loss hurts the dev pairs least, untrained."""
    encoder = SentenceEncoder.load(model)
    pairs = StsPairs(dev.name, dev.sentences1[:CHOICE_PAIRS], dev.sentences2[:CHOICE_PAIRS], dev.gold[:CHOICE_PAIRS])
    whole = encoder.backbone

    def score(kept: tuple[int, ...]) -> float:
        backbone = copy.deepcopy(whole)
        drop_layers(backbone, kept)
        return dev_score(encoder.rebuilt(backbone), pairs)

    kept = tuple(range(encoder.num_layers))
    found = {}
    while len(kept) > min(counts):
        say(f"choosing which of {len(kept)} layers to drop")
        kept = max((tuple(layer for layer in kept if layer != dropped) for dropped in kept), key=score)
        found[len(kept)] = kept
    return {count: found[count] for count in counts}


@dataclass(frozen=True)
class Lessons:
    """What the minutes are spent on: distinct texts of the calibration file, and steps of each student."""

    texts: int
    steps: dict[str, int]

    @classmethod
    def planned(cls, workshop: Workshop, bases: Sequence[Base], minutes: float, say: Say) -> Lessons:
        """Measure how fast teacher and first student are, or read what an interrupted search planned."""
        file = workshop.folder / "work" / "lessons.json"
        slugs = [base.slug for base in bases]
        if file.is_file():
            values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            if list(values["steps"]) == slugs and values["minutes"] == minutes:
                return cls(values["texts"], values["steps"])
        available = len(workshop.texts)
        if available < BATCH_SIZE * TRIAL_STEPS:
            raise UserError(f"--minutes trains students on the calibration texts, and {workshop.calibration!r} holds "
                            f"{available}; give at least {BATCH_SIZE * TRIAL_STEPS}, better 50,000")
        say("timing teacher and student")
        teacher = workshop.teacher()
        sample = workshop.texts[:512]
        teacher.encode(sample[:64])
        start = time.perf_counter()
        teacher.encode(sample)
        teacher_rate = len(sample) / (time.perf_counter() - start)
        with tempfile.TemporaryDirectory() as work:
            trial = _config(workshop, bases[0], BATCH_SIZE * TRIAL_STEPS, TRIAL_STEPS, evaluated=False)
            student_rate = _distill(trial, Path(work) / "trial").examples_per_second
        seconds = 60 * minutes
        texts = int(min(available, max(BATCH_SIZE * TRIAL_STEPS, TEACHER_SHARE * seconds * teacher_rate)))
        each = (seconds - texts / teacher_rate) / len(bases)
        deepest = len(bases[0].layers or ())
        steps = {base.slug: max(TRIAL_STEPS, int(each * student_rate * deepest / len(base.layers or ()) / BATCH_SIZE))
                 for base in bases}
        with atomic_file(file) as temporary:
            write_json(temporary, {"minutes": minutes, "texts": texts, "steps": steps})
        return cls(texts, steps)


def teach(workshop: Workshop, base: Base, lessons: Lessons, say: Say) -> None:
    """Train the student of ``base``, or go on where an interrupted search stopped."""
    out = workshop.student(base)
    if out.exists():
        return
    say(f"{base.words}: learning, {lessons.steps[base.slug]} steps")
    workshop.shrunk(base, say)
    config = _config(workshop, base, lessons.texts, lessons.steps[base.slug])
    with atomic_file(out.with_name("student.yaml")) as temporary:
        temporary.write_text(dump_config(config), encoding="utf-8")
    _distill(config, out)


def _config(workshop: Workshop, base: Base, texts: int, steps: int, evaluated: bool = True) -> Any:
    from distilface.distillation import DistillConfig

    shrunk = workshop.shrunk(base)
    student = SentenceEncoder.load(shrunk)
    return DistillConfig.model_validate({
        "teacher": {"name": str(workshop.bundle(Base()).folder)},
        "student": {"name": str(shrunk), "dropout": 0.0},
        "loss": {"cosine": 1.0, "similarity": 1.0},
        "data": {"path": workshop.calibration, "kind": "sentences", "limit": texts},
        "train": {"learning_rate": LEARNING_RATE_WIDTH / student.backbone.config.hidden_size,
                  "batch_size": BATCH_SIZE, "max_length": min(MAX_LENGTH, student.max_seq_length), "max_steps": steps,
                  "warmup_ratio": 0.05, "schedule": "cosine", "precision": "auto"},
        "eval": {"sts": workshop.dev_source, "every_steps": max(1, steps // 10), "keep": "last"} if evaluated else {}})


def _distill(config: Any, out: Path) -> Any:
    from distilface.distillation import distill

    return distill(config, out, resume=out.with_name(f"{out.name}.work").exists(), progress=False)
