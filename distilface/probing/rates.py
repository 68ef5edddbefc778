"""Some layers learn faster: the paper's control for re-initialised layers, which have further to go."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from distilface.encoder import SentenceEncoder
from distilface.probing.reinit import layers_in
from distilface.training.trainer import ContrastiveTrainer


def scale_rates(optimizer: Optimizer, parameters: Collection[nn.Parameter], factor: float) -> None:
    """Move ``parameters`` into groups of their own with ``factor`` times the learning rate, in place.

    To be called before a schedule is made, which then scales every group alike.
    """
    chosen = {id(parameter) for parameter in parameters}
    groups = []
    for group in optimizer.param_groups:
        slow = [parameter for parameter in group["params"] if id(parameter) not in chosen]
        fast = [parameter for parameter in group["params"] if id(parameter) in chosen]
        groups += [group | {"params": slow}] if slow else []
        groups += [group | {"params": fast, "lr": factor * group["lr"]}] if fast else []
    optimizer.param_groups[:] = groups


class ProbeTrainer(ContrastiveTrainer):
    """A `ContrastiveTrainer` some of whose layers learn at ``factor`` times the learning rate, without checkpoints."""

    def __init__(self, encoder: SentenceEncoder, *args: Any, layers: Sequence[int], factor: float,
                 **kwargs: Any) -> None:
        super().__init__(encoder, *args, **kwargs)
        self._fast = fast_parameters(encoder, layers)
        self._factor = factor

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Optimizer:
        optimizer: Optimizer = super().create_optimizer(*args, **kwargs)
        scale_rates(optimizer, self._fast, self._factor)
        return optimizer

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """A cell is too short to be worth resuming; its optimizer's state would take longer to write than a step."""


def fast_parameters(encoder: SentenceEncoder, layers: Sequence[int]) -> list[nn.Parameter]:
    """The parameters of these layers."""
    every = layers_in(encoder.backbone)
    return [parameter for index in layers for parameter in every[index].parameters()]
