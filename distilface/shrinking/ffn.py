"""Narrower FFNs: the least important units of every layer go, their rows and columns with them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from distilface.encoder import SentenceEncoder
from distilface.errors import UserError
from distilface.shrinking.activations import watch
from distilface.shrinking.architecture import family_of, layers_of


class UnitStats:
    """Mean and variance of the activation of every FFN unit over the unmasked tokens, ``[units]`` each, float64."""

    def __init__(self, units: int) -> None:
        self.tokens = 0
        self.total = torch.zeros(units, dtype=torch.float64)
        self.squares = torch.zeros(units, dtype=torch.float64)

    def add(self, states: Tensor) -> None:
        """Take in activations ``[tokens, units]``."""
        wide = states.double()
        self.tokens += len(states)
        self.total += wide.sum(dim=0)
        self.squares += wide.square().sum(dim=0)

    @property
    def mean(self) -> Tensor:
        return self.total / self.tokens

    @property
    def variance(self) -> Tensor:
        return (self.squares / self.tokens - self.mean.square()).clamp(min=0)


def prune_ffn(encoder: SentenceEncoder, units: int, texts: Sequence[str] | None = None) -> None:
    """Keep ``units`` FFN units in every layer of ``encoder``, in place.

    With ``texts``: the score of a unit is ``Var(a) ||w_out||^2``, the squared error that freezing it causes, and its
    mean output moves into the bias (An et al., "Fluctuation-based adaptive structured pruning", AAAI 2024).
    Without: ``||w_in|| ||w_out||``, the magnitude of its weights (after Li et al., "Pruning filters for efficient
    ConvNets", ICLR 2017).

    Raises:
        UserError: for a width that is not smaller, or an architecture laid out otherwise.
    """
    backbone = encoder.backbone
    family = family_of(backbone, "pruning FFN units")
    width = int(getattr(backbone.config, family.width_key))
    if not 1 <= units < width:
        raise UserError(f"ffn={units} is out of range; the FFNs have {width} units, keep 1 to {width - 1} of them")
    stats = None if texts is None else unit_stats(encoder, texts)
    with torch.no_grad():
        for index, layer in enumerate(layers_of(backbone, family)):
            up: nn.Linear = layer.get_submodule(family.up)  # type: ignore[assignment]
            down: nn.Linear = layer.get_submodule(family.down)  # type: ignore[assignment]
            if stats is None:
                scores = torch.cat([up.weight, up.bias[:, None]], dim=1).norm(dim=1) * down.weight.norm(dim=0)
            else:
                scores = stats[index].variance * down.weight.double().square().sum(dim=0)
            kept = scores.argsort(descending=True, stable=True)[:units].sort().values
            if stats is not None:
                gone = torch.ones(width, dtype=torch.bool)
                gone[kept] = False
                down.bias += (down.weight.double()[:, gone] @ stats[index].mean[gone]).float()
            narrow(up, kept, dim=0)
            narrow(down, kept, dim=1)
    setattr(backbone.config, family.width_key, units)


def unit_stats(encoder: SentenceEncoder, texts: Sequence[str]) -> list[UnitStats]:
    """What the FFN units of every layer do on ``texts``; padding is left out."""
    family = family_of(encoder.backbone, "pruning FFN units")
    units = int(getattr(encoder.backbone.config, family.width_key))
    stats = [UnitStats(units) for _ in layers_of(encoder.backbone, family)]
    watch(encoder, family.down, texts, lambda index, states: stats[index].add(states))
    return stats


def narrow(linear: nn.Linear, kept: Tensor, dim: int) -> None:
    """Keep some outputs (dim 0) or inputs (dim 1) of a linear layer, in place."""
    linear.weight = nn.Parameter(linear.weight.index_select(dim, kept).contiguous())
    if dim == 0:
        linear.bias = nn.Parameter(linear.bias[kept].contiguous())
    linear.out_features, linear.in_features = linear.weight.shape
