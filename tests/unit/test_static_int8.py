"""Static INT8 by hand: smoothing, clipping with gains, GPTQ, bias correction, and what stays float."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from distilface.onnxgraph import GraphIndex, count_matmuls
from distilface.quantization.choice import SKETCH, SMOOTHING, affine_uint8, choose, fake_quantize
from distilface.quantization.smoothing import fold_into_value, value_projection
from distilface.quantization.static import left_out, quantize_static
from distilface.quantization.weights import symmetric_int8, zero_points
from tests.toy_graphs import graph_of, linear, run_graph, stats_of

Array = NDArray[Any]
FLOAT = TensorProto.FLOAT


def test_a_channel_with_outliers_is_smoothed() -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=(500, 16))
    values[:, 3] *= 100
    weight = random.normal(size=(16, 8)).astype(np.float32)
    choice = choose(stats_of(values), weight, attention=True)
    assert choice.smoothing > 0 and choice.factors is not None
    scale, zero = affine_uint8(float(values.min()), float(values.max()))
    integers, weight_scale = symmetric_int8(weight, axis=0)
    plain = fake_quantize(values.astype(np.float32), scale, zero) @ (integers * weight_scale)
    exact = values @ weight
    assert choice.error < 0.5 * np.square(plain - exact).sum() / np.square(exact).sum()


def test_the_factors_are_those_of_smoothquant() -> None:
    values = np.array([[4.0, -1.0], [-16.0, 0.25]])
    weight = np.array([[1.0, -0.25], [0.5, 4.0]], dtype=np.float32)
    choice = choose(stats_of(np.repeat(values, 20, axis=0)), weight, attention=True)
    if choice.factors is None:
        pytest.fail("an outlier of 16 beside 1 must be smoothed")
    # Eq. 4 with max|X| = [16, 1] and max|W| = [1, 4]
    expected = np.array([16.0, 1.0]) ** choice.smoothing / np.array([1.0, 4.0]) ** (1 - choice.smoothing)
    np.testing.assert_allclose(choice.factors, expected, rtol=1e-6)


def test_the_error_is_that_of_the_choice() -> None:
    random = np.random.default_rng(0)
    values, weight = random.standard_t(3, size=(512, 16)).astype(np.float32), random.normal(size=(16, 8))
    choice = choose(stats_of(values), weight.astype(np.float32), attention=True)
    assert choice.smoothing in (0.0, *SMOOTHING)
    factors = np.ones(16, np.float32) if choice.factors is None else choice.factors
    integers, scale = symmetric_int8((weight * (factors * choice.gains)[:, None]).astype(np.float32), axis=0)
    found = fake_quantize(values / factors, choice.scale, choice.zero_point) @ (integers * scale)
    exact = values @ weight
    assert choice.error == pytest.approx(np.square(found - exact).sum() / np.square(exact).sum(), rel=1e-3)


def test_the_error_of_many_outputs_is_estimated_from_few_directions() -> None:
    random = np.random.default_rng(0)
    values, weight = random.normal(size=(512, 16)).astype(np.float32), random.normal(size=(16, 3 * SKETCH))
    choice = choose(stats_of(values), weight.astype(np.float32), attention=False)
    integers, scale = symmetric_int8(choice.sharpen(weight.astype(np.float32)) * choice.gains[:, None], axis=0)
    exact = values @ weight
    error = np.square(choice.seen(values) @ (integers * scale) - exact).sum() / np.square(exact).sum()
    assert choice.error == pytest.approx(error, rel=0.2)


def test_rare_outliers_are_clipped_where_that_costs_less() -> None:
    """By hand: 2 of 512 x 256 values lie at 1.5, the rest within 1. Steps of 3 / 255 cost 1.5 in all; cutting at 1
    costs 0.5 and leaves 0.7 for the steps."""
    values = np.random.default_rng(0).uniform(-1, 1, size=(512, 256)).astype(np.float32)
    values[0, 0], values[1, 1] = -1.5, 1.5
    full, cut = (np.square(fake_quantize(values, *affine_uint8(-end, end)) - values).sum() for end in (1.5, 1.0))
    assert (full, cut) == pytest.approx((1.5, 1.2), abs=0.05)
    choice = choose(stats_of(values), np.eye(256, dtype=np.float32), attention=False)
    assert choice.high < 1.4 and choice.low > -1.4


def _sink(tokens: int = 512) -> Array:
    """Channel 5 is 0 except on every 20th token, where it is 24.5 to 24.7: the sink of one token a text."""
    random = np.random.default_rng(0)
    values = np.abs(random.normal(scale=0.5, size=(tokens, 16))).astype(np.float32)
    values[:, 5] = 0
    values[::20, 5] = random.uniform(24.5, 24.7, size=len(values[::20]))
    return values


def test_a_channel_that_one_token_drives_far_out_is_cut_off_and_its_weight_raised() -> None:
    """By hand: cut at h, channel 5 reads h where it was 24.6 on average, so its weights grow by 24.6 / h."""
    values = _sink()
    weight = np.random.default_rng(1).normal(size=(16, 8)).astype(np.float32)
    choice = choose(stats_of(values), weight, attention=False)
    assert choice.factors is None  # no multiplication is worth it any more
    assert choice.high < 10
    mean = float(values[::20, 5].mean())
    assert choice.gains[5] == pytest.approx(mean / (choice.scale * (255 - choice.zero_point)), rel=1e-3)
    assert np.delete(choice.gains, 5).tolist() == pytest.approx([1.0] * 15, abs=0.05)
    full = fake_quantize(values, *affine_uint8(0.0, float(values.max())))
    integers, scale = symmetric_int8(weight, axis=0)
    exact = values @ weight
    assert choice.error < 0.2 * np.square(full @ (integers * scale) - exact).sum() / np.square(exact).sum()


def test_attention_is_left_headroom() -> None:
    values = np.random.default_rng(0).uniform(-1, 1, size=(512, 16))
    weight = np.random.default_rng(1).normal(size=(16, 8)).astype(np.float32)
    choice = choose(stats_of(values), weight, attention=True)
    smooth = choice.smooth(values.astype(np.float32))
    assert (choice.low, choice.high) == pytest.approx((1.2 * smooth.min(), 1.2 * smooth.max()), rel=1e-3)


def test_a_graph_with_such_a_channel_keeps_its_outputs() -> None:
    values, random = _sink(), np.random.default_rng(1)
    model = linear(random.normal(size=(16, 8)), random.normal(size=8))
    static, solutions = quantize_static(model, {"x": stats_of(values)})
    assert solutions["x"].choice.gains[5] > 2
    exact, found = run_graph(model, x=values), run_graph(static, x=values)
    ordinary = np.arange(len(values)) % 20 > 0
    assert np.abs(found - exact)[ordinary].max() < 0.12  # steps of the full range, 24.7 / 255, would cost 0.3


def test_smoothing_that_costs_a_multiplication_must_halve_the_error() -> None:
    random = np.random.default_rng(0)
    values = random.normal(size=(512, 16)) * np.linspace(1, 2, 16)
    weight = random.normal(size=(16, 32)).astype(np.float32)
    folded, paid = (choose(stats_of(values), weight, attention=attention) for attention in (True, False))
    assert folded.factors is not None and paid.factors is None and paid.error < 2 * folded.error


def test_gptq_beats_rounding_to_the_nearest_on_correlated_inputs() -> None:
    random = np.random.default_rng(0)
    values = (random.normal(size=(800, 4)) @ random.normal(size=(4, 16)) + 0.1 * random.normal(size=(800, 16)))
    weight = random.normal(size=(16, 8)).astype(np.float32)
    _, solutions = quantize_static(linear(weight), {"x": stats_of(values)}, limit=7)
    solution = solutions["x"]
    seen = solution.choice.seen(values.astype(np.float32))
    (quantized,) = solution.weights
    wanted = solution.choice.sharpen(weight) * solution.choice.gains[:, None]
    nearest, scale = symmetric_int8(wanted, axis=0, limit=7)
    assert np.abs(quantized.integers).max() <= 7
    np.testing.assert_array_equal(quantized.scale, scale)
    errors = [np.square(seen @ (integers * scale) - seen @ wanted).sum() for integers in (quantized.integers, nearest)]
    assert errors[0] < 0.5 * errors[1]


def test_what_is_left_out_is_listed() -> None:
    random = np.random.default_rng(0)
    constants = {"w": random.normal(size=(16, 8)), "v": random.normal(size=(8, 8)), "k": random.normal(size=(4, 8, 1))}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], "known"),
             helper.make_node("Gemm", ["a", "v"], ["c"], "dense"),
             helper.make_node("Transpose", ["c"], ["d"], "turn"), helper.make_node("Unsqueeze", ["d", "zero"], ["e"]),
             helper.make_node("Conv", ["e", "k"], ["y"], "mixing")]
    model = graph_of(nodes, {"x": ["t", 16]}, {"y": [1, 4, "t"]},
                     {name: value.astype(np.float32) for name, value in constants.items()} | {"zero": np.array([0])})
    assert left_out(model, ["x"]) == ["Gemm dense", "Conv mixing"]
    assert left_out(model, []) == ["MatMul known", "Gemm dense", "Conv mixing"]


@pytest.mark.parametrize("attention", [False, True])
def test_silent_activations_and_weights_give_a_usable_scale(attention: bool) -> None:
    choice = choose(stats_of(np.zeros((10, 4))), np.zeros((4, 3), np.float32), attention)
    assert np.isfinite(choice.scale) and choice.scale > 0 and choice.error == 0


def test_weights_of_one_width_share_their_zeros() -> None:
    graph = onnx.GraphProto()
    first, second, third = (zero_points(graph, channels) for channels in (3, 5, 3))
    assert first == third != second
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    assert len(graph.initializer) == 2 and stored[first].dtype == np.int8
    assert stored[first].tolist() == [0, 0, 0] and stored[second].tolist() == [0, 0, 0, 0, 0]


@pytest.mark.parametrize("outlier", [1.0, 100.0])
def test_bias_correction_removes_the_mean_error_on_the_calibration_tokens(outlier: float) -> None:
    random = np.random.default_rng(0)
    values = np.abs(random.normal(size=(400, 16))).astype(np.float32)  # one-sided: rounding does not cancel
    values[:, 3] *= outlier
    bias = random.normal(size=8).astype(np.float32)
    model = linear(random.normal(size=(16, 8)), bias)
    static, solutions = quantize_static(model, {"x": stats_of(values)})
    onnx.checker.check_model(static, full_check=True)
    assert outlier == 1 or solutions["x"].choice.factors is not None
    exact = run_graph(model, x=values)
    error = (run_graph(static, x=values) - exact).mean(axis=0)
    index = GraphIndex(static.graph)
    step = index.constant("xw_bias_scale")
    assert step is not None
    # What is left is that the bias itself is rounded to INT32 steps of (activation scale x weight scale).
    assert (np.abs(error) <= step / 2 + 1e-5 * np.abs(exact).mean()).all()
    # Undo the correction, and the error is there.
    index.initializers["xw_bias"].CopyFrom(numpy_helper.from_array(np.rint(bias / step).astype(np.int32), "xw_bias"))
    uncorrected = (run_graph(static, x=values) - exact).mean(axis=0)
    assert float(np.abs(uncorrected).max()) > 5 * float(np.abs(error).max())


def test_a_bias_that_others_read_keeps_its_value() -> None:
    random = np.random.default_rng(0)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], "m"), helper.make_node("Add", ["a", "b"], ["c"]),
             helper.make_node("Add", ["c", "b"], ["y"])]
    bias, values = random.normal(size=8).astype(np.float32), random.normal(size=(100, 16)).astype(np.float32)
    weight = random.normal(size=(16, 8)).astype(np.float32)
    model = graph_of(nodes, {"x": ["t", 16]}, {"y": ["t", 8]}, {"w": weight, "b": bias})
    static, _ = quantize_static(model, {"x": stats_of(values)})
    np.testing.assert_array_equal(GraphIndex(static.graph).constant("b"), bias)
    found, exact = run_graph(static, x=values), values @ weight + 2 * bias
    assert np.square(found - exact).sum() < 1e-3 * np.square(exact).sum()


LENGTH = 5


def _attention(heads: int = 2, width: int = 8) -> Any:
    """One attention on tokens ``[batch * 5, width]``, as exported: value, merge of the heads, output projection."""
    random = np.random.default_rng(0)
    size = width // heads
    constants: dict[str, Any] = {
        name: random.normal(size=(width, width)).astype(np.float32) for name in ("wq", "wk", "wv", "wo")}
    constants |= {name: random.normal(size=width).astype(np.float32) for name in ("bq", "bo")}
    constants |= {"split": np.array([-1, LENGTH, heads, size]), "merge": np.array([-1, width])}

    def project(name: str, permutation: list[int]) -> list[Any]:
        return [helper.make_node("Reshape", [f"{name}_in", "split"], [f"{name}_split"]),
                helper.make_node("Transpose", [f"{name}_split"], [f"{name}_heads"], perm=permutation)]

    nodes = [
        helper.make_node("MatMul", ["x", "wq"], ["q_raw"], "query"), helper.make_node("Add", ["q_raw", "bq"], ["q_in"]),
        helper.make_node("MatMul", ["x", "wk"], ["k_in"], "key"),
        helper.make_node("MatMul", ["x", "wv"], ["v_in"], "value"),
        *project("q", [0, 2, 1, 3]), *project("k", [0, 2, 3, 1]), *project("v", [0, 2, 1, 3]),
        helper.make_node("MatMul", ["q_heads", "k_heads"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v_heads"], ["mixed"]),
        helper.make_node("Transpose", ["mixed"], ["mixed_t"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["mixed_t", "merge"], ["context"]),
        helper.make_node("MatMul", ["context", "wo"], ["o_raw"], "out"),
        helper.make_node("Add", ["o_raw", "bo"], ["y"]),
    ]
    return graph_of(nodes, {"x": ["t", width]}, {"y": ["t", width]}, constants)


def test_factors_folded_into_the_value_projection_leave_the_float_function_unchanged() -> None:
    model, folded = _attention(), _attention()
    index = GraphIndex(folded.graph)
    value = value_projection(index, "context")
    assert value is not None and value.name == "value"
    assert value_projection(index, "x") is None
    factors = np.array([0.1, 0.5, 1, 2, 4, 8, 16, 32], dtype=np.float32)
    fold_into_value(index, value, factors)
    out = index.constant("wo")
    assert out is not None
    index.initializers["wo"].CopyFrom(numpy_helper.from_array(out * factors[:, None], "wo"))
    values = np.random.default_rng(1).normal(size=(3 * LENGTH, 8)).astype(np.float32)
    np.testing.assert_allclose(run_graph(folded, x=values), run_graph(model, x=values), rtol=1e-4, atol=1e-5)


def test_an_attention_with_outliers_in_the_context_is_smoothed_at_no_cost() -> None:
    model = _attention()
    values = np.random.default_rng(1).normal(size=(40 * LENGTH, 8)).astype(np.float32)
    index = GraphIndex(model.graph)
    value = np.array(index.constant("wv"))
    value[:, 2] *= 60  # one channel of the context is 60 times the others
    index.initializers["wv"].CopyFrom(numpy_helper.from_array(value, "wv"))
    observed = onnx.ModelProto()
    observed.CopyFrom(model)
    observed.graph.output.append(helper.make_tensor_value_info("context", FLOAT, None))
    session = ort.InferenceSession(observed.SerializeToString(), providers=["CPUExecutionProvider"])
    context = session.run(["context"], {"x": values})[0]
    static, solutions = quantize_static(model, {"x": stats_of(values), "context": stats_of(context)})
    onnx.checker.check_model(static, full_check=True)
    assert solutions["context"].choice.factors is not None
    assert "context_smoothing" not in {node.name for node in static.graph.node}
    assert count_matmuls(static) == (4, 0, 0)
    exact, found = run_graph(model, x=values), run_graph(static, x=values)
    assert np.square(found - exact).sum() < 1e-3 * np.square(exact).sum()


