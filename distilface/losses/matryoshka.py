"""A loss on the first dimensions as well, so that a vector can be cut (Kusupati et al., Matryoshka, NeurIPS 2022)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor


def at_dimensions(loss: Callable[[Sequence[Tensor]], Tensor], columns: Sequence[Tensor], dims: Sequence[int],
                  weights: Sequence[float] | None = None) -> Tensor:
    """The weighted sum of ``loss`` over ``columns`` cut to each of ``dims``; uncut where there are none.

    Args:
        columns: tensors ``[n, d]``; the loss normalises what it gets.
        dims: how many of the first dimensions; the full width counts only when it is among them.
        weights: one for each of ``dims``; 1 each by default.
    """
    if not dims:
        return loss(columns)
    parts = [weight * loss([column[:, :dim] for column in columns])
             for dim, weight in zip(dims, weights or [1.0] * len(dims), strict=True)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
