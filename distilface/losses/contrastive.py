"""InfoNCE and its false negatives.

Which in-batch texts may not serve as negatives is decided on token ids (`duplicate_mask`), apart from the loss itself,
so that gathered, cached or re-ordered vectors go through the same arithmetic.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from distilface.losses.blocks import over_rows


def info_nce(anchors: Tensor, positives: Tensor, negatives: Tensor | None = None, *, temperature: float = 0.05,
             exclude: Tensor | None = None, symmetric: bool = False, hard_negative_weight: float = 0.0) -> Tensor:
    """InfoNCE over cosine similarities (Gao et al., SimCSE, EMNLP 2021: equations 1 and 4 without, 5 with negatives).

    Row ``i`` must pick ``positives[i]`` among all positives and all hard negatives. Inputs of any float type, also
    under autocast, are normalised and multiplied in float32: at temperature 0.01 logits reach 100, whose exponential is
    no float16 number.

    Args:
        anchors, positives: ``[n, d]``, not necessarily normalised.
        negatives: ``[n * k, d]``; rows ``i * k`` to ``i * k + k - 1`` are the hard negatives of anchor ``i``.
        temperature: cosines are divided by it.
        exclude: bool ``[n, n + n * k]``; True takes a column out of a row's denominator (a duplicate is no negative).
            A row's own positive is never taken out.
        symmetric: also let every positive pick its anchor among all anchors, and average both directions.
        hard_negative_weight: added to the logit of a row's own hard negatives: the log of SimCSE's weight alpha.

    Returns:
        The mean over rows, a float32 scalar.
    """
    with torch.autocast(anchors.device.type, enabled=False):
        queries = functional.normalize(anchors.float(), dim=-1)
        columns = functional.normalize(positives.float(), dim=-1)
        candidates = columns
        if negatives is not None:
            candidates = torch.cat([columns, functional.normalize(negatives.float(), dim=-1)])
        forward = _cross_entropy(queries, candidates, temperature, exclude, hard_negative_weight)
        if not symmetric:
            return forward
        return (forward + _cross_entropy(columns, queries, temperature, exclude)) / 2


def _cross_entropy(queries: Tensor, candidates: Tensor, temperature: float, exclude: Tensor | None,
                   hard_negative_weight: float = 0.0) -> Tensor:
    """The mean over rows of ``-log softmax(queries @ candidates.T / temperature)[i, i]``, both of unit length."""
    n = len(queries)
    per_anchor = (len(candidates) - n) // n

    def rows(block: slice) -> Tensor:
        targets = torch.arange(block.start, block.stop, device=queries.device)
        logits = queries[block] @ candidates.T / temperature
        if hard_negative_weight and per_anchor:
            owners = torch.arange(n, device=queries.device).repeat_interleave(per_anchor)
            own = functional.pad(owners == targets[:, None], (n, 0))
            logits = logits + hard_negative_weight * own
        if exclude is not None:
            masked = exclude[block, : len(candidates)].clone()
            masked[:, block].fill_diagonal_(False)  # the row's own positive
            logits = logits.masked_fill(masked, -torch.inf)
        return functional.cross_entropy(logits, targets, reduction="sum")

    return torch.stack(list(over_rows(rows, n, len(candidates)))).sum() / n


def duplicate_mask(same: NDArray[np.int64], negatives: NDArray[np.int64] | None = None) -> NDArray[np.bool_]:
    """Which columns of `info_nce` are no negatives of a row, judged by the identity of texts.

    Args:
        same: ``[n, m]`` ids of the texts known to mean the same as row ``i``: the sentence itself, anchor and positive,
            or every member of its group. Shorter rows are filled up with negative numbers.
        negatives: ``[n * k]`` ids of the hard negatives, in the order that `info_nce` takes them.

    Returns:
        bool ``[n, n + n * k]``, symmetric in its first ``n`` columns. Rows ``i`` and ``j`` exclude each other when
        they share a text; a hard negative is excluded from the rows that hold it among their own texts, its own row
        included. False on the diagonal.
    """
    n = len(same)
    columns = 0 if negatives is None else len(negatives)
    mask = np.zeros((n, n + columns), dtype=bool)
    # Rows sorted by the text they hold; those of text i are holders[starts[i] : starts[i + 1]].
    row, column = np.nonzero(same >= 0)
    held = np.unique(np.stack([same[row, column], row], axis=1), axis=0)
    values, starts = np.unique(held[:, 0], return_index=True)
    holders = held[:, 1]
    ends = np.append(starts[1:], len(holders))
    for text in np.nonzero(ends - starts > 1)[0]:
        rows = holders[starts[text] : ends[text]]
        mask[np.ix_(rows, rows)] = True
    np.fill_diagonal(mask[:, :n], False)
    if negatives is not None:
        position = np.searchsorted(values, negatives).clip(max=len(values) - 1)
        for index in np.nonzero(values[position] == negatives)[0]:
            text = position[index]
            mask[holders[starts[text] : ends[text]], n + index] = True
    return mask
