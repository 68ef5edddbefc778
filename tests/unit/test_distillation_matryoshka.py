"""Matryoshka dimensions in distillation: whose first dimensions are told what."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from distilface.distillation.config import DistillLossConfig
from distilface.distillation.objective import DistillObjective
from distilface.distillation.projection import Projection, reduction, unit
from distilface.encoder import SentenceEncoder
from distilface.losses import cosine_distance, info_nce
from distilface.training.trainer import PooledEncoder
from tests.tiny import CORPUS


def test_the_first_dimensions_are_the_best_ones_for_every_cut() -> None:
    random = np.random.default_rng(0)
    teacher = unit(random.normal(size=(300, 9)) * np.arange(9, 0, -1))
    student = unit(random.normal(size=(300, 6)))
    reduce, kept = reduction(teacher, student, cuts=(6, 2, 3))
    np.testing.assert_allclose(reduce.T @ reduce, np.eye(6), atol=1e-5)
    energy = np.linalg.svd(teacher, compute_uv=False) ** 2
    for cut in (2, 3, 6):  # Eckart and Young: no other projection to so many dimensions keeps more
        assert ((teacher @ reduce)[:, :cut] ** 2).sum() == pytest.approx(energy[:cut].sum(), rel=1e-4)
    assert kept == pytest.approx(energy[:6].sum() / energy.sum(), rel=1e-5)
    free, _ = reduction(teacher, student)
    plain = np.linalg.eigh(teacher.T @ teacher)[1][:, ::-1][:, :6]
    agreement = [float(((teacher @ turn) * student).sum()) for turn in (free, reduce, plain)]
    assert agreement[0] > agreement[1] > agreement[2]  # turned towards the student as far as the cuts allow


def test_a_projection_of_first_dimensions() -> None:
    projection = Projection(3, 2, cuts=(3, 1))
    vectors = torch.randn(4, 3)
    whole, first = projection(vectors).split(2, dim=1)
    torch.testing.assert_close(whole, vectors @ projection.weight.T)
    torch.testing.assert_close(first, vectors[:, :1] @ projection.weight[:, :1].T)
    torch.testing.assert_close(Projection(3, 2)(vectors).shape, torch.Size([4, 2]))


@pytest.mark.parametrize(("theirs", "projection", "expected"), [
    (32, None, "pca"), (48, None, "pca"), (32, "none", "none"), (16, None, "learned"), (48, "learned", "learned"),
])
def test_what_the_first_dimensions_are_told(checkpoint: Path, theirs: int, projection: str | None,
                                            expected: str) -> None:
    vectors = np.random.default_rng(0).normal(size=(len(CORPUS), theirs)).astype(np.float32)
    config = DistillLossConfig(cosine=1, teacher_contrast=0.5, queue=6, matryoshka=(32, 8),
                               matryoshka_weights=(1.0, 0.25), projection=projection)  # type: ignore[arg-type]
    encoder = SentenceEncoder.load(checkpoint)
    objective = DistillObjective.create(config, vectors, encoder, CORPUS, seed=0)
    rows = np.array([[0], [3], [4]])
    batch = objective.inputs(rows, 0)
    feed = encoder.tokenizer.pad(encoder.tokenizer.encode_batch([CORPUS[row] for row in rows[:, 0]]))
    out = PooledEncoder(encoder, objective.projection)(*(torch.from_numpy(feed[n]) for n in ("input_ids",
                                                                                            "attention_mask")))
    student, teacher, queue = out[:, :32], batch["teacher"], batch["queue"]
    assert (objective.projection is not None) is (expected == "learned")
    by_hand = torch.zeros(())
    for dim, weight in ((32, 1.0), (8, 0.25)):
        if isinstance(objective.projection, Projection):
            ours, its, rest = student[:, :dim] @ objective.projection.weight[:, :dim].T, teacher, queue
        else:
            ours, its, rest = student[:, :dim], teacher[:, :dim], queue[:, :dim]
        by_hand = by_hand + weight * (cosine_distance(ours, its) + 0.5 * info_nce(
            ours, its, rest, temperature=0.05, exclude=batch["own"]))
    assert objective([out], batch).item() == pytest.approx(by_hand.item(), rel=1e-5)
    if expected == "none":
        np.testing.assert_allclose(teacher, unit(vectors[[0, 3, 4]]), atol=1e-6)
