"""Dynamic INT8: activation ranges are taken from each batch as it comes, so no calibration is needed.

The range is that of the whole batch, padding included, so a text's vector moves a little with its neighbours. That is
measured and written in the manifest.
"""

from __future__ import annotations

from typing import Any

import onnx
from onnx import helper

from distilface.isa import FULL_RANGE
from distilface.onnxgraph import GraphIndex, add_initializers, remove_unused, sort_topologically
from distilface.quantization.norms import smooth_layer_norms
from distilface.quantization.weights import symmetric_int8


def quantize_dynamic(model: Any, limit: int = FULL_RANGE) -> Any:
    """A copy of a float32 graph with integer MatMuls: per-channel INT8 weights, UINT8 activations ranged at run time.

    ``DynamicQuantizeLinear -> MatMulInteger -> Cast -> Mul`` in standard operators, in the arrangement that ONNX
    Runtime fuses into one kernel. MatMuls that read the same activation share its quantization.

    Args:
        limit: largest INT8 weight; 64 where the processor adds pairs of products in 16 bits (no VNNI).
    """
    quantized = onnx.ModelProto()
    quantized.CopyFrom(model)
    smooth_layer_norms(quantized)
    graph = quantized.graph
    index = GraphIndex(graph)
    nodes: list[Any] = []
    ranged: set[str] = set()
    for matmul in index.weight_matmuls():
        source, weight_name = matmul.input
        out, name = matmul.output[0], matmul.name or matmul.output[0]
        weight = index.constant(weight_name)
        assert weight is not None
        values, scale = symmetric_int8(weight, axis=0, limit=limit)
        add_initializers(graph, {f"{name}_weight": values, f"{name}_weight_scale": scale[0]})
        if source not in ranged:
            ranged.add(source)
            nodes.append(helper.make_node(
                "DynamicQuantizeLinear", [source], [f"{source}_uint8", f"{source}_scale", f"{source}_zero"],
                f"{source}_quantize"))
        nodes += [
            helper.make_node("MatMulInteger", [f"{source}_uint8", f"{name}_weight", f"{source}_zero"],
                             [f"{name}_int32"], f"{name}_integer"),
            helper.make_node("Cast", [f"{name}_int32"], [f"{name}_float"], f"{name}_cast", to=onnx.TensorProto.FLOAT),
            helper.make_node("Mul", [f"{source}_scale", f"{name}_weight_scale"], [f"{name}_scale"], f"{name}_scales"),
            helper.make_node("Mul", [f"{name}_float", f"{name}_scale"], [out], f"{name}_rescale"),
        ]
        graph.node.remove(matmul)
    graph.node.extend(nodes)
    remove_unused(graph)
    sort_topologically(graph)
    return quantized
