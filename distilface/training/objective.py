"""What a run minimises: from the vectors of a whole batch to one number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from distilface.losses import angle, at_dimensions, cosent, info_nce
from distilface.training.config import LossConfig

SCORED = {"cosent": cosent, "angle": angle}


class Objective(Protocol):
    """The loss of a batch, and what it needs besides the vectors."""

    @property
    def config(self) -> LossConfig:
        """Temperatures, for messages."""

    @property
    def projection(self) -> nn.Module | None:
        """A trainable map of the vectors that serves the loss only; its output is appended to each vector."""

    def inputs(self, columns: NDArray[np.int64], step: int) -> dict[str, Tensor]:
        """More entries for batch number ``step``; ``columns`` ``[n, columns]`` numbers its rows over all processes."""

    def __call__(self, columns: Sequence[Tensor], batch: Mapping[str, Any]) -> Tensor:
        """The loss of ``columns``, each ``[n, d]`` over all processes, anchors first; a float32 scalar.

        Args:
            batch: an item of `distilface.training.batches.MicroBatches`.
        """


class ContrastiveObjective:
    """InfoNCE, or for scored pairs CoSENT or AnglE, at every Matryoshka dimension."""

    projection = None

    def __init__(self, config: LossConfig) -> None:
        self.config = config

    def inputs(self, columns: NDArray[np.int64], step: int) -> dict[str, Tensor]:
        return {}

    def __call__(self, columns: Sequence[Tensor], batch: Mapping[str, Any]) -> Tensor:
        return at_dimensions(partial(self._loss, batch), columns, self.config.matryoshka,
                             self.config.matryoshka_weights)

    def _loss(self, batch: Mapping[str, Any], columns: Sequence[Tensor]) -> Tensor:
        config = self.config
        if "scores" in batch:
            return SCORED[config.scored](columns[0], columns[1], batch["scores"],
                                         temperature=config.scored_temperature)
        return info_nce(columns[0], columns[1], columns[2] if len(columns) > 2 else None,
                        temperature=config.temperature, exclude=batch["exclude"], symmetric=config.symmetric,
                        hard_negative_weight=config.hard_negative_weight)
