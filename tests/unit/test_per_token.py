"""Per-token INT8: exact bookkeeping around the products, independence from neighbours, outliers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from scipy.special import erf

from distilface.onnxgraph import GraphIndex, MatMulCount, count_matmuls
from distilface.quantization.dynamic import quantize_dynamic
from distilface.quantization.norms import smooth_layer_norms
from distilface.quantization.per_token import GELU_MINIMUM, quantize_per_token, value_projections

Array = NDArray[Any]


def _normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _model(nodes: list[Any], width: int, out: int, constants: dict[str, Any]) -> Any:
    graph = helper.make_graph(
        nodes, "test", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["t", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["t", out])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def _linear(weight: Array) -> Any:
    return _model([helper.make_node("MatMul", ["x", "w"], ["y"], "product")], weight.shape[0], weight.shape[1],
                  {"w": weight})


def _gelu(weight: Array) -> Any:
    nodes = [helper.make_node("Div", ["x", "root"], ["scaled"]), helper.make_node("Erf", ["scaled"], ["erf"]),
             helper.make_node("Add", ["erf", "one"], ["shifted"]), helper.make_node("Mul", ["x", "shifted"], ["twice"]),
             helper.make_node("Mul", ["twice", "half"], ["gelu"]), helper.make_node("MatMul", ["gelu", "w"], ["y"])]
    return _model(nodes, weight.shape[0], weight.shape[1], {
        "root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5), "w": weight})


def _norm(gamma: Array, weight: Array) -> Any:
    nodes = [helper.make_node("LayerNormalization", ["x", "gamma", "beta"], ["n"], axis=-1),
             helper.make_node("MatMul", ["n", "w"], ["y"], "product")]
    return _model(nodes, weight.shape[0], weight.shape[1], {"gamma": gamma, "beta": np.zeros_like(gamma), "w": weight})


def _run(model: Any, x: Array) -> Array:
    onnx.checker.check_model(model)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]  # type: ignore[no-any-return]


def _relative(found: Array, wanted: Array) -> float:
    return float(np.square(found - wanted).sum() / np.square(wanted).sum())


def test_the_least_value_of_gelu_is_within_the_shift() -> None:
    values = np.linspace(-5, 5, 1_000_001)
    least = (values * 0.5 * (1 + erf(values / 2**0.5))).min()
    assert -GELU_MINIMUM <= least <= -GELU_MINIMUM + 1e-6


def test_tokens_on_the_grid_are_multiplied_exactly() -> None:
    """Values k * m / 127 and weights j / 127: the integer product is the exact one."""
    steps = np.random.default_rng(0).integers(-126, 127, (6, 16)).astype(np.float32)
    steps[:, 0] = 127  # the largest magnitude of each token
    weight = np.random.default_rng(1).integers(-126, 127, (16, 4)).astype(np.float32)
    weight[0] = 127
    magnitudes = np.array([[1e-3], [0.1], [1], [3], [500], [1e5]], dtype=np.float32)
    found = _run(quantize_per_token(_linear(weight / 127)), steps / 127 * magnitudes)
    np.testing.assert_allclose(found, steps @ weight / 127 / 127 * magnitudes, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("make", [_linear, _gelu])
def test_a_loud_neighbour_changes_nothing(make: Any) -> None:
    x = _normal(7, 32)
    x[3] *= 1000
    model = quantize_per_token(make(_normal(32, 8, seed=1)))
    together = _run(model, x)
    for row in range(7):
        np.testing.assert_array_equal(_run(model, x[row : row + 1])[0], together[row])
    plain = quantize_dynamic(make(_normal(32, 8, seed=1)))
    assert _relative(_run(plain, x)[0], _run(plain, x[:1])[0]) > 0.01  # what plain dynamic INT8 does


def test_gelu_uses_all_codes() -> None:
    """Shifted, the step is a 255th of the range; symmetric, it would be a 127th of the largest value."""
    x, weight = _normal(200, 64), _normal(64, 16, seed=1)
    found = _relative(_run(quantize_per_token(_gelu(weight)), x), _run(_gelu(weight), x))
    assert found < 1.5e-4
    assert count_matmuls(quantize_per_token(_gelu(weight))) == MatMulCount(1, 0, 0)


def test_silence_stays_silent_and_finite() -> None:
    assert (_run(quantize_per_token(_linear(_normal(16, 4))), np.zeros((2, 16), np.float32)) == 0).all()


def _attention(width: int = 16) -> Any:
    nodes = [helper.make_node("MatMul", ["x", "wq"], ["q"]), helper.make_node("MatMul", ["x", "wk"], ["k"]),
             helper.make_node("MatMul", ["x", "wv"], ["v"], "values"), helper.make_node("Add", ["v", "b"], ["vb"]),
             helper.make_node("Transpose", ["k"], ["kt"]), helper.make_node("MatMul", ["q", "kt"], ["scores"]),
             helper.make_node("Softmax", ["scores"], ["p"]), helper.make_node("MatMul", ["p", "vb"], ["y"])]
    constants: dict[str, Any] = {name: _normal(width, width, seed=i) / 8 for i, name in enumerate(("wq", "wk", "wv"))}
    return _model(nodes, width, width, constants | {"b": _normal(width, seed=9)})


def test_values_are_read_in_two_digits() -> None:
    model = _attention()
    assert [node.name for node in value_projections(GraphIndex(model.graph))] == ["values"]
    quantized = quantize_per_token(model)
    assert count_matmuls(quantized) == MatMulCount(3, 0, 0)
    onnx.checker.check_model(quantized)
    x = _normal(12, 16, seed=5)
    x[:, 0] *= 60  # one outlier channel leaves two bits to the others

    def values(graph: Any) -> Array:
        shown = onnx.ModelProto()
        shown.CopyFrom(graph)
        shown.graph.output[0].name = "v"
        return _run(shown, x)

    exact = values(model)
    index = GraphIndex(quantized.graph)
    weight = index.constant("values_weight")
    scale = index.constant("values_weight_scale")
    assert weight is not None and scale is not None
    rounded = x @ (weight.astype(np.float32) * scale)  # the weights' own rounding is not the digits' business
    assert _relative(values(quantized), rounded) < 1e-8 < 2e-5 < _relative(_one_digit(x) @ (weight * scale), rounded)
    assert _relative(values(quantized), exact) < 1e-4


def _one_digit(x: Array) -> Array:
    most = np.abs(x).max(axis=1, keepdims=True)
    return np.asarray(np.rint(x / most * 127) / 127 * most)


def test_smoothing_keeps_the_function_and_lowers_the_error() -> None:
    gamma = np.ones(64, dtype=np.float32)
    gamma[5] = 50  # an outlier channel
    weight, x = _normal(64, 16, seed=1), _normal(50, 64, seed=2)
    model = _norm(gamma, weight)
    wanted = _run(model, x)
    smoothed = onnx.ModelProto()
    smoothed.CopyFrom(model)
    assert smooth_layer_norms(smoothed) == 1
    np.testing.assert_allclose(_run(smoothed, x), wanted, rtol=1e-4, atol=1e-4)
    unsmoothed = _model(list(model.graph.node)[1:], 64, 16, {"w": weight})  # the same product without the LayerNorm
    unsmoothed.graph.node[0].input[0] = "x"
    normed = (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True) * gamma
    for quantize in (quantize_dynamic, quantize_per_token):
        assert _relative(_run(quantize(model), x), wanted) < 0.5 * _relative(_run(quantize(unsmoothed), normed), wanted)
