"""Weight-only: MatMul weights in 8- or 4-bit blocks, multiplied in float, so a vector never depends on its neighbours.

The operator is ONNX Runtime's ``MatMulNBits`` (com.microsoft), whose kernels unpack a block at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper

from distilface.onnxgraph import GraphIndex, add_initializers, remove_unused, sort_topologically
from distilface.quantization.blocks import pack, quantize_blocks
from distilface.quantization.gptq import round_with_feedback
from distilface.quantization.rounding import Moments

MICROSOFT = "com.microsoft"


def quantize_weight_only(model: Any, bits: int, block_size: int, moments: Mapping[str, Moments] | None = None) -> Any:
    """A copy of a float32 graph whose weight MatMuls are ``MatMulNBits``.

    Args:
        bits: 8 or 4. Blocks of 4 bits have zero points: with 16 codes the fit to lopsided blocks is worth their 3 %.
        block_size: weights along the input axis that share a scale; a power of two, 16 or more.
        moments: second moments of what the MatMuls read (see `gptq`), to round with feedback; without, to nearest.
    """
    symmetric = bits == 8
    quantized = onnx.ModelProto()
    quantized.CopyFrom(model)
    graph = quantized.graph
    index = GraphIndex(graph)
    done: dict[str, list[str]] = {}
    for matmul in index.weight_matmuls():
        source, name = matmul.input
        weight = index.constant(name)
        assert weight is not None
        if name not in done:
            transposed = np.ascontiguousarray(weight.T)
            known = (moments or {}).get(source)
            blocks = (quantize_blocks(transposed, bits, block_size, symmetric) if known is None else
                      round_with_feedback(transposed, known, bits, block_size, symmetric))
            constants = {f"{name}_codes": blocks.packed().reshape(*blocks.scales.shape, -1),
                         f"{name}_scales": blocks.scales}
            if not symmetric:
                constants[f"{name}_zeros"] = pack(blocks.zero_points, bits)
            add_initializers(graph, constants)
            done[name] = list(constants)
        node = helper.make_node(
            "MatMulNBits", [source, *done[name]], list(matmul.output), matmul.name, domain=MICROSOFT,
            K=weight.shape[0], N=weight.shape[1], bits=bits, block_size=block_size)
        matmul.CopyFrom(node)
    import_microsoft(quantized)
    remove_unused(graph)
    sort_topologically(graph)
    return quantized


def import_microsoft(model: Any) -> None:
    """Declare the operator set of ONNX Runtime's own operators."""
    if all(item.domain != MICROSOFT for item in model.opset_import):
        model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
