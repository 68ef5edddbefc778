"""How well predicted classes agree with the true ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def accuracy(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Share of right predictions, in [0, 1]. Both ``[n]``, numbers of classes."""
    first, second = _checked(gold, predicted)
    return float((first == second).mean())


def matthews(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Matthews' correlation of two or more classes, in [-1, 1]: ``R_K`` of Gorodkin (2004). Both ``[n]``.

    Where one side is a single class, the correlation is undefined; 0 is returned, as CoLA is scored: such predictions
    say nothing.
    """
    first, second = _checked(gold, predicted)
    classes = np.union1d(first, second)
    true = (first[:, None] == classes).astype(np.float64)
    found = (second[:, None] == classes).astype(np.float64)
    true, found = true - true.mean(0), found - found.mean(0)
    scale = np.sqrt((true**2).sum() * (found**2).sum())
    return float((true * found).sum() / scale) if scale else 0.0


def _checked(gold: ArrayLike, predicted: ArrayLike) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    first, second = np.asarray(gold), np.asarray(predicted)
    if first.shape != second.shape or first.ndim != 1 or not len(first):
        raise ValueError(f"classes come as two vectors of one length, got shapes {first.shape} and {second.shape}")
    return first, second
