"""Static INT8: activation ranges fixed beforehand on the user's sentences, so a vector never depends on its neighbours.

Each MatMul with a constant weight gets QuantizeLinear / DequantizeLinear around it (QDQ) and takes its bias in (Gemm),
which ONNX Runtime and OpenVINO turn into one integer kernel. Three steps keep the quality:

1. SmoothQuant (Xiao et al., ICML 2023, eq. 4): channels with outliers hand their size to the weights,
   ``s = max|X|^a / max|W|^(1-a)``; ``a`` is searched per group of MatMuls that read the same activation.
2. The activation range is searched too: clipping rare outliers can cost less than coarse steps for all the others.
   Both searches minimise the error of the MatMul's own output on a sample of real tokens.
3. Bias correction (Nagel et al., ICCV 2019): the mean error that remains is subtracted from the bias.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from distilface.calibration import ActivationStats
from distilface.onnxgraph import GraphIndex, add_initializers, remove_unused, sort_topologically
from distilface.quantization.weights import FULL_RANGE, quantize_tables, symmetric_int8

Array = NDArray[np.float32]

SMOOTHING = (0.0, 0.5, 0.65, 0.8, 0.9)
"""Values of ``a`` that are tried; 0 leaves the group as it is and costs no operator."""
CLIPPING = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
"""Fractions of the observed range that are tried."""
WORTH_A_MULTIPLICATION = 0.9
"""Smoothing that can't be folded costs one multiplication a group; it must cut the error at least to this fraction."""


@dataclass(frozen=True)
class Group:
    """MatMuls that read the same activation (query, key and value, for one)."""

    source: str
    matmuls: tuple[str, ...]
    weights: tuple[str, ...]


@dataclass(frozen=True)
class Choice:
    """What the search decided for one group, and the relative squared error of its outputs, ``|Y - Y'|^2 / |Y|^2``."""

    smoothing: float
    clipping: float
    scale: float
    zero_point: int
    factors: Array | None
    error: float


def groups_of(model: Any) -> list[Group]:
    """The groups of a float32 graph, in graph order."""
    found: dict[str, list[Any]] = {}
    for node in GraphIndex(model.graph).weight_matmuls():
        found.setdefault(node.input[0], []).append(node)
    return [Group(source, tuple(node.output[0] for node in nodes), tuple(node.input[1] for node in nodes))
            for source, nodes in found.items()]


def choose(stats: ActivationStats, weights: Array, foldable: bool, limit: int = FULL_RANGE) -> Choice:
    """Search smoothing and clipping for one group.

    Args:
        weights: the group's weights side by side, ``[K, N]``.
        foldable: the factors can be folded into the operator before, at no cost.
    """
    sample = stats.sample
    wanted = sample @ weights
    power = float(np.square(wanted, dtype=np.float64).sum()) or 1.0
    extreme = np.maximum(np.abs(stats.low), np.abs(stats.high)).clip(min=1e-6)
    heaviest = np.abs(weights).max(axis=1).clip(min=1e-6)

    def attempts(smoothing: float, clippings: Sequence[float]) -> Iterator[Choice]:
        factors = (extreme**smoothing / heaviest ** (1 - smoothing)).astype(np.float32) if smoothing else None
        smooth = sample if factors is None else sample / factors
        scaled = weights if factors is None else weights * factors[:, None]
        integers, weight_scale = symmetric_int8(scaled, axis=0, limit=limit)
        rounded = integers.astype(np.float32) * weight_scale
        low = float((stats.low if factors is None else stats.low / factors).min())
        high = float((stats.high if factors is None else stats.high / factors).max())
        for clipping in clippings:
            scale, zero_point = affine_uint8(low * clipping, high * clipping)
            found = fake_quantize(smooth, scale, zero_point) @ rounded
            error = float(np.square(found - wanted, dtype=np.float64).sum()) / power
            yield Choice(smoothing, clipping, scale, zero_point, factors, error)

    # One after the other, not every combination: the factors decide the range's shape, clipping only trims it.
    plain, *smoothed = [next(attempts(value, CLIPPING[:1])) for value in SMOOTHING]
    best = min(smoothed, key=lambda choice: choice.error)
    allowed = plain.error * (1.0 if foldable else WORTH_A_MULTIPLICATION)
    if not best.error < allowed:
        best = plain
    return min([best, *attempts(best.smoothing, CLIPPING[1:])], key=lambda choice: choice.error)


def affine_uint8(low: float, high: float) -> tuple[float, int]:
    """Scale and zero point of ``[low, high]`` on 0..255, with zero exactly representable."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = float(np.float32((high - low) / 255.0)) or 1.0
    return scale, int(np.clip(np.rint(-low / scale), 0, 255))


def fake_quantize(values: Array, scale: float, zero_point: int) -> Array:
    """Values as they come back from UINT8."""
    steps = np.clip(np.rint(values / np.float32(scale)) + zero_point, 0, 255)
    return ((steps - zero_point) * np.float32(scale)).astype(np.float32)


def quantize_static(model: Any, stats: dict[str, ActivationStats], keep_float: Iterable[str] = (),
                    limit: int = FULL_RANGE,
                    progress: Callable[[int, int], None] | None = None) -> tuple[Any, dict[str, Choice]]:
    """A copy of a float32 graph with QDQ around every weight MatMul, and what was chosen for each group.

    Args:
        stats: statistics of every group's source, from `calibration.collect`.
        keep_float: sources of groups that stay float.
        limit: largest INT8 weight; 64 where the processor adds pairs of products in 16 bits (no VNNI).
    """
    quantized = onnx.ModelProto()
    quantized.CopyFrom(model)
    graph = quantized.graph
    kept = set(keep_float)
    choices: dict[str, Choice] = {}
    groups = groups_of(model)
    for done, group in enumerate(groups):
        if progress is not None:
            progress(done, len(groups))
        if group.source in kept:
            continue
        index = GraphIndex(graph)
        weights = np.concatenate([_weight(index, name) for name in group.weights], axis=1)
        value = _value_projection(index, group.source)
        choice = choose(stats[group.source], weights, foldable=value is not None, limit=limit)
        choices[group.source] = choice
        if choice.factors is not None and value is not None:
            _fold_into_value(index, value, choice.factors)
        _insert(graph, group, choice, stats[group.source], folded=value is not None, limit=limit)
    quantize_tables(quantized)
    remove_unused(graph)
    sort_topologically(graph)
    return quantized, choices


def _insert(graph: Any, group: Group, choice: Choice, stats: ActivationStats, folded: bool, limit: int) -> None:
    index = GraphIndex(graph)
    source = group.source
    values = source
    nodes: list[Any] = []
    constants: dict[str, Any] = {f"{source}_scale": np.float32(choice.scale),
                                 f"{source}_zero": np.uint8(choice.zero_point)}
    if choice.factors is not None and not folded:
        values = f"{source}_smooth"
        constants[f"{source}_factors"] = 1 / choice.factors
        nodes.append(helper.make_node("Mul", [source, f"{source}_factors"], [values], f"{source}_smoothing"))
    ends = [f"{source}_scale", f"{source}_zero"]
    nodes += [
        helper.make_node("QuantizeLinear", [values, *ends], [f"{source}_uint8"], f"{source}_quantize"),
        helper.make_node("DequantizeLinear", [f"{source}_uint8", *ends], [f"{source}_dq"], f"{source}_dequantize"),
    ]
    sample = stats.sample if choice.factors is None else stats.sample / choice.factors
    seen = fake_quantize(sample, choice.scale, choice.zero_point)
    for output, weight_name in zip(group.matmuls, group.weights, strict=True):
        weight = _weight(index, weight_name)
        scaled = weight if choice.factors is None else weight * choice.factors[:, None]
        integers, scale = symmetric_int8(scaled, axis=0, limit=limit)
        constants |= {f"{output}_weight": integers, f"{output}_weight_scale": scale[0],
                      f"{output}_weight_zero": np.zeros(scale.shape[1], dtype=np.int8)}
        nodes.append(helper.make_node(
            "DequantizeLinear", [f"{output}_weight", f"{output}_weight_scale", f"{output}_weight_zero"],
            [f"{output}_weight_dq"], f"{output}_weight_dequantize", axis=1))
        drift = (seen @ (integers.astype(np.float32) * scale) - sample @ scaled).mean(axis=0)
        node = index.producer[output]
        ends = [f"{source}_dq", f"{output}_weight_dq"]
        bias = _bias_of(index, output)
        if bias is None:
            node.input[:] = ends
            continue
        add, value = bias
        steps = scale[0] * np.float32(choice.scale)
        constants |= {f"{output}_bias": np.rint((value - drift) / steps).astype(np.int32),
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


def _value_projection(index: GraphIndex, source: str) -> Any | None:
    """The value projection's MatMul when ``source`` is the merged heads of one attention, else None.

    Attention mixes tokens, never channels, so a factor on its output can move into the value weights unchanged.
    """
    name = source
    for expected, slot in (("Reshape", 0), ("Transpose", 0), ("MatMul", 1), ("Transpose", 0), ("Reshape", 0)):
        node = index.producer.get(name)
        if node is None or node.op_type != expected:
            return None
        name = node.input[slot]
    matmul = index.producer.get(name)
    return matmul if matmul is not None and matmul.op_type == "MatMul" else None


def _fold_into_value(index: GraphIndex, matmul: Any, factors: Array) -> None:
    """Divide the value projection's output channels by ``factors``: its INT8 weight scales, or the float weight."""
    weight = index.producer.get(matmul.input[1])
    name = weight.input[1] if weight is not None else matmul.input[1]
    value = index.constant(name)
    assert value is not None
    index.initializers[name].CopyFrom(numpy_helper.from_array((value / factors).astype(np.float32), name))


def _weight(index: GraphIndex, name: str) -> Array:
    value = index.constant(name)
    assert value is not None
    return value.astype(np.float32)
