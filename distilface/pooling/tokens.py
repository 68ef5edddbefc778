"""Poolers without weights. Layers are averaged (or concatenated) first, then tokens are pooled over the mask."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def masked_mean(states: Tensor, mask: Tensor) -> Tensor:
    """Mean over the unmasked tokens. ``[b, s, h], [b, s] -> [b, h]``."""
    weights = mask.unsqueeze(-1).to(states.dtype)
    return (states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)


def masked_max(states: Tensor, mask: Tensor) -> Tensor:
    """Largest value of each channel over the unmasked tokens. ``[b, s, h], [b, s] -> [b, h]``."""
    hidden = mask.unsqueeze(-1) == 0
    return states.masked_fill(hidden, torch.finfo(states.dtype).min).max(dim=1).values


class Pooler(nn.Module):
    """Cls, mean or max over the token states of some layers.

    Args:
        kind: ``"cls"``, ``"mean"`` or ``"max"``: how tokens become one vector.
        layers: indices into the hidden states; ``None`` means every one, the embedding output included.
        hidden_size: width of the hidden states.
        concatenate: put the layers side by side (the last one first) instead of averaging them.
    """

    def __init__(self, kind: str, layers: tuple[int, ...] | None, hidden_size: int, concatenate: bool = False) -> None:
        super().__init__()
        self.kind = kind
        self.layers = layers
        self.concatenate = concatenate
        self.dim = hidden_size * len(layers or ()) if concatenate else hidden_size
        self.states_dim = self.dim
        self.options: dict[str, str] = {}

    def token_states(self, hidden_states: Sequence[Tensor]) -> Tensor:
        """The states that tokens are pooled from, ``[b, s, dim]``.

        An exported graph returns these as its first output, so that a consumer that does its own masked mean over the
        first output gets the trained vector from every mean pooler, whichever layers it reads.
        """
        chosen = hidden_states if self.layers is None else [hidden_states[index] for index in self.layers]
        if self.concatenate:
            return torch.cat(list(chosen), dim=-1)
        states = chosen[0]
        for state in chosen[1:]:
            states = states + state
        return states / len(chosen) if len(chosen) > 1 else states

    def forward(self, hidden_states: Sequence[Tensor], attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Token states ``[b, s, dim]`` and the pooled, not normalised vector ``[b, dim]``."""
        states = self.token_states(hidden_states)
        if self.kind == "cls":
            return states, states[:, 0]
        reduce = masked_mean if self.kind == "mean" else masked_max
        return states, reduce(states, attention_mask)
