"""Blockwise weights: the search, the packing, GPTQ, and the operators that read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from distilface.errors import UserError
from distilface.onnxgraph import MatMulCount, count_matmuls, needs_onnxruntime
from distilface.quantization.blocks import check_block_size, pack, quantize_blocks
from distilface.quantization.gptq import round_with_feedback
from distilface.quantization.tables import quantize_tables
from distilface.quantization.weight_only import quantize_weight_only

Array = NDArray[Any]


def _linear(weight: Array) -> Any:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "product")], "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["t", weight.shape[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["t", weight.shape[1]])],
        [numpy_helper.from_array(weight.astype(np.float32), "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def _table(table: Array) -> Any:
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "input_ids"], ["y"], "words")], "test",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["b", "s"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", "s", table.shape[1]])],
        [numpy_helper.from_array(table.astype(np.float32), "table")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def _run(model: Any, **feeds: Array) -> Array:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]  # type: ignore[no-any-return]


def _normal(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _error(found: Array, wanted: Array) -> float:
    return float(np.square(found - wanted).sum())


def test_two_codes_share_a_byte_the_first_in_the_low_half() -> None:
    np.testing.assert_array_equal(pack(np.array([[1, 2, 15, 0, 7]], dtype=np.uint8), 4), [[0x21, 0x0F, 0x07]])
    np.testing.assert_array_equal(pack(np.array([[200, 3]], dtype=np.uint8), 8), [[200, 3]])


@pytest.mark.parametrize(("bits", "symmetric", "values"), [
    (4, True, [-8, -3, 0, 7]), (4, True, [8, 3, 0, -7]), (4, False, [0, 1, 14, 15]), (4, False, [-5, 0, 3, 10]),
    (8, True, [-128, -1, 5, 127]), (8, False, [-100, 0, 1, 155])])
def test_values_on_the_grid_come_back_exactly(bits: int, symmetric: bool, values: list[int]) -> None:
    row = (np.array([values * 4]) / 4).astype(np.float32)
    blocks = quantize_blocks(row, bits, 16, symmetric)
    np.testing.assert_allclose(blocks.restored(), row, atol=1e-6)
    assert blocks.symmetric or not symmetric


@pytest.mark.parametrize("symmetric", [True, False])
def test_the_search_beats_the_extremes(symmetric: bool) -> None:
    """Rounding with scales from the extremes, written out here, has the larger error on every block."""
    values = _normal(200, 32)
    if symmetric:
        scale = np.abs(values).max(axis=1, keepdims=True) / 7
        plain = np.clip(np.rint(values / scale), -8, 7) * scale
    else:
        low, high = values.min(axis=1, keepdims=True), values.max(axis=1, keepdims=True)
        scale, zero = (high - low) / 15, np.rint(-low / (high - low) * 15)
        plain = (np.clip(np.rint(values / scale) + zero, 0, 15) - zero) * scale
    searched = quantize_blocks(values, 4, 32, symmetric).restored()
    mine, theirs = (np.square(item - values).sum(axis=1) for item in (searched, plain))
    assert (mine <= theirs * 1.0001).all() and mine.sum() < 0.95 * theirs.sum()


def test_a_ragged_end_and_a_silent_block() -> None:
    values = _normal(3, 40)
    values[1, :16] = 0
    blocks = quantize_blocks(values, 4, 16, symmetric=True)
    assert blocks.scales.shape == (3, 3) and blocks.restored().shape == (3, 40)
    assert (blocks.restored()[1, :16] == 0).all() and np.isfinite(blocks.scales).all()


@pytest.mark.parametrize("size", [0, 8, 24, 100, -32])
def test_block_sizes_are_powers_of_two_from_16(size: int) -> None:
    with pytest.raises(UserError, match=f"block size is {size}; allowed: a power of two, 16 or more"):
        check_block_size(size)
    assert check_block_size(16) == 16


@pytest.mark.parametrize(("bits", "block_size", "columns"), [(4, 16, 64), (4, 32, 80), (8, 32, 64), (8, 128, 64)])
def test_the_runtime_multiplies_by_what_the_blocks_say(bits: int, block_size: int, columns: int) -> None:
    weight, x = _normal(columns, 24), _normal(5, columns, seed=1)
    model = quantize_weight_only(_linear(weight), bits, block_size)
    onnx.checker.check_model(model)
    assert count_matmuls(model) == MatMulCount(0, 1, 0)
    assert needs_onnxruntime(model) == {4: "1.17", 8: "1.23"}[bits]
    restored = quantize_blocks(weight.T.copy(), bits, block_size, symmetric=bits == 8).restored().T
    np.testing.assert_allclose(_run(model, x=x), x @ restored, atol=2e-4)
    for row in range(5):  # alone as in company
        np.testing.assert_allclose(_run(model, x=x[row : row + 1])[0], _run(model, x=x)[row], atol=2e-5)


def test_feedback_lowers_the_error_of_the_product() -> None:
    """Correlated inputs: rounding with feedback against rounding to nearest, on the product they were made for."""
    x = _normal(500, 8, seed=1) @ _normal(8, 64, seed=2) + 0.1 * _normal(500, 64, seed=3)
    weight = _normal(24, 64)
    moments = (x.T @ x).astype(np.float64)
    plain = quantize_blocks(weight, 4, 32, symmetric=False)
    better = round_with_feedback(weight, moments, 4, 32, symmetric=False)
    wanted = x @ weight.T
    assert _error(x @ better.restored().T, wanted) < 0.5 * _error(x @ plain.restored().T, wanted)
    np.testing.assert_array_equal(better.scales, plain.scales)


def test_feedback_without_correlation_rounds_to_nearest() -> None:
    weight = _normal(8, 32)
    np.testing.assert_array_equal(round_with_feedback(weight, np.eye(32), 4, 16, symmetric=True).codes,
                                  quantize_blocks(weight, 4, 16, symmetric=True).codes)
    silent = round_with_feedback(weight, np.zeros((32, 32)), 4, 16, symmetric=True)
    assert np.isfinite(silent.restored()).all()


@pytest.mark.parametrize("custom", [True, False])
def test_both_ways_of_reading_a_four_bit_table_agree(custom: bool) -> None:
    table, ids = _normal(100, 128), np.arange(100).reshape(4, 25)
    model = _table(table)
    assert quantize_tables(model, "int4", custom=custom) == 1
    onnx.checker.check_model(model)
    assert {node.domain for node in model.graph.node} == ({"", "com.microsoft"} if custom else {""})
    assert needs_onnxruntime(model) == ("1.22" if custom else "")
    blocks = quantize_blocks(table, 4, 64, symmetric=True)
    codes = blocks.codes.reshape(100, 2, 64).astype(np.float32) - 8
    expected = (codes * blocks.scales.astype(np.float16).astype(np.float32)[..., None]).reshape(100, 128)
    found = _run(model, input_ids=ids).reshape(100, 128)
    np.testing.assert_allclose(found, expected, rtol=1e-3 if custom else 1e-6, atol=1e-6)
    assert _run(model, input_ids=ids[:1, :1]).shape == (1, 1, 128)


def test_a_four_bit_table_takes_half_a_byte_a_value() -> None:
    model = _table(_normal(1000, 128))
    quantize_tables(model, "int4")
    sizes = {tensor.name: len(tensor.raw_data) for tensor in model.graph.initializer}
    assert sizes["table_int4"] == 1000 * 64 and sizes["table_scale"] == 1000 * 2 * 2


def test_a_table_too_narrow_for_blocks_takes_int8_rows_and_fp32_stays() -> None:
    model = _table(_normal(100, 24))
    quantize_tables(model, "int4")
    assert {tensor.name for tensor in model.graph.initializer} == {"table_int8", "table_scale"}
    untouched = _table(_normal(100, 64))
    assert quantize_tables(untouched, "fp32") == 0
