"""From a recipe to a graph file: one maker for each mode, then the embedding tables."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distilface.errors import UserError
from distilface.quantization.recipe import BITS, Recipe
from distilface.tokenizer import Tokenizer

Progress = Callable[[str, int, int], None]
QUANTIZED_OPS = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "QLinearMatMul",
                 "MatMulNBits", "GatherBlockQuantized", "QGemm", "QAttention", "DynamicQuantizeMatMul"}
DYNAMIC_HINT = "Try --mode static with --calibration FILE"


def write_graph(graph: Path, scratch: Path, recipe: Recipe, tokenizer: Tokenizer, fitting: list[str], words: list[str],
                say: Progress, passes: Callable[[], bool]) -> tuple[dict[str, Any], str]:
    """Write the graph that ``recipe`` asks for.

    Args:
        graph: the float32 graph.
        fitting: texts to calibrate static INT8 and 4-bit weights on; ``words``: to count words in, for codebooks.
        passes: whether what is in ``scratch`` now passes the gate; asked where nodes may stay float.

    Returns:
        what to record in the manifest, and what to try where the gate finds it not good enough.

    Raises:
        UserError: ``graph`` is no float32 graph.
        GateError: it gives values that are not finite.
    """
    import onnx

    from distilface.onnxgraph import GraphIndex
    from distilface.quantization.tables import quantize_tables

    model = onnx.load(str(graph))
    quantized_already = sorted({node.op_type for node in model.graph.node} & QUANTIZED_OPS)
    if quantized_already or not GraphIndex(model.graph).weight_matmuls():
        raise UserError(f"{str(graph)!r} is quantized already: it has "
                        f"{', '.join(quantized_already) or 'no MatMul with a float weight'}; give the float32 graph")

    def finish(quantized: Any) -> None:
        quantize_tables(quantized, recipe.tables, recipe.kind == "weight-only", ids)
        onnx.checker.check_model(quantized)
        onnx.save_model(quantized, str(scratch))

    say("quantizing", 0, 1)
    counted = recipe.tables == "pq" and bool(words)
    ids = np.concatenate(tokenizer.encode_batch(words)) if counted else None
    if recipe.mode == "static":
        record, hint = _static(model, recipe, tokenizer, fitting, say, finish, passes)
    else:
        quantized, record, hint = _other(model, recipe, tokenizer, fitting, say)
        finish(quantized)
    say("quantizing", 1, 1)
    corpus = {"words_counted_in": {"texts": len(words), "sha256": _hash(words)}} if counted else {}
    return {"mode": recipe.mode, **record, "tables": recipe.tables, **corpus}, hint


def _other(model: Any, recipe: Recipe, tokenizer: Tokenizer, fitting: list[str],
           say: Progress) -> tuple[Any, dict[str, Any], str]:
    if recipe.mode == "fp16":
        from distilface.quantization.half import to_half

        return to_half(model), {"weights": "float16"}, "A value may exceed 65,504, the largest in half precision"
    if recipe.mode in BITS:
        return _weight_only(model, recipe, tokenizer, fitting, say)
    record = {"weights": "int8 per channel", "target_isa": recipe.target_isa}
    if recipe.mode == "token":
        from distilface.quantization.per_token import quantize_per_token

        return quantize_per_token(model, recipe.limit), record, DYNAMIC_HINT
    from distilface.quantization.dynamic import quantize_dynamic

    return quantize_dynamic(model, recipe.limit), record, DYNAMIC_HINT


def _weight_only(model: Any, recipe: Recipe, tokenizer: Tokenizer, fitting: list[str],
                 say: Progress) -> tuple[Any, dict[str, Any], str]:
    from distilface.onnxgraph import GraphIndex
    from distilface.quantization.gptq import second_moments
    from distilface.quantization.weight_only import quantize_weight_only

    bits, size = BITS[recipe.mode], recipe.block_size
    assert size is not None
    record: dict[str, Any] = {"weights": f"{bits} bits in blocks of {size}", "rounding": "nearest"}
    moments = None
    if fitting:
        sources = list(dict.fromkeys(node.input[0] for node in GraphIndex(model.graph).weight_matmuls()))
        moments = second_moments(model, sources, tokenizer, fitting,
                                 lambda done, total: say("calibrating", done, total))
        record |= {"rounding": "gptq", "calibration": {"texts": len(fitting), "sha256": _hash(fitting)}}
    hint = "Try " + ("" if fitting else "--calibration FILE, ") + "a smaller --block-size, or --weights 8"
    return quantize_weight_only(model, bits, size, moments), record, hint


def _static(model: Any, recipe: Recipe, tokenizer: Tokenizer, fitting: list[str], say: Progress,
            finish: Callable[[Any], None], passes: Callable[[], bool]) -> tuple[dict[str, Any], str]:
    from distilface.calibration import collect
    from distilface.quantization.sensitivity import effects, fewest, sources_to_keep
    from distilface.quantization.static import apply, groups_of, left_out, solve

    assert recipe.keep_float is not None and recipe.ranges is not None
    stats = collect(model, [group.source for group in groups_of(model)], tokenizer, fitting,
                    lambda done, total: say("calibrating", done, total))
    solutions = solve(model, stats, recipe.limit, recipe.ranges, lambda done, total: say("quantizing", done, total))
    ranked = effects(model, solutions, tokenizer, fitting, lambda done, total: say("judging nodes", done, total))

    def works(kept: list[str]) -> bool:
        finish(apply(model, solutions, kept, recipe.signed))
        return passes()

    kept = sources_to_keep(recipe.keep_float, ranked, solutions)
    if kept is None:
        kept = fewest(list(ranked), works)
    else:
        finish(apply(model, solutions, kept, recipe.signed))
    worst = ", ".join(f"{source} ({effect:.1e} of cosine)" for source, effect in list(ranked.items())[:3])
    return {
        "weights": "int8 per channel", "target_isa": recipe.target_isa, "ranges": recipe.ranges,
        "calibration": {"texts": len(fitting), "sha256": _hash(fitting)}, "kept_float": kept,
        "left_out": left_out(model, solutions),
        "groups": {source: {
            "nodes": list(solutions[source].group.nodes), "effect": float(f"{effect:.3g}"),
            "smoothing": solutions[source].choice.smoothing, "low": round(solutions[source].choice.low, 4),
            "high": round(solutions[source].choice.high, 4),
            "relative_error": float(f"{solutions[source].choice.error:.3g}")} for source, effect in ranked.items()},
    }, f"The nodes that hurt most: {worst}. Try --keep-float N or more calibration texts of the right kind"


def _hash(texts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()
