"""Exact nearest neighbours over a corpus that need not fit in memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distilface.corpus import Corpus, open_corpus
from distilface.errors import UserError
from distilface.precision import Scales
from distilface.protocol import Vectors

__all__ = ["Corpus", "Hits", "search", "similarity"]

BLOCK_BYTES = 1 << 24
"""Corpus read at a time; with the scores of the queries, some four times this is in memory."""
QUERIES = 256
"""Queries scored against a block at a time."""
OVERSAMPLE = 4
_ROUNDING = 1e-5
"""More than float32 products of unit vectors are ever off."""


class Hits(NamedTuple):
    """The nearest rows of a corpus, best first; as many as asked for, or as the corpus has.

    Attributes:
        indices: int64 ``[queries, k]``, rows of the corpus.
        scores: float32 ``[queries, k]``, dot products: cosines for vectors of unit length.
    """

    indices: NDArray[np.int64]
    scores: Vectors


def similarity(a: Vectors, b: Vectors) -> Vectors:
    """Cosines ``[len(a), len(b)]`` between the rows of two arrays; a row of zeros has cosine 0 to all."""
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise UserError(f"similarity takes two arrays [n, dim] of one width; got shapes {a.shape} and {b.shape}")
    return _unit(a) @ _unit(b).T


def search(queries: Vectors, corpus: Corpus, k: int = 10, *, scales: Scales | None = None,
           oversample: int = OVERSAMPLE, block_bytes: int = BLOCK_BYTES) -> Hits:
    """The ``k`` rows of ``corpus`` with the largest dot product with each query; equal scores are ordered by row.

    The corpus is read once, in blocks, whatever its size. Scores are those of float64 products, so neither the order
    nor a score depends on where a block ends.

    Args:
        queries: float ``[n, dim]``, also for an int8 or binary corpus.
        corpus: an array, a .npy file, a Parquet file (column ``vector``), or the folder that `encode` wrote. float
            ``[m, dim]``, int8 ``[m, dim]`` or packed bits uint8 ``[m, ceil(dim / 8)]``.
        scales: of an int8 corpus in an array; `encode` writes those of a file beside it, and a folder has them inside.
        oversample: of a binary corpus, the ``k * oversample`` rows nearest by Hamming distance are scored against the
            float query: its cosine with the vector of signs.

    Raises:
        UserError: shapes or types that don't fit, NaN in queries or corpus, an unreadable or unfinished corpus.
    """
    queries = np.asarray(queries)
    if queries.ndim != 2 or not np.issubdtype(queries.dtype, np.floating):
        raise UserError(f"queries must be float vectors [n, dim]; got {queries.dtype} of shape {queries.shape}")
    if k < 1 or oversample < 1:
        raise UserError(f"k is {k} and oversample {oversample}; allowed: 1 or more")
    if not np.isfinite(queries).all():
        raise UserError("the queries hold NaN or infinity")
    reader = open_corpus(corpus, scales)
    reader.check_queries(queries.shape[1])
    best = _Best(len(queries), k * oversample if reader.binary else k)
    scan = _scan_bits if reader.binary else _scan
    for start, block in reader.blocks(max(1, block_bytes // (4 * reader.width))):
        for first in range(0, len(queries), QUERIES):
            scan(best, first, queries[first : first + QUERIES], start, block)
    return best.hits(k)


class _Best:
    """The best rows so far of each query, by a key; what is scored is not always what they are chosen by."""

    def __init__(self, queries: int, limit: int) -> None:
        self.limit = limit
        self.keys: list[Vectors] = [np.empty(0, np.float32)] * queries
        self.rows: list[NDArray[np.int64]] = [np.empty(0, np.int64)] * queries
        self.scores: list[Vectors] = [np.empty(0, np.float32)] * queries
        self.worst = np.full(queries, -np.inf, dtype=np.float32)

    def candidates(self, query: int, keys: Vectors, margin: float) -> NDArray[np.intp]:
        """Where ``keys`` may be among the best: not below the worst kept, or the block's own best, by the margin."""
        floor = self.worst[query]
        if floor == -np.inf and len(keys) > self.limit:
            floor = np.partition(keys, len(keys) - self.limit)[len(keys) - self.limit]
        return np.flatnonzero(keys >= floor - margin)

    def add(self, query: int, rows: NDArray[np.int64], keys: Vectors, scores: Vectors) -> None:
        """Merge; of equal keys the smaller rows stay."""
        rows = np.concatenate([self.rows[query], rows])
        keys = np.concatenate([self.keys[query], keys])
        scores = np.concatenate([self.scores[query], scores])
        order = np.lexsort((rows, -keys))[: self.limit]
        self.rows[query], self.keys[query], self.scores[query] = rows[order], keys[order], scores[order]
        if len(order) == self.limit:
            self.worst[query] = keys[order[-1]]

    def hits(self, k: int) -> Hits:
        """The first ``k`` by score."""
        orders = [np.lexsort((rows, -scores))[:k] for rows, scores in zip(self.rows, self.scores, strict=True)]
        if not orders:
            return Hits(np.empty((0, k), np.int64), np.empty((0, k), np.float32))
        return Hits(np.stack([rows[order] for rows, order in zip(self.rows, orders, strict=True)]),
                    np.stack([scores[order] for scores, order in zip(self.scores, orders, strict=True)]))


def _scan(best: _Best, first: int, queries: Vectors, start: int, block: Vectors) -> None:
    """Rough float32 scores choose the candidates, float64 ones decide.

    Equal rows get unequal float32 products at different places of a block; in float64 and rounded they are equal.
    """
    rough = queries.astype(np.float32) @ block.T
    if not np.isfinite(rough).all():
        bad = start + int(np.flatnonzero(~np.isfinite(block).all(axis=1))[0])
        raise UserError(f"row {bad} of the corpus holds NaN or infinity; encode it again")
    margin = _ROUNDING * max(1.0, float(np.abs(rough).max()))
    for offset in np.flatnonzero(rough.max(axis=1) >= best.worst[first : first + len(queries)] - margin):
        picked = best.candidates(first + offset, rough[offset], margin)
        exact = (block[picked].astype(np.float64) @ queries[offset].astype(np.float64)).astype(np.float32)
        best.add(first + offset, start + picked, exact, exact)


def _scan_bits(best: _Best, first: int, queries: Vectors, start: int, block: NDArray[np.uint8]) -> None:
    """Chosen by Hamming distance to the query's signs, scored as the cosine of the query and the row's signs."""
    dim = queries.shape[1]
    for offset, bits in enumerate(np.packbits(queries > 0, axis=1)):
        keys = -_ones(block ^ bits).astype(np.float32)
        picked = best.candidates(first + offset, keys, 0)
        signs = np.unpackbits(block[picked], axis=1, count=dim).astype(np.float64) * 2 - 1
        query = queries[offset].astype(np.float64)
        scores = (signs @ query / (np.linalg.norm(query) * np.sqrt(dim) or 1)).astype(np.float32)
        best.add(first + offset, start + picked, keys[picked], scores)


def _ones(bits: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Set bits in each row."""
    count: Any = getattr(np, "bitwise_count", None)  # NumPy 2
    return (count(bits) if count is not None else _POPCOUNT[bits]).sum(axis=1, dtype=np.int64)  # type: ignore[no-any-return]


_POPCOUNT = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)


def _unit(vectors: Vectors) -> Vectors:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms > 0, norms, np.float32(1))
