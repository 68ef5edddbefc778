"""SmoothQuant: channels with outliers hand their size to the weights (Xiao et al., ICML 2023)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import numpy_helper

from distilface.onnxgraph import GraphIndex

Array = NDArray[np.float32]


def smoothing_factors(extreme: Array, weights: Array, strength: float) -> Array:
    """``s = max|X|^a / max|W|^(1-a)`` (eq. 4), ``[K]``: activations are divided by it, weight rows multiplied.

    Args:
        extreme: largest absolute activation of each channel, ``[K]``.
        weights: every weight that reads the activation, side by side, ``[K, N]``.
        strength: ``a``.
    """
    heaviest = np.abs(weights).max(axis=1).clip(min=1e-6)
    return (extreme.clip(min=1e-6) ** strength / heaviest ** (1 - strength)).astype(np.float32)


def value_projection(index: GraphIndex, source: str) -> Any | None:
    """The value projection's MatMul when ``source`` is the merged heads of one attention, else None.

    Attention mixes tokens, never channels, so a factor on its output can move into the value weights unchanged.
    """
    name = source
    for expected, slot in (("Reshape", 0), ("Transpose", 0), ("MatMul", 1), ("Transpose", 0), ("Reshape", 0)):
        node = index.producer.get(name)
        if node is None or node.op_type != expected:
            return None
        name = node.input[slot]
    matmul = index.producer.get(name)
    return matmul if matmul is not None and matmul.op_type == "MatMul" else None


def fold_into_value(index: GraphIndex, matmul: Any, factors: Array) -> None:
    """Divide the value projection's output channels by ``factors``: its INT8 weight scales, or the float weight."""
    weight = index.producer.get(matmul.input[1])
    name = weight.input[1] if weight is not None else matmul.input[1]
    value = index.constant(name)
    assert value is not None
    index.initializers[name].CopyFrom(numpy_helper.from_array((value / factors).astype(np.float32), name))
