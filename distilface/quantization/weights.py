"""Float weights to INT8: symmetric, one scale for each output channel, or for each row of an embedding table."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilface.isa import FULL_RANGE
from distilface.onnxgraph import add_initializers


def symmetric_int8(values: NDArray[np.float32], axis: int,
                   limit: int = FULL_RANGE) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """``q = round(w / s)`` with ``s = max|w| / limit`` along ``axis``; returns ``q`` and ``s`` (axis kept, size 1)."""
    largest = np.abs(values).max(axis=axis, keepdims=True)
    scale = np.where(largest > 0, largest / limit, 1.0).astype(np.float32)
    return np.clip(np.rint(values / scale), -limit, limit).astype(np.int8), scale


def zero_points(graph: Any, channels: int) -> str:
    """The name of ``channels`` INT8 zeros in ``graph``, which all weights of so many output channels share.

    ONNX leaves them out where they are 0, but ONNX Runtime then runs no integer kernel.
    """
    name = f"zeros_{channels}"
    if all(tensor.name != name for tensor in graph.initializer):
        add_initializers(graph, {name: np.zeros(channels, dtype=np.int8)})
    return name
