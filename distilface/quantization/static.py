"""Static INT8: activation ranges fixed beforehand on the user's sentences, so a vector never depends on its neighbours.

Each MatMul with a constant weight gets QuantizeLinear / DequantizeLinear around it (QDQ) and takes its bias in (Gemm),
which ONNX Runtime and OpenVINO turn into one integer kernel. What keeps the quality, for each group of MatMuls that
read the same activation, all of it measured by the error of their output on a sample of real tokens:

1. SmoothQuant (`smoothing`), its strength searched. It is free behind attention, where it folds into the value
   weights. Elsewhere it costs a multiplication, because the residual connection reads the same tensor; a group gets
   one only where that halves the error.
2. The range (`ranges`) that leaves the least error. Transformers have a few channels that one token of each text
   drives far beyond all others, to nearly the same value every time (Sun et al., COLM 2024). Cutting them off is
   harmless once their weights are raised to match, ``g = <x, x'> / <x', x'>``: the other channels keep fine steps.
3. GPTQ (`rounding`): weights rounded so that they make up for each other's errors on those tokens.
4. Bias correction (Nagel et al., ICCV 2019): the mean error that remains is subtracted from the bias.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from distilface.calibration import ActivationStats
from distilface.isa import FULL_RANGE
from distilface.onnxgraph import GraphIndex, add_initializers, remove_unused, sort_topologically
from distilface.quantization.choice import Choice, choose
from distilface.quantization.ranges import SEARCH
from distilface.quantization.rounding import round_columns
from distilface.quantization.smoothing import fold_into_value, value_projection
from distilface.quantization.weights import symmetric_int8, zero_points

Array = NDArray[np.float32]

DAMPING = 0.02
"""Of GPTQ: the sample may hold fewer tokens than there are channels."""


@dataclass(frozen=True)
class Group:
    """MatMuls that read the same activation (query, key and value, for one): their outputs, weights and node names."""

    source: str
    matmuls: tuple[str, ...]
    weights: tuple[str, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class QuantizedWeight:
    """INT8 weights ``[K, N]``, one scale an output channel ``[1, N]``, and the mean error that the bias takes in."""

    integers: NDArray[np.int8]
    scale: Array
    drift: Array


@dataclass(frozen=True)
class Solution:
    """One group, quantized."""

    group: Group
    choice: Choice
    weights: tuple[QuantizedWeight, ...]


def groups_of(model: Any) -> list[Group]:
    """The groups of a float32 graph, in graph order."""
    found: dict[str, list[Any]] = {}
    for node in GraphIndex(model.graph).weight_matmuls():
        found.setdefault(node.input[0], []).append(node)
    return [Group(source, tuple(node.output[0] for node in nodes), tuple(node.input[1] for node in nodes),
                  tuple(node.name for node in nodes))
            for source, nodes in found.items()]


_WEIGHTED = ("MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "LSTM", "GRU", "RNN")


def left_out(model: Any, solved: Iterable[str]) -> list[str]:
    """What has a float weight and is in no solved group, by operator and name.

    Args:
        solved: sources of the groups that are quantized. A group is not where its rows are neither tokens nor texts.
    """
    index = GraphIndex(model.graph)
    done = {output for group in groups_of(model) if group.source in set(solved) for output in group.matmuls}
    return [f"{node.op_type} {node.name or node.output[0]}" for node in model.graph.node
            if node.op_type in _WEIGHTED and node.output[0] not in done
            and any(len(index.initializers[name].dims) > 1 for name in node.input if name in index.initializers)]


def solve(model: Any, stats: dict[str, ActivationStats], limit: int = FULL_RANGE, ranges: str = SEARCH,
          progress: Callable[[int, int], None] | None = None) -> dict[str, Solution]:
    """Quantize every group that has statistics, one by one; nothing is put into a graph yet.

    Args:
        stats: statistics by the groups' sources, from `calibration.collect`.
        limit: largest INT8 weight; 64 where the processor adds pairs of products in 16 bits (no VNNI).
        ranges: one of `ranges.RANGE_METHODS`.
    """
    index = GraphIndex(model.graph)
    solutions: dict[str, Solution] = {}
    groups = [group for group in groups_of(model) if group.source in stats]
    for done, group in enumerate(groups):
        if progress is not None:
            progress(done, len(groups))
        weights = [_weight(index, name) for name in group.weights]
        sample = stats[group.source].sample
        choice = choose(stats[group.source], np.concatenate(weights, axis=1),
                        attention=value_projection(index, group.source) is not None, limit=limit, ranges=ranges)
        seen = choice.seen(sample)
        solutions[group.source] = Solution(
            group, choice, tuple(_round(choice, sample, seen, weight, limit) for weight in weights))
    return solutions


def _round(choice: Choice, sample: Array, seen: Array, weight: Array, limit: int) -> QuantizedWeight:
    wanted = choice.sharpen(weight) * choice.gains[:, None]
    _, scale = symmetric_int8(wanted, axis=0, limit=limit)
    moments = (seen.T @ seen).astype(np.float64)
    loudest = np.argsort(-np.diag(moments))  # first, while many channels are left to make up for them
    codes = round_columns(wanted[loudest].T, moments[np.ix_(loudest, loudest)], scale.T.astype(np.float64),
                          np.zeros(1), -limit, limit, DAMPING)
    integers = np.empty(wanted.shape, dtype=np.int8)
    integers[loudest] = codes.T
    drift = (seen @ (integers.astype(np.float32) * scale) - sample @ weight).mean(axis=0)
    return QuantizedWeight(integers, scale, drift)


def apply(model: Any, solutions: dict[str, Solution], keep_float: Iterable[str] = (), signed: bool = False) -> Any:
    """A copy of a float32 graph with QDQ around the MatMuls of every solution.

    Args:
        keep_float: sources of groups that stay float.
        signed: activations as INT8 instead of UINT8, the same steps; what Arm kernels are fastest on.
    """
    quantized = onnx.ModelProto()
    quantized.CopyFrom(model)
    graph = quantized.graph
    kept = set(keep_float)
    for source, solution in solutions.items():
        if source in kept:
            continue
        index = GraphIndex(graph)
        value = value_projection(index, source)
        if solution.choice.factors is not None and value is not None:
            fold_into_value(index, value, solution.choice.factors)
        _insert(graph, solution, folded=value is not None, signed=signed)
    remove_unused(graph)
    sort_topologically(graph)
    return quantized


def quantize_static(model: Any, stats: dict[str, ActivationStats], keep_float: Iterable[str] = (),
                    limit: int = FULL_RANGE, signed: bool = False) -> tuple[Any, dict[str, Solution]]:
    """`solve` and `apply` in one: the graph, and what was decided."""
    solutions = solve(model, stats, limit)
    return apply(model, solutions, keep_float, signed), solutions


def _insert(graph: Any, solution: Solution, folded: bool, signed: bool) -> None:
    index = GraphIndex(graph)
    group, choice, source = solution.group, solution.choice, solution.group.source
    values = source
    nodes: list[Any] = []
    constants: dict[str, Any] = {f"{source}_scale": np.float32(choice.scale),
                                 f"{source}_zero": (np.int8(choice.zero_point - 128) if signed else
                                                    np.uint8(choice.zero_point))}
    if choice.factors is not None and not folded:
        values = f"{source}_smooth"
        constants[f"{source}_factors"] = 1 / choice.factors
        nodes.append(helper.make_node("Mul", [source, f"{source}_factors"], [values], f"{source}_smoothing"))
    ends = [f"{source}_scale", f"{source}_zero"]
    nodes += [
        helper.make_node("QuantizeLinear", [values, *ends], [f"{source}_uint8"], f"{source}_quantize"),
        helper.make_node("DequantizeLinear", [f"{source}_uint8", *ends], [f"{source}_dq"], f"{source}_dequantize"),
    ]
    for output, weight in zip(group.matmuls, solution.weights, strict=True):
        scale = weight.scale[0]
        constants |= {f"{output}_weight": weight.integers, f"{output}_weight_scale": scale}
        nodes.append(helper.make_node(
            "DequantizeLinear", [f"{output}_weight", f"{output}_weight_scale", zero_points(graph, len(scale))],
            [f"{output}_weight_dq"], f"{output}_weight_dequantize", axis=1))
        node = index.producer[output]
        ends = [f"{source}_dq", f"{output}_weight_dq"]
        bias = _bias_of(index, output)
        if bias is None:
            node.input[:] = ends
            continue
        add, value = bias
        steps = scale * np.float32(choice.scale)
        constants |= {f"{output}_bias": np.rint((value - weight.drift) / steps).astype(np.int32),
                      f"{output}_bias_scale": steps}
        nodes += [
            helper.make_node("DequantizeLinear", [f"{output}_bias", f"{output}_bias_scale"], [f"{output}_bias_dq"],
                             f"{output}_bias_dequantize", axis=0),
            helper.make_node("Gemm", [*ends, f"{output}_bias_dq"], [add.output[0]], f"{output}_gemm"),
        ]
        graph.node.remove(node)
        graph.node.remove(add)
    add_initializers(graph, constants)
    graph.node.extend(nodes)


def _bias_of(index: GraphIndex, output: str) -> tuple[Any, Array] | None:
    """The Add of a bias behind a two-dimensional MatMul, and the bias; a Gemm can take its place."""
    consumers = index.consumers.get(output, [])
    if len(consumers) != 1 or consumers[0].op_type != "Add":
        return None
    names = [name for name in consumers[0].input if name in index.initializers]
    bias = index.constant(names[0]) if len(names) == 1 else None
    return (consumers[0], bias) if bias is not None and bias.ndim == 1 else None


def _weight(index: GraphIndex, name: str) -> Array:
    value = index.constant(name)
    assert value is not None
    return value.astype(np.float32)
