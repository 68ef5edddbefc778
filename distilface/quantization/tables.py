"""Embedding tables: INT8 rows, blocks of 4 bits, or codebooks, made float after the rows are picked."""

from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from distilface.onnxgraph import GraphIndex, add_initializers, remove_unused, sort_topologically
from distilface.quantization.blocks import MIN_BLOCK, quantize_blocks
from distilface.quantization.codebooks import Codebooks, codebooks, suits
from distilface.quantization.recipe import Tables
from distilface.quantization.weight_only import MICROSOFT, import_microsoft
from distilface.quantization.weights import symmetric_int8

TABLE_MIN_ROWS = 64
"""Smaller tables (token types) stay float: nothing to gain."""
TABLE_BLOCK_SIZE = 64
"""Values that share a scale in 4 bits; less where the width asks for it."""


def quantize_tables(model: Any, tables: Tables = "int8", custom: bool = False,
                    words: NDArray[np.int64] | None = None) -> int:
    """Store every float embedding table small, in place; returns how many lookups were replaced.

    ``Gather`` picks the stored rows and only those are turned to float, so a table is never expanded in memory (a
    DequantizeLinear on the whole table would be, by constant folding).

    Args:
        tables: ``int8`` rows; for the table of words ``int4`` blocks with float16 scales, or ``pq``, float16 codebooks
            with a byte for every 4 values of a row, and ``int8`` for the others; ``fp32`` leaves them.
        custom: 4-bit rows are picked by ONNX Runtime's ``GatherBlockQuantized``; else by standard operators.
        words: ids of the words of a corpus, ``[tokens]``, for ``pq``: frequent ones come out better; None: all alike.
    """
    if tables == "fp32":
        return 0
    graph = model.graph
    index = GraphIndex(graph)
    added: set[str] = set()
    nodes: list[Any] = []
    lookups = [node for node in graph.node if node.op_type == "Gather" and _is_table(index, node)]
    for node in lookups:
        weight = index.constant(node.input[0])
        assert weight is not None
        block_size = gcd(weight.shape[1], TABLE_BLOCK_SIZE)
        # Only words: the tables of positions are small, and each of their rows is in every text.
        if tables == "int4" and node.input[1] == "input_ids" and block_size >= MIN_BLOCK:
            made, constants = _blockwise(node, weight, block_size, custom)
        elif tables == "pq" and node.input[1] == "input_ids" and suits(*weight.shape):
            made, constants = _by_codebooks(node, codebooks(weight, words))
        else:
            made, constants = _rowwise(node, weight)
        add_initializers(graph, {name: value for name, value in constants.items() if name not in added})
        added.update(constants)
        nodes += made
        graph.node.remove(node)
    graph.node.extend(nodes)
    if any(node.domain == MICROSOFT for node in nodes):
        import_microsoft(model)
    remove_unused(graph)
    sort_topologically(graph)
    return len(lookups)


def _rowwise(node: Any, weight: Any) -> tuple[list[Any], dict[str, Any]]:
    table, ids = node.input
    out, name = node.output[0], node.name or node.output[0]
    rows, scale = symmetric_int8(weight, axis=1)
    return [
        helper.make_node("Gather", [f"{table}_int8", ids], [f"{out}_int8"], name, axis=0),
        helper.make_node("Cast", [f"{out}_int8"], [f"{out}_cast"], f"{name}_cast", to=onnx.TensorProto.FLOAT),
        helper.make_node("Gather", [f"{table}_scale", ids], [f"{out}_scale"], f"{name}_scale", axis=0),
        helper.make_node("Mul", [f"{out}_cast", f"{out}_scale"], [out], f"{name}_dequantize"),
    ], {f"{table}_int8": rows, f"{table}_scale": scale}


def _by_codebooks(node: Any, books: Codebooks) -> tuple[list[Any], dict[str, Any]]:
    table, ids = node.input
    out, name = node.output[0], node.name or node.output[0]
    places, codes, piece = books.centroids.shape
    return [
        helper.make_node("Gather", [f"{table}_codes", ids], [f"{out}_codes"], name, axis=0),
        helper.make_node("Cast", [f"{out}_codes"], [f"{out}_places"], f"{name}_cast", to=onnx.TensorProto.INT32),
        helper.make_node("Add", [f"{out}_places", f"{table}_offsets"], [f"{out}_pieces"], f"{name}_offset"),
        helper.make_node("Gather", [f"{table}_books", f"{out}_pieces"], [f"{out}_half"], f"{name}_books", axis=0),
        helper.make_node("Cast", [f"{out}_half"], [f"{out}_values"], f"{name}_widen", to=onnx.TensorProto.FLOAT),
        helper.make_node("Reshape", [f"{out}_values", f"{table}_row"], [out], f"{name}_row"),
    ], {f"{table}_codes": books.codes, f"{table}_offsets": (codes * np.arange(places)).astype(np.int32),
        f"{table}_books": books.centroids.reshape(-1, piece).astype(np.float16),
        f"{table}_row": np.array([0, 0, places * piece], dtype=np.int64)}


def _blockwise(node: Any, weight: Any, block_size: int, custom: bool) -> tuple[list[Any], dict[str, Any]]:
    table, ids = node.input
    out, name = node.output[0], node.name or node.output[0]
    blocks = quantize_blocks(weight, 4, block_size, symmetric=True)
    constants = {f"{table}_int4": blocks.packed(), f"{table}_scale": blocks.scales.astype(np.float16)}
    if custom:
        return [
            helper.make_node("GatherBlockQuantized", [f"{table}_int4", ids, f"{table}_scale"], [f"{out}_half"], name,
                             domain=MICROSOFT, gather_axis=0, quantize_axis=1, block_size=block_size),
            helper.make_node("Cast", [f"{out}_half"], [out], f"{name}_cast", to=onnx.TensorProto.FLOAT),
        ], constants
    low, high, pairs, steps = (f"{out}_{part}" for part in ("low", "high", "pairs", "steps"))
    constants |= {"nibble": np.float32(16), "nibble_zero": np.float32(8), "nibble_axis": np.array([-1], dtype=np.int64),
                  f"{table}_blocks": np.array([0, 0, -1, block_size], dtype=np.int64),
                  f"{table}_row": np.array([0, 0, weight.shape[1]], dtype=np.int64)}
    return [
        # A byte is 16 high + low. In float, which holds it exactly, every runtime can take it apart.
        helper.make_node("Gather", [f"{table}_int4", ids], [f"{out}_bytes"], name, axis=0),
        helper.make_node("Cast", [f"{out}_bytes"], [f"{out}_byte"], f"{name}_cast", to=onnx.TensorProto.FLOAT),
        helper.make_node("Div", [f"{out}_byte", "nibble"], [f"{out}_ratio"], f"{name}_ratio"),
        helper.make_node("Floor", [f"{out}_ratio"], [high], f"{name}_high"),
        helper.make_node("Mul", [high, "nibble"], [f"{out}_rest"], f"{name}_rest"),
        helper.make_node("Sub", [f"{out}_byte", f"{out}_rest"], [low], f"{name}_low"),
        helper.make_node("Unsqueeze", [low, "nibble_axis"], [f"{low}_1"], f"{name}_low_1"),
        helper.make_node("Unsqueeze", [high, "nibble_axis"], [f"{high}_1"], f"{name}_high_1"),
        helper.make_node("Concat", [f"{low}_1", f"{high}_1"], [pairs], f"{name}_pairs", axis=-1),
        helper.make_node("Reshape", [pairs, f"{table}_blocks"], [f"{out}_codes"], f"{name}_blocks"),
        helper.make_node("Sub", [f"{out}_codes", "nibble_zero"], [steps], f"{name}_steps"),
        helper.make_node("Gather", [f"{table}_scale", ids], [f"{out}_scale"], f"{name}_scale", axis=0),
        helper.make_node("Cast", [f"{out}_scale"], [f"{out}_wide"], f"{name}_widen", to=onnx.TensorProto.FLOAT),
        helper.make_node("Unsqueeze", [f"{out}_wide", "nibble_axis"], [f"{out}_wide_1"], f"{name}_scale_1"),
        helper.make_node("Mul", [steps, f"{out}_wide_1"], [f"{out}_values"], f"{name}_dequantize"),
        helper.make_node("Reshape", [f"{out}_values", f"{table}_row"], [out], f"{name}_row"),
    ], constants


def _is_table(index: GraphIndex, node: Any) -> bool:
    tensor = index.initializers.get(node.input[0])
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
    return (tensor is not None and tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) == 2
            and tensor.dims[0] >= TABLE_MIN_ROWS and axis == 0)
