"""Token states to one vector: the poolers of the DistilFACE paper (its table of pooling methods) as torch modules.

A pooler takes the hidden states of all ``L + 1`` layers (index 0 is the embedding output) and the attention mask.
Layers are averaged (or concatenated) first, then tokens are pooled over the mask; for means the order is the same.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from distilface.errors import UserError

LAYER_SETS: dict[str, tuple[int, ...] | None] = {
    "last": (-1,),
    "second_last": (-2,),
    "first_last": (1, -1),
    "last2": (-1, -2),
    "last4": (-1, -2, -3, -4),
    "all": None,
}
POOLINGS = ("cls", *(f"{kind}_{layers}" for kind in ("mean", "max") for layers in LAYER_SETS), "concat_last4")
_ALIASES = {"mean": "mean_last", "max": "max_last", **{layers: f"mean_{layers}" for layers in LAYER_SETS}}


def canonical(name: str) -> str:
    """The full name of a pooling: ``mean`` is ``mean_last``, ``last4`` is ``mean_last4``.

    Raises:
        UserError: for a name that is neither a pooling nor an alias.
    """
    resolved = _ALIASES.get(name, name)
    if resolved not in POOLINGS:
        near = difflib.get_close_matches(name, (*POOLINGS, *_ALIASES), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(f"unknown pooling {name!r}; {hint}allowed: {', '.join(POOLINGS)}")
    return resolved


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
        concatenate: put the layers side by side (the last one first) instead of averaging them.
    """

    def __init__(self, kind: str, layers: tuple[int, ...] | None, concatenate: bool = False) -> None:
        super().__init__()
        self.kind = kind
        self.layers = layers
        self.concatenate = concatenate

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


def build_pooler(name: str, num_layers: int) -> Pooler:
    """The module behind a pooling name.

    Raises:
        UserError: for an unknown name, or one that needs more layers than the encoder has.
    """
    name = canonical(name)
    if name == "cls":
        return Pooler("cls", LAYER_SETS["last"])
    kind, _, layer_set = name.partition("_")
    layers = LAYER_SETS[layer_set]
    needed = 1 if layers is None else max(abs(index) for index in layers)
    if needed > num_layers + 1:
        raise UserError(f"pooling {name!r} reads {needed} layers; this encoder has {num_layers} and the embedding "
                        "output: use mean_last, mean_last2 or mean_all")
    return Pooler("mean" if kind == "concat" else kind, layers, concatenate=kind == "concat")


def pooled_width(name: str, hidden_size: int) -> int:
    """The width of what the pooler returns."""
    return 4 * hidden_size if canonical(name) == "concat_last4" else hidden_size
