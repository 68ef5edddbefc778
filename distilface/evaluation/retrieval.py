"""Recall at k: how often the right text is among the k nearest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distilface.errors import UserError
from distilface.evaluation.vectors import encode_distinct, unit_rows
from distilface.protocol import SentenceVectors

BLOCK_VALUES = 2**24  # similarities held at a time


def recall_at_k(queries: NDArray[np.floating], corpus: NDArray[np.floating] | None, query_labels: ArrayLike,
                corpus_labels: ArrayLike | None = None, ks: Sequence[int] = (1, 10)) -> dict[int, float]:
    """Share of the queries, in [0, 1], that find an entry of their own label among the k nearest by cosine.

    With ``corpus=None`` the queries search each other, each without itself. A wrong entry as near as the best right one
    counts as nearer, so a model that makes all vectors equal scores 0. A query whose label the corpus lacks is a miss.

    Args:
        queries: ``[n, dim]``.
        corpus: ``[m, dim]``, or None.
        query_labels: ``[n]``, integers or strings.
        corpus_labels: ``[m]``; left out with ``corpus=None``.
    """
    itself = corpus is None
    sought = np.asarray(query_labels)
    labels = sought if itself else np.asarray(corpus_labels)
    searched = unit_rows(queries).astype(np.float32)
    entries = searched if corpus is None else unit_rows(corpus).astype(np.float32)
    if len(searched) != len(sought) or len(entries) != len(labels) or not len(searched) or not len(entries):
        raise ValueError(f"recall takes a label for each vector and at least one vector: {len(searched)} queries with "
                         f"{len(sought)} labels, {len(entries)} entries with {len(labels)}")
    ranks = np.empty(len(searched), dtype=np.int64)
    for start in range(0, len(searched), block := max(1, BLOCK_VALUES // len(entries))):
        stop = min(start + block, len(searched))
        nearness = searched[start:stop] @ entries.T
        if itself:
            nearness[np.arange(stop - start), np.arange(start, stop)] = -np.inf
        right = sought[start:stop, None] == labels[None, :]
        best = np.where(right, nearness, -np.inf).max(1, keepdims=True)
        ranks[start:stop] = ((nearness >= best) & ~right).sum(1)
        ranks[start:stop][np.isneginf(best[:, 0])] = len(entries)
    return {k: float((ranks < k).mean()) for k in ks}


def group_recall(encoder: SentenceVectors, groups: Sequence[Sequence[str]],
                 ks: Sequence[int] = (1, 10)) -> dict[int, float]:
    """Recall of each text finding another text of its group among the texts of all groups, itself excluded.

    A text that occurs in several groups stays in the first only; a group left with one text is dropped.

    Raises:
        UserError: if no group has two distinct texts.
    """
    owner: dict[str, int] = {}
    for number, group in enumerate(groups):
        for text in group:
            owner.setdefault(text, number)
    sizes = Counter(owner.values())
    kept = {text: number for text, number in owner.items() if sizes[number] > 1}
    if not kept:
        raise UserError(f"retrieval needs groups of two or more distinct texts; none of the {len(groups)} given is one")
    vectors, _ = encode_distinct(encoder, [list(kept)])
    return recall_at_k(vectors, None, list(kept.values()), ks=ks)
