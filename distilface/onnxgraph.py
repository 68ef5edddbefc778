"""Small edits and questions on an ONNX graph that exporter, quantization and parity share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from distilface.artifact import Kind, Variant
from distilface.parity import INVARIANT

MASKED = float(np.finfo(np.float32).min)


class GraphIndex:
    """Who makes and who reads each tensor of a graph; rebuilt after an edit."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.initializers = {tensor.name: tensor for tensor in graph.initializer}
        self.producer = {name: node for node in graph.node for name in node.output}
        self.consumers: dict[str, list[Any]] = {}
        for node in graph.node:
            for name in node.input:
                self.consumers.setdefault(name, []).append(node)

    def constant(self, name: str) -> NDArray[Any] | None:
        """The value of an initialiser, or None when the tensor is computed."""
        tensor = self.initializers.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def weight_matmuls(self) -> list[Any]:
        """MatMuls of an activation with a constant 2-D float weight: the ones INT8 is about."""
        return [node for node in self.graph.node if node.op_type == "MatMul" and self._is_weight(node.input[1])]

    def _is_weight(self, name: str) -> bool:
        tensor = self.initializers.get(name)
        return tensor is not None and len(tensor.dims) == 2 and tensor.data_type == onnx.TensorProto.FLOAT


def strip_debug_information(model: Any) -> None:
    """Drop what the exporter leaves for debugging: stack traces with local paths, shape notes, doc strings."""
    del model.metadata_props[:], model.graph.metadata_props[:], model.functions[:]
    del model.graph.value_info[:]
    model.graph.doc_string = ""
    for node in model.graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    for item in (*model.graph.initializer, *model.graph.input, *model.graph.output):
        item.doc_string = ""
        if hasattr(item, "metadata_props"):
            del item.metadata_props[:]


def simplify_attention_mask(model: Any) -> None:
    """Replace the exporter's mask arithmetic by ``(mask - 1) * max``, shape ``[batch, 1, 1, length]``.

    transformers builds a full ``[batch, 1, length, length]`` mask by ranges, comparisons and GatherND, some 20 nodes
    that differ from version to version. Every query sees the same keys here, so one row per text says it all.
    Replaced is what depends on nothing but the attention mask and meets the scores in front of a Softmax: the addend
    of an Add, or the condition of a Where that fills in a constant (DistilBERT of transformers 4): it becomes the Add.
    """
    graph = model.graph
    index = GraphIndex(graph)
    from_mask = _depends_only_on(index, {"attention_mask"})
    targets: list[tuple[Any, str]] = []
    for softmax in (node for node in graph.node if node.op_type == "Softmax"):
        masking = index.producer.get(softmax.input[0])
        scores = _unmasked_scores(masking, index, from_mask) if masking is not None else None
        if scores is not None:
            targets.append((masking, scores))
    if not targets:
        return
    new = [
        helper.make_node("Cast", ["attention_mask"], ["mask_float"], "mask_cast", to=onnx.TensorProto.FLOAT),
        helper.make_node("Sub", ["mask_float", "mask_one"], ["mask_shifted"], "mask_shift"),
        helper.make_node("Mul", ["mask_shifted", "mask_largest"], ["mask_row"], "mask_scale"),
        helper.make_node("Unsqueeze", ["mask_row", "mask_axes"], ["mask_bias"], "mask_unsqueeze"),
    ]
    add_initializers(graph, {"mask_one": np.float32(1), "mask_largest": np.float32(-MASKED),
                             "mask_axes": np.array([1, 2], dtype=np.int64)})
    for node, scores in targets:
        node.op_type = "Add"
        node.input[:] = [scores, "mask_bias"]
    graph.node.extend(new)
    remove_unused(graph)
    sort_topologically(graph)


def _unmasked_scores(node: Any, index: GraphIndex, from_mask: set[str]) -> str | None:
    """The scores that an Add or a Where masks by what ``from_mask`` names; None where the node does something else."""
    if node.op_type == "Add":
        scores = [name for name in node.input if name not in from_mask]
    elif node.op_type == "Where" and node.input[0] in from_mask:
        scores = [name for name in node.input[1:] if name not in index.initializers]
    else:
        return None
    return scores[0] if len(scores) == 1 else None


def _depends_only_on(index: GraphIndex, names: set[str]) -> set[str]:
    """Computed tensors whose value needs the inputs ``names``, and otherwise only shapes and constants."""
    inputs = {item.name for item in index.graph.input}
    shape_only: set[str] = set(index.initializers) | {""}
    only: set[str] = set(names)
    for node in index.graph.node:  # a graph lists its nodes in topological order
        read = set(node.input)
        if node.op_type in ("Shape", "Size", "Constant") or read <= shape_only:
            shape_only |= set(node.output)
        elif read <= shape_only | only:
            only |= set(node.output)
    return only - inputs


def add_initializers(graph: Any, values: dict[str, Any]) -> None:
    """Add constants by name."""
    graph.initializer.extend(numpy_helper.from_array(np.asarray(value), name) for name, value in values.items())


def remove_unused(graph: Any) -> None:
    """Drop nodes and constants that no output needs."""
    index = GraphIndex(graph)
    needed: set[str] = set()
    waiting = [item.name for item in graph.output]
    while waiting:
        name = waiting.pop()
        if name in needed:
            continue
        needed.add(name)
        if name in index.producer:
            waiting.extend(index.producer[name].input)
    _keep(graph.node, [node for node in graph.node if any(name in needed for name in node.output)])
    _keep(graph.initializer, [tensor for tensor in graph.initializer if tensor.name in needed])


def sort_topologically(graph: Any) -> None:
    """Put every node after the nodes it reads from, as the ONNX standard asks."""
    index = GraphIndex(graph)
    ordered: list[Any] = []
    done: set[int] = set()

    def visit(root: Any) -> None:
        stack = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if id(node) in done:
                continue
            if ready:
                done.add(id(node))
                ordered.append(node)
                continue
            stack.append((node, True))
            stack.extend((index.producer[name], False) for name in node.input if name in index.producer)

    for node in graph.node:
        visit(node)
    _keep(graph.node, ordered)


def _keep(container: Any, items: Iterable[Any]) -> None:
    copies = []
    for item in items:
        copy = type(item)()
        copy.CopyFrom(item)
        copies.append(copy)
    del container[:]
    container.extend(copies)


class MatMulCount(NamedTuple):
    """How the MatMuls with a constant weight multiply: on integers, stored small but in float, or plain float."""

    integer: int
    weight_only: int
    plain: int


def count_matmuls(model: Any) -> MatMulCount:
    """Structural proof of INT8: count the products by how they are computed.

    A QDQ MatMul is integer when both sides come out of DequantizeLinear and the activation went in through
    QuantizeLinear; with a float activation it is weight-only. Products of two activations (attention) are not counted.
    """
    index = GraphIndex(model.graph)
    integer = weight_only = plain = 0
    seen: set[str] = set()
    for node in model.graph.node:
        if node.op_type in ("MatMulInteger", "QLinearMatMul", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"):
            integer += 1
        elif node.op_type == "MatMulNBits":
            weight_only += 1
        elif node.op_type in ("MatMul", "Gemm"):
            right = index.producer.get(node.input[1])
            if right is not None and right.op_type == "DequantizeLinear" and right.input[0] in index.initializers:
                left = index.producer.get(node.input[0])
                quantized = left is not None and left.op_type == "DequantizeLinear"
                if quantized and right.input[0] in seen:
                    continue  # the second digit of an activation, on the same weight
                seen.update([right.input[0]] if quantized else [])
                integer, weight_only = integer + quantized, weight_only + (not quantized)
            elif node.input[1] in index.initializers:
                plain += 1
    return MatMulCount(integer, weight_only, plain)


def integer_weights(model: Any) -> dict[str, NDArray[np.int8]]:
    """The INT8 weights that meet integer products, by name. UINT8 weights are not among them: they can't saturate."""
    index = GraphIndex(model.graph)
    found: dict[str, NDArray[np.int8]] = {}
    for node in model.graph.node:
        name = node.input[1] if len(node.input) > 1 else ""
        if node.op_type in ("MatMul", "Gemm") and name in index.producer:
            left = index.producer.get(node.input[0])
            if left is None or left.op_type != "DequantizeLinear":
                continue
            name = index.producer[name].input[0]
        elif node.op_type == "QLinearMatMul":
            name = node.input[3]
        elif node.op_type not in ("MatMulInteger", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"):
            continue
        value = index.constant(name)
        if value is not None and value.dtype == np.int8:
            found[name] = value
    return found


def largest_integer_weight(model: Any) -> int:
    """Largest magnitude among `integer_weights`, 0 without any."""
    return max((int(np.abs(value.astype(np.int16)).max()) for value in integer_weights(model).values()), default=0)


def needs_onnxruntime(model: Any) -> str:
    """The first ONNX Runtime that has the graph's ``com.microsoft`` operators for CPUs; empty without any."""
    needed = [(1, 0)]
    for node in model.graph.node:
        bits = next((item.i for item in node.attribute if item.name == "bits"), 4)
        needed.append(_FIRST_RUNTIME.get((node.op_type, bits), (1, 0)))
    newest = max(needed)
    return ".".join(map(str, newest)) if newest > (1, 0) else ""


_FIRST_RUNTIME = {("MatMulNBits", 4): (1, 17), ("MatMulNBits", 8): (1, 23), ("GatherBlockQuantized", 4): (1, 22)}
"""By operator and bits, tried with each version; GatherBlockQuantized on UINT8 data."""


def describe_variant(file: Path, relative: str, kind: Kind, dependence: float, cosine_floor: float,
                     recipe: dict[str, Any] | None = None, notes: list[str] | None = None) -> Variant:
    """The manifest entry of a graph, its structure read from the file itself."""
    model = onnx.load(str(file))
    count = count_matmuls(model)
    return Variant(
        file=relative, kind=kind, size=file.stat().st_size, integer_matmuls=count.integer,
        weight_only_matmuls=count.weight_only, float_matmuls=count.plain, cosine_floor=cosine_floor,
        batch_invariant=dependence >= INVARIANT, batch_dependence=round(dependence, 9),
        needs_custom_ops=any(node.domain not in ("", "ai.onnx") for node in model.graph.node),
        needs_onnxruntime=needs_onnxruntime(model), largest_integer_weight=largest_integer_weight(model),
        opset=max(item.version for item in model.opset_import if item.domain in ("", "ai.onnx")),
        ir_version=model.ir_version, recipe=recipe or {}, notes=notes or [])
