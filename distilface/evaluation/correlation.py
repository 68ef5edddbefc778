"""Correlation of predicted with judged similarity, and how sure a difference between two models is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distilface.errors import GateError, require

BOOTSTRAP_CHUNK = 2**20  # resampled values ranked at a time


@dataclass(frozen=True)
class Difference:
    """Spearman of ``b`` minus Spearman of ``a`` on the same pairs, with a 95 % interval; in [-2, 2]."""

    difference: float
    low: float
    high: float


def spearman(gold: ArrayLike, scores: ArrayLike) -> float:
    """Spearman's rank correlation in [-1, 1]; tied values get the average of their ranks.

    Raises:
        GateError: where it is undefined: fewer than two pairs, one side all equal, or values that are not finite.
    """
    first, second = _checked(gold, scores, "Spearman")
    return _correlation(_ranks(first), _ranks(second))


def pearson(gold: ArrayLike, scores: ArrayLike) -> float:
    """Pearson's linear correlation in [-1, 1].

    Raises:
        GateError: where it is undefined: fewer than two pairs, one side all equal, or values that are not finite.
    """
    return _correlation(*_checked(gold, scores, "Pearson"))


def bootstrap_difference(gold: ArrayLike, scores_a: ArrayLike, scores_b: ArrayLike, n: int = 1000,
                         seed: int = 0) -> Difference:
    """How far two models' Spearman differ, with the paired percentile bootstrap (Efron 1979).

    Each of ``n`` resamples draws the pairs with replacement, the same for both models, and ranks them anew.

    Raises:
        GateError: where a correlation is undefined.
    """
    reference, a = _checked(gold, scores_a, "Spearman")
    _, b = _checked(gold, scores_b, "Spearman")
    observed = _correlation(_ranks(reference), _ranks(b)) - _correlation(_ranks(reference), _ranks(a))
    random = np.random.default_rng(seed)
    differences = []
    for start in range(0, n, step := max(1, BOOTSTRAP_CHUNK // len(reference))):
        picks = random.integers(len(reference), size=(min(step, n - start), len(reference)))
        ranked_gold = _standardised(_ranks(reference[picks]))
        differences.append((ranked_gold * (_standardised(_ranks(b[picks])) - _standardised(_ranks(a[picks])))).sum(-1))
    low, high = np.nanpercentile(np.concatenate(differences), [2.5, 97.5])
    return Difference(observed, float(low), float(high))


def _checked(gold: ArrayLike, scores: ArrayLike, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    first, second = np.asarray(gold, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise ValueError(f"{name} takes two vectors of one length, got shapes {first.shape} and {second.shape}")
    if len(first) < 2:
        raise GateError(f"{name} is undefined: it takes at least 2 pairs, got {len(first)}")
    for values, side in ((first, "gold"), (second, "predicted")):
        if bad := int((~np.isfinite(values)).sum()):
            raise GateError(f"{name} is undefined: {bad} of {len(values)} {side} scores are not finite numbers")
        if (values == values[0]).all():
            raise GateError(f"{name} is undefined: all {len(values)} {side} scores are equal ({values[0]:g})")
    return first, second


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Average ranks along the last axis."""
    stats: Any = require("scipy.stats", "bench", "ranking scores")
    ranks: NDArray[np.float64] = stats.rankdata(values, axis=-1)
    return ranks


def _standardised(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Centred and of norm 1 along the last axis; NaN where all values are equal."""
    centred = values - values.mean(-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        unit: NDArray[np.float64] = centred / np.linalg.norm(centred, axis=-1, keepdims=True)
    return unit


def _correlation(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    # Scaling by the largest value keeps the squares of extreme scores in range.
    sides = [_standardised(side / np.abs(side).max()) for side in (first, second)]
    return float(np.clip(sides[0] @ sides[1], -1, 1))
