"""Product quantization of an embedding table (Jégou et al., "Product quantization for nearest neighbor search", 2011).

A row is cut into pieces of a few values; for each place in the row, 256 pieces are learnt by k-means, and a row stores
which of them it takes: a byte for each piece, 2 bits a value. An encoder's table bears this well, because the first
LayerNorm and all layers after it see a sentence's words together, and errors of single pieces average out.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

PIECE = 4
"""Values in a piece."""
CODES = 256
MIN_ROWS = 4 * CODES
"""Smaller tables gain nothing: the codebooks would outweigh the rows."""
ROUNDS = 12
REMEMBERED = 4
"""So many tables' codebooks are kept."""
_BLOCK = 4096


@dataclass(frozen=True)
class Codebooks:
    """``row[place] = centroids[place, codes[row, place]]``.

    Attributes:
        codes: uint8 ``[rows, places]``.
        centroids: float32 ``[places, 256, piece]``.
    """

    codes: NDArray[np.uint8]
    centroids: Array

    def restored(self) -> Array:
        """The table as its readers see it, float32 ``[rows, places * piece]``."""
        places = np.arange(len(self.centroids))
        return self.centroids[places, self.codes].reshape(len(self.codes), -1)


_learnt: dict[tuple[str, str | None], Codebooks] = {}


def codebooks(table: Array, ids: NDArray[np.int64] | None = None) -> Codebooks:
    """The codebooks of ``table`` ``[rows, width]``, learnt once a process, however many graphs around it are made.

    Args:
        ids: of the words in a corpus, ``[tokens]``; how often each row occurs there is its weight. None: all alike.
    """
    counts = None if ids is None else np.bincount(ids, minlength=len(table))
    key = (_digest(table), None if counts is None else _digest(counts))
    if key not in _learnt:
        if len(_learnt) >= REMEMBERED:
            del _learnt[next(iter(_learnt))]
        _learnt[key] = product_quantize(table, counts)
    return _learnt[key]


def _digest(values: NDArray[Any]) -> str:
    return hashlib.sha256(repr((values.dtype.str, values.shape)).encode() + values.tobytes()).hexdigest()


def suits(rows: int, width: int) -> bool:
    """Whether a table of this shape gets smaller."""
    return rows >= MIN_ROWS and gcd(width, PIECE) > 1


def product_quantize(table: Array, counts: NDArray[np.int64] | None = None, seed: int = 0) -> Codebooks:
    """Learn the codebooks of ``table`` ``[rows, width]``.

    Args:
        counts: how often each row is used, ``[rows]``; rows weigh by its square root, so that common words come out
            better and rare ones are not forgotten. Without it, all rows alike.
    """
    piece = gcd(table.shape[1], PIECE)
    weights = np.ones(len(table)) if counts is None else np.sqrt(counts + 1.0)
    places = [np.ascontiguousarray(table[:, start : start + piece]) for start in range(0, table.shape[1], piece)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda place: _kmeans(place[1], weights, seed + place[0]), enumerate(places)))
    return Codebooks(np.stack([codes for _, codes in found], axis=1), np.stack([centroids for centroids, _ in found]))


def _kmeans(points: Array, weights: NDArray[np.float64], seed: int) -> tuple[Array, NDArray[np.uint8]]:
    """Weighted Lloyd iterations; centroids ``[256, piece]`` and the nearest of them for each point."""
    random = np.random.default_rng(seed)
    chance = weights / weights.sum()
    centroids = points[random.choice(len(points), CODES, replace=False, p=chance)].copy()
    for _ in range(ROUNDS):
        nearest = _nearest(points, centroids)
        mass = np.bincount(nearest, weights, CODES)
        sums = np.stack([np.bincount(nearest, weights * column, CODES) for column in points.T], axis=1)
        empty = mass == 0
        centroids[~empty] = sums[~empty] / mass[~empty, None]
        centroids[empty] = points[random.choice(len(points), int(empty.sum()), p=chance)]
    return centroids, _nearest(points, centroids)


def _nearest(points: Array, centroids: Array) -> NDArray[np.uint8]:
    squares = np.square(centroids).sum(axis=1)
    turned = np.ascontiguousarray(-2 * centroids.T)
    return np.concatenate([(block @ turned + squares).argmin(axis=1).astype(np.uint8)
                           for block in np.array_split(points, -(-len(points) // _BLOCK))])
