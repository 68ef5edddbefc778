"""`distilface distill`: from a configuration to a student's checkpoint, by the loop of `distilface train`."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

from distilface.distillation.config import DistillConfig, StudentConfig
from distilface.distillation.objective import DistillObjective
from distilface.distillation.teacher import cache_file, compute, identity, open_cached
from distilface.distillation.tokens import token_losses
from distilface.encoder import SentenceEncoder
from distilface.errors import GateError
from distilface.protocol import Vectors
from distilface.shrinking.layers import choose_layers, drop_layers
from distilface.training.distributed import barrier
from distilface.training.precision import resolve_device
from distilface.training.progress import counting
from distilface.training.run import Task, TrainResult, fit, load_encoder
from distilface.training.trainer import OnEvaluation


def distill(config: DistillConfig, out: Path, resume: bool = False, overwrite: bool = False,
            progress: bool = True, on_evaluation: OnEvaluation | None = None) -> TrainResult:
    """Train a student on a teacher's vectors and write it to ``out``.

    Teacher and student need not share a tokenizer: each is given the text itself. Everything else is as in
    `distilface.training.train`: batches, precision, selection by dev score, resuming, errors, processes; the resolved
    configuration is distill_config.yaml, the history distill_log.json. A projection serves training only.
    """
    known = identity(config.teacher)
    task = Task("distill", "student", partial(load_student, config.student),
                partial(_objective, config, known, progress), views=2 if config.loss.contrastive else 1,
                keep_texts=True, identity={"teacher": known}, on_evaluation=on_evaluation)
    return fit(config, task, out, resume, overwrite, progress)


def load_student(student: StudentConfig) -> SentenceEncoder:
    """The student before training: its layers dropped, everything else kept."""
    encoder = load_encoder(student)
    if student.layers is None and student.keep_layers is None:
        return encoder
    drop_layers(encoder.backbone, choose_layers(encoder.num_layers, student.keep_layers, student.layers))
    return encoder.rebuilt()


def _objective(config: DistillConfig, known: dict[str, Any], progress: bool, encoder: SentenceEncoder,
               texts: list[str] | None) -> DistillObjective:
    assert texts is not None
    tokens = token_losses(config, encoder, texts)
    vectors = _teacher_vectors(config, known, texts, progress) if config.loss.needs_vectors else None
    return DistillObjective.create(config.loss, vectors, encoder, texts, config.train.seed, tokens)


def _teacher_vectors(config: DistillConfig, known: dict[str, Any], texts: list[str], progress: bool) -> Vectors:
    """From the cache, or computed by process 0 while the others wait."""
    file = cache_file(config.teacher, known, texts)
    first = int(os.environ.get("RANK", "0")) == 0
    if first and open_cached(file, len(texts)) is None:
        with counting("teacher", progress) as report:
            compute(config.teacher, texts, file, config.data[0], resolve_device(config.train.device), report)
    barrier()
    vectors = open_cached(file, len(texts))
    if vectors is None:
        raise GateError(f"the teacher's vectors in {str(file)!r} can't be read back; is the disk full?")
    return vectors
