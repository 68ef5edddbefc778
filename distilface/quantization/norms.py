"""SmoothQuant without data: where a LayerNorm feeds the MatMuls, its own weights say which channels are large.

A normalised channel has deviation 1, so channel j of the output is about ``3 |gamma_j| + |beta_j|`` at most. That
stands in for the measured maximum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from distilface.onnxgraph import GraphIndex, add_initializers, sort_topologically
from distilface.quantization.smoothing import smoothing_factors

STRENGTH = 0.75
DEVIATIONS = 3.0


def smooth_layer_norms(model: Any) -> int:
    """Put one Mul between each LayerNorm and the MatMuls that read it, in place; returns how many."""
    graph = model.graph
    index = GraphIndex(graph)
    groups: dict[str, list[Any]] = {}
    for node in index.weight_matmuls():
        groups.setdefault(node.input[0], []).append(node)
    smoothed = 0
    for source, matmuls in groups.items():
        largest = _largest(index, source)
        if largest is None:
            continue
        weights = [_constant(index, node.input[1]) for node in matmuls]
        factors = smoothing_factors(largest, np.concatenate(weights, axis=1), STRENGTH)
        factors /= np.exp(np.log(factors).mean(dtype=np.float64)).astype(np.float32)
        add_initializers(graph, {f"{source}_factors": 1 / factors})
        graph.node.append(helper.make_node("Mul", [source, f"{source}_factors"], [f"{source}_smooth"],
                                           f"{source}_smoothing"))
        for node, weight in zip(matmuls, weights, strict=True):
            scaled = f"{node.output[0]}_smooth"
            add_initializers(graph, {scaled: weight * factors[:, None]})
            node.input[:] = [f"{source}_smooth", scaled]
        smoothed += 1
    sort_topologically(graph)
    return smoothed


def _largest(index: GraphIndex, name: str) -> NDArray[np.float32] | None:
    """About the largest magnitude of each channel, when ``name`` comes from a LayerNorm (through a Reshape)."""
    node = index.producer.get(name)
    if node is not None and node.op_type == "Reshape":
        node = index.producer.get(node.input[0])
    if node is None or node.op_type != "LayerNormalization":
        return None
    scale, bias = index.constant(node.input[1]), index.constant(node.input[2]) if len(node.input) > 2 else None
    if scale is None:
        return None
    return (np.abs(scale) * DEVIATIONS + (0 if bias is None else np.abs(bias))).astype(np.float32)


def _constant(index: GraphIndex, name: str) -> NDArray[np.float32]:
    value = index.constant(name)
    assert value is not None
    return value
