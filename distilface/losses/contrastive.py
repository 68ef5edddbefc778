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
    n = len(anchors)
    with torch.autocast(anchors.device.type, enabled=False):
        queries = functional.normalize(anchors.float(), dim=-1)
        columns = functional.normalize(positives.float(), dim=-1)
        own = torch.eye(n, dtype=torch.bool, device=anchors.device)
        targets = torch.arange(n, device=anchors.device)
        forward = queries @ columns.T / temperature
        backward = forward.T
        if exclude is not None:
            masked = exclude[:, :n] & ~own
            forward = forward.masked_fill(masked, -torch.inf)
            backward = backward.masked_fill(masked, -torch.inf)
        if negatives is not None:
            hard = queries @ functional.normalize(negatives.float(), dim=-1).T / temperature
            if hard_negative_weight:
                per_anchor = len(negatives) // n
                hard = hard + hard_negative_weight * own.repeat_interleave(per_anchor, dim=1)
            if exclude is not None:
                hard = hard.masked_fill(exclude[:, n:], -torch.inf)
            forward = torch.cat([forward, hard], dim=1)
        loss = functional.cross_entropy(forward, targets)
        return (loss + functional.cross_entropy(backward, targets)) / 2 if symmetric else loss


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
    values, codes = np.unique(same, return_inverse=True)
    codes = codes.reshape(same.shape)
    row_of_code = np.repeat(np.arange(n), same.shape[1])
    valid = same.ravel() >= 0
    holds = np.zeros((n, len(values)), dtype=np.float32)
    holds[row_of_code[valid], codes.ravel()[valid]] = 1
    shared = holds.sum(axis=0) > 1
    if shared.any():
        mask[:, :n] = holds[:, shared] @ holds[:, shared].T > 0
        np.fill_diagonal(mask[:, :n], False)
    if negatives is not None:
        position = np.searchsorted(values, negatives).clip(max=len(values) - 1)
        known = values[position] == negatives
        mask[:, n:][:, known] = holds[:, position[known]] > 0
    return mask
