"""What the manifest and `bench` say of a variant beside its numbers."""

from __future__ import annotations

from typing import Any

from distilface.artifact import Variant
from distilface.isa import PAIR_LIMIT
from distilface.onnxgraph import GraphIndex
from distilface.quantization.recipe import Recipe


def notes_on(variant: Variant, recipe: Recipe, model: Any) -> list[str]:
    """Sentences for whoever ships the variant.

    Args:
        variant: the entry as measured.
        model: its graph.
    """
    notes = []
    if not variant.batch_invariant:
        notes.append(f"a vector depends on what else is in its batch: cosine down to {variant.batch_dependence:.4f} "
                     "between a text alone and beside long ones")
    if variant.largest_integer_weight > PAIR_LIMIT:
        notes.append("weights use the full INT8 range; on x86 processors without VNNI the products can saturate")
    if recipe.mode == "fp16":
        notes.append("for GPUs: ONNX Runtime's CPU provider has no half-precision kernels, casts to float32 and is no "
                     "faster than fp32")
    if variant.needs_onnxruntime:
        notes.append(f"needs onnxruntime {variant.needs_onnxruntime} or newer")
    left = float_matmuls(model) if recipe.mode != "fp16" else []
    if left:
        notes.append(f"{len(left)} MatMul{'s stay' if len(left) > 1 else ' stays'} float: {', '.join(left[:5])}"
                     f"{', ...' if len(left) > 5 else ''}")
    return notes


def float_matmuls(model: Any) -> list[str]:
    """Names of the MatMuls whose weight is still float."""
    index = GraphIndex(model.graph)
    return [node.name or node.output[0] for node in model.graph.node
            if node.op_type in ("MatMul", "Gemm") and node.input[1] in index.initializers]
