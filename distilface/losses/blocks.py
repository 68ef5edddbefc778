"""Losses over all pairs of a large batch, some rows at a time: memory grows with the batch, not with its square."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

BLOCK = 1 << 20
"""Pairs whose similarities are held at once: 4 MB, a batch of 1,024. More are computed again in the backward pass."""


def over_rows(part: Callable[[slice], Tensor], rows: int, columns: int) -> Iterator[Tensor]:
    """``part`` of each block of rows, so that a block has at most `BLOCK` pairs; plainly where one block is enough.

    Args:
        part: from a slice of the rows to what is kept of their similarities; deterministic.
    """
    step = max(1, BLOCK // max(1, columns))
    for start in range(0, rows, step):
        block = slice(start, min(start + step, rows))
        if step >= rows or not torch.is_grad_enabled():
            yield part(block)
        else:
            yield checkpoint(part, block, use_reentrant=False, preserve_rng_state=False)
