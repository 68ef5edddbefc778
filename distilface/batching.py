"""Which texts go into one batch: sorted by length and filled to a token budget, so that almost nothing is padding."""

from __future__ import annotations

from collections.abc import Sequence


def batches_by_length(lengths: Sequence[int], batch_tokens: int, max_rows: int | None = None) -> list[list[int]]:
    """Indices of ``lengths`` in batches of similar length, longest first.

    A batch of ``r`` rows padded to its longest row ``w`` obeys ``r * w <= batch_tokens``; a row longer than the budget
    is a batch of its own. Longest first, so that the largest buffers are allocated once and memory stays flat after.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    batches: list[list[int]] = []
    start = 0
    while start < len(order):
        rows = max(1, batch_tokens // max(1, lengths[order[start]]))
        if max_rows is not None:
            rows = min(rows, max_rows)
        batches.append(order[start : start + rows])
        start += rows
    return batches
