"""The losses of distillation over one batch of the training package."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distilface.distillation.config import VECTOR_LOSSES, DistillLossConfig
from distilface.distillation.projection import Matrix, Projection, fitted_projection, pooled_vectors, reduction, unit
from distilface.distillation.tokens import Appended, TokenLosses
from distilface.encoder import SentenceEncoder
from distilface.errors import UserError
from distilface.losses import (
    at_dimensions,
    cosine_distance,
    distribution_cross_entropy,
    info_nce,
    similarity_mse,
    squared_distance,
)
from distilface.protocol import Vectors
from distilface.training.objective import ContrastiveObjective

logger = logging.getLogger(__name__)

FIT_TEXTS = 4096
"""Texts that a projection is fitted on before training."""


class DistillObjective:
    """The weighted sum of the losses of a `DistillLossConfig`.

    The papers keep a first-in-first-out queue of the teacher's vectors because they compute them as they go. Here all
    are on disk, so the queue is drawn anew from all training texts in every step, as a function of seed and step: there
    is nothing to fill up at the start, and nothing to restore when a run is resumed.

    Args:
        vectors: the teacher's, ``[rows, d_t]``, one for each row of `TokenRows`; None where no loss needs them.
        width: of the student's vectors.
        reduce: a map ``[d_t, width]`` of the teacher's vectors.
        projection: a map of the student's vectors to ``d_t``, trained along.
        tokens: the losses on the states of tokens.
    """

    def __init__(self, config: DistillLossConfig, vectors: Vectors | None, width: int, seed: int,
                 reduce: Matrix | None = None, projection: Projection | None = None,
                 tokens: TokenLosses | None = None) -> None:
        self.config = config
        self.projection: nn.Module | None = projection if tokens is None else Appended(projection, tokens)
        self._projected = projection is not None
        self._token_losses = () if tokens is None else tokens.names
        self._vectors = vectors
        self._width = width
        self._seed = seed
        self._reduce = reduce
        self._contrastive = ContrastiveObjective(config)
        queued = vectors is not None and (config.distribution or config.teacher_contrast)
        self._queue = min(config.queue, len(vectors)) if vectors is not None and queued else 0

    @classmethod
    def create(cls, config: DistillLossConfig, vectors: Vectors | None, encoder: SentenceEncoder,
               texts: Sequence[str], seed: int, tokens: TokenLosses | None = None) -> DistillObjective:
        """With the projection that widths and configuration ask for, fitted on some of ``texts``.

        Raises:
            UserError: for widths that the asked-for projection can't bring together.
        """
        ours = encoder.pooler.dim
        used = [name for name in VECTOR_LOSSES if getattr(config, name)]
        if not used or vectors is None:
            return cls(config, vectors, ours, seed, tokens=tokens)
        theirs = vectors.shape[1]
        kind = config.projection or ("learned" if ours > theirs else "pca" if ours < theirs or config.matryoshka
                                     else "none")
        if kind == "none" and ours != theirs:
            raise UserError(f"loss.projection is none, but the student's vectors have {ours} dimensions and the "
                            f"teacher's {theirs}, so loss.{used[0]} can't compare them; use pca or learned")
        if kind == "pca" and ours > theirs:
            raise UserError(f"loss.projection pca reduces the teacher's {theirs} dimensions to the student's {ours}, "
                            "which are more; use learned")
        if kind == "none":
            return cls(config, vectors, ours, seed, tokens=tokens)
        chosen = np.random.default_rng(seed).permutation(len(texts))[:FIT_TEXTS]
        chosen.sort()
        before = pooled_vectors(encoder, [texts[index] for index in chosen])
        teacher = unit(vectors[chosen])
        if kind == "learned":
            projection = fitted_projection(before, teacher, config.matryoshka)
            return cls(config, vectors, ours, seed, projection=projection, tokens=tokens)
        reduce, kept = reduction(teacher, unit(before), config.matryoshka)
        if ours < theirs:
            logger.info("the teacher's %d dimensions are reduced to %d, which keep %.1f %% of its vectors' squared "
                        "length", theirs, ours, 100 * kept)
        return cls(config, vectors, ours, seed, reduce=reduce, tokens=tokens)

    def inputs(self, columns: NDArray[np.int64], step: int) -> dict[str, Tensor]:
        """``teacher`` ``[columns * n, d]``, ``queue`` ``[q, d]`` and ``own`` bool ``[columns * n, columns * n + q]``.

        ``own`` marks the teacher vectors that are no negatives of a row: the same text, and anchor and positive of one
        example.
        """
        if self._vectors is None:
            return {}
        count = len(columns)
        rows = columns.T.ravel()
        item = {"teacher": torch.from_numpy(self._of_teacher(rows))}
        drawn = np.empty(0, dtype=np.int64)
        if self._queue:
            random = np.random.default_rng([self._seed, step])
            drawn = np.sort(random.choice(len(self._vectors), self._queue, replace=False, shuffle=False))
            item["queue"] = torch.from_numpy(self._of_teacher(drawn))
        if self.config.teacher_contrast:
            own = rows[:, None] == np.concatenate([rows, drawn])
            for first in range(min(2, columns.shape[1])):
                for second in range(min(2, columns.shape[1])):
                    index = np.arange(count)
                    own[first * count + index, second * count + index] = True
            item["own"] = torch.from_numpy(own)
        return item

    def _of_teacher(self, rows: NDArray[np.int64]) -> Matrix:
        assert self._vectors is not None
        vectors = unit(self._vectors[rows])
        return vectors if self._reduce is None else unit(vectors @ self._reduce)

    def __call__(self, columns: Sequence[Tensor], batch: Mapping[str, Any]) -> Tensor:
        """See `distilface.training.objective.Objective`."""
        config = self.config
        joined = torch.cat(list(columns))
        student = joined[:, : self._width]
        parts = [weight * part for weight, part in self._vector_parts(joined, batch)]
        if config.similarity:
            parts.append(config.similarity * at_dimensions(
                lambda cut: similarity_mse(cut[0], batch["teacher"]), [student], config.matryoshka,
                config.matryoshka_weights))
        if config.contrastive:
            own = [column[:, : self._width] for column in columns]
            parts.append(config.contrastive * self._contrastive(own, batch))
        costs = joined[:, joined.shape[1] - len(self._token_losses) :].float()
        parts.extend(getattr(config, name) * costs[:, index].mean() for index, name in enumerate(self._token_losses))
        return torch.stack(parts).sum()

    def _vector_parts(self, joined: Tensor, batch: Mapping[str, Any]) -> Iterator[tuple[float, Tensor]]:
        """Weight and value of each loss that sets a vector against the teacher's, at every Matryoshka dimension."""
        config = self.config
        if not any(getattr(config, name) for name in VECTOR_LOSSES):
            return
        dims = config.matryoshka or (self._width,)
        for index, (dim, weight) in enumerate(zip(dims, config.matryoshka_weights or [1.0] * len(dims), strict=True)):
            teacher, queue = batch["teacher"], batch.get("queue")
            if self._projected:
                start = self._width + index * teacher.shape[1]
                mapped = joined[:, start : start + teacher.shape[1]]
            else:
                mapped, teacher = joined[:, :dim], teacher[:, :dim]
                queue = None if queue is None else queue[:, :dim]
            if config.cosine:
                yield weight * config.cosine, cosine_distance(mapped, teacher)
            if config.mse:
                yield weight * config.mse, squared_distance(mapped, teacher)
            if config.distribution:
                assert queue is not None
                yield weight * config.distribution, distribution_cross_entropy(
                    mapped, teacher, queue, temperature=config.distribution_temperature,
                    teacher_temperature=config.distribution_teacher_temperature)
            if config.teacher_contrast:
                yield weight * config.teacher_contrast, info_nce(
                    mapped, teacher, queue, temperature=config.temperature, exclude=batch["own"])
