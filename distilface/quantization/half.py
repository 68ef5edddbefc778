"""Half precision for GPUs: the encoder in float16, the vector in float32.

The onnxruntime converter casts every output through float16, so that unit vectors leave with norms off by 1e-3. Here
everything up to the last LayerNormalization is half precision, and pooling and normalisation, whose sums need the
digits, stay float32. LayerNormalization itself computes mean and variance in float32 (its ``stash_type``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from distilface.onnxgraph import GraphIndex, remove_unused, sort_topologically

MASKED = 1e4
"""Subtracted from the scores of padding. exp(-1e4) is 0 in half precision too, and no score added to it overflows
65,504, as one added to the largest number would."""


def to_half(model: Any) -> Any:
    """A copy of a float32 graph that computes in float16 up to the token states; inputs and outputs as before."""
    inferred = onnx.shape_inference.infer_shapes(model)
    floats = {item.name for item in (*inferred.graph.value_info, *inferred.graph.output)
              if item.type.tensor_type.elem_type == onnx.TensorProto.FLOAT}
    half = onnx.ModelProto()
    half.CopyFrom(model)
    graph = half.graph
    index = GraphIndex(graph)
    body = _up_to_layer_norms(index)
    made: set[str] = set()
    for node in body:
        made.update(node.output)
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == onnx.TensorProto.FLOAT:
                attribute.i = onnx.TensorProto.FLOAT16
        for slot, name in enumerate(node.input):
            tensor = index.initializers.get(name)
            if tensor is not None and tensor.data_type == onnx.TensorProto.FLOAT:
                node.input[slot] = f"{name}_half"
                if f"{name}_half" not in index.initializers:
                    value = _masked(numpy_helper.to_array(tensor)).astype(np.float16)
                    index.initializers[f"{name}_half"] = numpy_helper.from_array(value, f"{name}_half")
                    graph.initializer.append(index.initializers[f"{name}_half"])
    _leave(graph, index, {id(node) for node in body}, made & floats)
    remove_unused(graph)
    sort_topologically(graph)
    return half


def _up_to_layer_norms(index: GraphIndex) -> list[Any]:
    """The LayerNormalizations and all nodes they need; without any, every node that a weight MatMul needs."""
    waiting = [node for node in index.graph.node if node.op_type == "LayerNormalization"] or index.weight_matmuls()
    found: dict[int, Any] = {}
    while waiting:
        node = waiting.pop()
        if id(node) not in found:
            found[id(node)] = node
            waiting.extend(index.producer[name] for name in node.input if name in index.producer)
    return list(found.values())


def _masked(value: NDArray[np.float32]) -> NDArray[np.float32]:
    """The number that masks padding, made small enough; every other value as it is (the gate sees an overflow)."""
    return np.where(np.abs(value) >= np.finfo(np.float32).max, np.copysign(np.float32(MASKED), value), value)


def _leave(graph: Any, index: GraphIndex, body: set[int], halves: set[str]) -> None:
    """Cast what leaves the half-precision part: for its float32 readers, and for the graph's outputs."""
    outputs = {item.name for item in graph.output}
    for name in sorted(halves):
        readers = [node for node in index.consumers.get(name, []) if id(node) not in body]
        if name in outputs:
            inner = f"{name}_half"
            for node in index.consumers.get(name, []):
                if id(node) in body:
                    node.input[:] = [inner if item == name else item for item in node.input]
            producer = index.producer[name]
            producer.output[:] = [inner if item == name else item for item in producer.output]
            graph.node.append(helper.make_node("Cast", [inner], [name], f"{name}_widen", to=onnx.TensorProto.FLOAT))
        elif readers:
            wide = f"{name}_float"
            for node in readers:
                node.input[:] = [wide if item == name else item for item in node.input]
            graph.node.append(helper.make_node("Cast", [name], [wide], f"{name}_widen", to=onnx.TensorProto.FLOAT))
