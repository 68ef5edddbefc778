"""Float weights to INT8: symmetric, one scale for each output channel, or for each row of an embedding table."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from distilface.onnxgraph import GraphIndex, add_initializers, remove_unused, sort_topologically

FULL_RANGE = 127
TABLE_MIN_ROWS = 64
"""Smaller tables (token types) stay float: nothing to gain."""


def symmetric_int8(values: NDArray[np.float32], axis: int,
                   limit: int = FULL_RANGE) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """``q = round(w / s)`` with ``s = max|w| / limit`` along ``axis``; returns ``q`` and ``s`` (axis kept, size 1)."""
    largest = np.abs(values).max(axis=axis, keepdims=True)
    scale = np.where(largest > 0, largest / limit, 1.0).astype(np.float32)
    return np.clip(np.rint(values / scale), -limit, limit).astype(np.int8), scale


def quantize_tables(model: Any) -> int:
    """Replace every float embedding table by INT8 rows and one float scale a row; returns how many.

    ``Gather`` picks the INT8 rows first and only those are turned to float, so the table is never expanded in memory
    (a DequantizeLinear on the whole table would be, by constant folding).
    """
    graph = model.graph
    index = GraphIndex(graph)
    new_nodes: list[Any] = []
    replaced = 0
    for node in graph.node:
        if node.op_type != "Gather" or not _is_table(index, node):
            continue
        table, ids, out = node.input[0], node.input[1], node.output[0]
        weight = index.constant(table)
        assert weight is not None
        rows, scale = symmetric_int8(weight, axis=1)
        if replaced == 0 or f"{table}_int8" not in {tensor.name for tensor in graph.initializer}:
            add_initializers(graph, {f"{table}_int8": rows, f"{table}_scale": scale})
        node.input[0] = f"{table}_int8"
        node.output[0] = f"{out}_int8"
        new_nodes += [
            helper.make_node("Cast", [f"{out}_int8"], [f"{out}_cast"], f"{node.name}_cast", to=onnx.TensorProto.FLOAT),
            helper.make_node("Gather", [f"{table}_scale", ids], [f"{out}_scale"], f"{node.name}_scale", axis=0),
            helper.make_node("Mul", [f"{out}_cast", f"{out}_scale"], [out], f"{node.name}_dequantize"),
        ]
        replaced += 1
    graph.node.extend(new_nodes)
    remove_unused(graph)
    sort_topologically(graph)
    return replaced


def _is_table(index: GraphIndex, node: Any) -> bool:
    tensor = index.initializers.get(node.input[0])
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
    return (tensor is not None and tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) == 2
            and tensor.dims[0] >= TABLE_MIN_ROWS and axis == 0)
