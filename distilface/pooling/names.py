"""The names of the pooling methods."""

from __future__ import annotations

import difflib

from distilface.errors import UserError

LAYER_SETS: dict[str, tuple[int, ...] | None] = {
    "last": (-1,),
    "second_last": (-2,),
    "first_last": (1, -1),
    "last2": (-1, -2),
    "last4": (-1, -2, -3, -4),
    "all": None,
}
LAYER_ATTENTION = "layer_attention"
TRAINED_POOLINGS = (LAYER_ATTENTION,)
"""Poolings with weights: meaningless before they are trained."""
POOLINGS = ("cls", *(f"{kind}_{layers}" for kind in ("mean", "max") for layers in LAYER_SETS), "concat_last4",
            *TRAINED_POOLINGS)
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
