"""GPTQ's rounding (Frantar et al., ICLR 2023): one input channel after the other, those left making up for its error.

What counts is the error of the product, ``|X W - X W'|^2``, so a rounding error in one input channel can be cancelled
in the channels that are still to be rounded, as far as the inputs are correlated.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Moments = NDArray[np.float64]

_COLUMNS = 64
"""Columns whose corrections to the far right are gathered into one product."""


def round_columns(weights: Array, moments: Moments, scales: NDArray[np.float64], zeros: NDArray[np.float64], low: int,
                  high: int, damping: float) -> NDArray[np.float64]:
    """Whole numbers in ``low..high`` that stand for ``weights`` as ``(code - zero) * scale``.

    Args:
        weights: ``[outputs, inputs]``.
        moments: ``sum x x^T`` of the inputs, ``[inputs, inputs]``.
        scales, zeros: broadcast against ``weights``.
        damping: added to the diagonal of the moments, as a part of its mean: channels that are never excited stay put.
    """
    columns = weights.shape[1]
    scales, zeros = np.broadcast_to(scales, weights.shape), np.broadcast_to(zeros, weights.shape)
    # Upper Cholesky factor of the inverse: row j says how an error in column j is made up for in those after it.
    damped = moments + np.eye(columns) * max(damping * float(np.diag(moments).mean()), 1e-12)
    feedback = np.linalg.cholesky(np.linalg.inv(damped)).T
    left = weights.astype(np.float64)
    codes = np.empty(left.shape)
    for start in range(0, columns, _COLUMNS):
        end = min(columns, start + _COLUMNS)
        errors = np.zeros((len(left), end - start))
        for column in range(start, end):
            scale, zero = scales[:, column], zeros[:, column]
            codes[:, column] = np.clip(np.rint(left[:, column] / scale) + zero, low, high)
            error = (left[:, column] - (codes[:, column] - zero) * scale) / feedback[column, column]
            left[:, column:end] -= np.outer(error, feedback[column, column:end])
            errors[:, column - start] = error
        left[:, end:] -= errors @ feedback[start:end, end:]
    return codes
