"""Alignment and uniformity of vectors on the unit sphere (Wang & Isola, 2020, arXiv:2005.10242)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distilface.errors import UserError
from distilface.evaluation.sts_data import StsPairs
from distilface.evaluation.vectors import encode_distinct, unit_rows
from distilface.protocol import SentenceVectors

Floats = NDArray[np.floating]

BLOCK = 1024  # rows of the distance matrix held at a time


@dataclass(frozen=True)
class Geometry:
    """Lower is better for both. ``alignment`` over ``positives`` pairs, ``uniformity`` over ``sentences`` texts."""

    alignment: float
    uniformity: float
    positives: int
    sentences: int


def alignment(x: Floats, y: Floats, alpha: float = 2) -> float:
    """Mean of ``||x_i - y_i||^alpha`` over positive pairs; ``x`` and ``y`` are ``[n, dim]`` with unit rows."""
    if x.shape != y.shape or x.ndim != 2 or not len(x):
        raise ValueError(f"alignment takes two arrays of one shape [n, dim], n > 0, got {x.shape} and {y.shape}")
    distances = np.linalg.norm(x.astype(np.float64) - y.astype(np.float64), axis=1)
    return float((distances**alpha).mean())


def uniformity(x: Floats, t: float = 2, block: int = BLOCK) -> float:
    """``log mean exp(-t ||x_i - x_j||^2)`` over the pairs i < j of ``x``, ``[n, dim]`` with unit rows.

    Blocks of the distance matrix are made one after the other: memory is ``block * n`` numbers.
    """
    if x.ndim != 2 or len(x) < 2:
        raise ValueError(f"uniformity takes an array [n, dim] with n >= 2, got {x.shape}")
    rows = x.astype(np.float64)
    squares = (rows**2).sum(1)
    total = 0.0
    for start in range(0, len(rows), block):
        stop = start + block
        products = rows[start:stop] @ rows[start:].T
        distances = np.maximum(squares[start:stop, None] + squares[None, start:] - 2 * products, 0)
        kernel = np.exp(-t * distances)
        total += float(np.triu(kernel, 1).sum())
    return float(np.log(total / (len(rows) * (len(rows) - 1) / 2)))


def alignment_uniformity(encoder: SentenceVectors, pairs: StsPairs, min_score: float = 4.0) -> Geometry:
    """Both measures on STS pairs, in the manner of SimCSE (Gao et al. 2021, section 2.3).

    Positives are the pairs judged ``min_score`` or more (on STS-B's scale of 0 to 5); uniformity is over the distinct
    sentences.

    Raises:
        UserError: if no pair is judged that similar.
    """
    chosen = np.flatnonzero(pairs.gold >= min_score)
    if not len(chosen):
        raise UserError(f"alignment needs pairs with a score of {min_score:g} or more; the highest of {pairs.name} is "
                        f"{pairs.gold.max():g}")
    vectors, (first, second) = encode_distinct(encoder, [pairs.sentences1, pairs.sentences2])
    unit = unit_rows(vectors)
    return Geometry(alignment(unit[first[chosen]], unit[second[chosen]]), uniformity(unit), len(chosen), len(unit))
