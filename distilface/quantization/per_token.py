"""Dynamic INT8 with a range for each token: no calibration, and a vector never depends on its neighbours.

A token's values are divided by their largest magnitude before a QuantizeLinear with a fixed step, and the product is
multiplied by it afterwards: ``x W = m ((x / m) W)``. All operators are standard, and the product between is the QDQ
form that ONNX Runtime and OpenVINO run on integers.

Two kinds of activation need more than that. What leaves a GELU is never below -0.17 and has no symmetric range: the
token is shifted up to zero, and the shift, a constant, comes back behind the product: ``x W = (x + c) W - c (1 W)``.
And the values of a few tokens ([CLS], [SEP]) that most attention goes to hold outliers; an error there is in every
token of the text. So the value projection reads its input in two INT8 digits, the second being what the first leaves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

from distilface.isa import FULL_RANGE
from distilface.onnxgraph import GraphIndex, add_initializers, remove_unused, sort_topologically
from distilface.quantization.norms import smooth_layer_norms
from distilface.quantization.weights import symmetric_int8, zero_points

GELU_MINIMUM = 0.16997121
"""``-min(x * Phi(x))``, rounded up."""
SMALLEST = 1e-6
"""Least magnitude that is divided by."""
_CONSTANTS = {
    "token_smallest": np.float32(SMALLEST), "token_axis": np.array([-1], dtype=np.int64),
    "token_step": np.float32(1 / 127), "token_zero": np.uint8(128), "token_step_2": np.float32(1 / 127 / 254),
    "gelu_shift": np.float32(GELU_MINIMUM), "gelu_step": np.float32(1 / 255), "gelu_zero": np.uint8(0),
}


def quantize_per_token(model: Any, limit: int = FULL_RANGE) -> Any:
    """A copy of a float32 graph with integer MatMuls whose activations are ranged token by token.

    Args:
        limit: largest INT8 weight; 64 where the processor adds pairs of products in 16 bits (no VNNI).
    """
    quantized = onnx.ModelProto()
    quantized.CopyFrom(model)
    smooth_layer_norms(quantized)
    graph = quantized.graph
    index = GraphIndex(graph)
    values = {node.output[0] for node in value_projections(index)}
    nodes: list[Any] = []
    constants: dict[str, Any] = dict(_CONSTANTS)
    done: set[str] = set()
    for matmul in index.weight_matmuls():
        source, weight_name = matmul.input
        out, name = matmul.output[0], matmul.name or matmul.output[0]
        weight = index.constant(weight_name)
        assert weight is not None
        gelu = _is_gelu(index, source)
        integers, scale = symmetric_int8(weight, axis=0, limit=limit)
        constants |= {f"{name}_weight": integers, f"{name}_weight_scale": scale[0]}
        zeros = zero_points(graph, scale.shape[1])
        if source not in done:
            nodes += _ranged(source, gelu)
        nodes += [
            helper.make_node("DequantizeLinear", [f"{name}_weight", f"{name}_weight_scale", zeros],
                             [f"{name}_weight_dq"], f"{name}_weight_dequantize", axis=1),
            helper.make_node("MatMul", [f"{source}_dq", f"{name}_weight_dq"], [f"{name}_1"], f"{name}_product"),
        ]
        product, scaled = f"{name}_1", f"{name}_scaled" if gelu else out
        if out in values:
            if f"{source}_2" not in done:
                nodes += _second_digit(source)
            product = f"{name}_sum"
            nodes += [
                helper.make_node("MatMul", [f"{source}_2_dq", f"{name}_weight_dq"], [f"{name}_2"], f"{name}_product_2"),
                helper.make_node("Add", [f"{name}_1", f"{name}_2"], [product], f"{name}_add"),
            ]
            done.add(f"{source}_2")
        nodes.append(helper.make_node("Mul", [product, f"{source}_largest"], [scaled], f"{name}_rescale"))
        if gelu:
            columns = (integers.astype(np.float64) * scale).sum(axis=0)
            constants[f"{name}_unshift"] = (-GELU_MINIMUM * columns).astype(np.float32)
            nodes.append(helper.make_node("Add", [scaled, f"{name}_unshift"], [out], f"{name}_unshift"))
        done.add(source)
        graph.node.remove(matmul)
    add_initializers(graph, constants)
    graph.node.extend(nodes)
    remove_unused(graph)
    sort_topologically(graph)
    return quantized


def value_projections(index: GraphIndex) -> list[Any]:
    """The weight MatMuls that make the values of attention: what the product with a Softmax mixes."""
    weights = {node.output[0]: node for node in index.weight_matmuls()}
    found = []
    for softmax in [node for node in index.graph.node if node.op_type == "Softmax"]:
        for context in index.consumers.get(softmax.output[0], []):
            name = context.input[1] if context.op_type == "MatMul" else ""
            while name not in weights and name in index.producer:
                node = index.producer[name]
                computed = [item for item in node.input if item in index.producer]
                name = computed[0] if node.op_type in ("Transpose", "Reshape", "Add") and computed else ""
            if name in weights:
                found.append(weights[name])
    return found


def _ranged(source: str, gelu: bool) -> list[Any]:
    """Each token over its largest magnitude, in one INT8 digit."""
    unshifted, ends = ("Add", ["gelu_step", "gelu_zero"]) if gelu else ("Abs", ["token_step", "token_zero"])
    magnitude = f"{source}_magnitude"
    return [
        helper.make_node(unshifted, [source, "gelu_shift"] if gelu else [source], [magnitude], magnitude),
        helper.make_node("ReduceMax", [magnitude, "token_axis"], [f"{source}_most"], f"{source}_max", keepdims=1),
        helper.make_node("Max", [f"{source}_most", "token_smallest"], [f"{source}_largest"], f"{source}_clip"),
        helper.make_node("Div", [magnitude if gelu else source, f"{source}_largest"], [f"{source}_unit"],
                         f"{source}_divide"),
        helper.make_node("QuantizeLinear", [f"{source}_unit", *ends], [f"{source}_uint8"], f"{source}_quantize"),
        helper.make_node("DequantizeLinear", [f"{source}_uint8", *ends], [f"{source}_dq"], f"{source}_dequantize"),
    ]


def _second_digit(source: str) -> list[Any]:
    ends = ["token_step_2", "token_zero"]
    return [
        helper.make_node("Sub", [f"{source}_unit", f"{source}_dq"], [f"{source}_rest"], f"{source}_rest"),
        helper.make_node("QuantizeLinear", [f"{source}_rest", *ends], [f"{source}_2_uint8"], f"{source}_quantize_2"),
        helper.make_node("DequantizeLinear", [f"{source}_2_uint8", *ends], [f"{source}_2_dq"],
                         f"{source}_dequantize_2"),
    ]


def _is_gelu(index: GraphIndex, name: str) -> bool:
    """Whether ``name`` is ``(x * (1 + erf(...))) * 0.5``."""
    reached = {name}
    for wanted in ("Mul", "Mul", "Add", "Erf"):
        made = [index.producer[item] for item in reached if item in index.producer]
        reached = {item for node in made if node.op_type == wanted for item in node.input}
    return bool(reached)
