"""INT8 by hand: scales, saturation, tables, and a gate that can say no."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import distilface.quantization.dynamic
import distilface.quantization.static
from distilface.artifact import Bundle
from distilface.errors import GateError, UserError
from distilface.evaluation import StsPairs
from distilface.onnxgraph import GraphIndex, count_matmuls
from distilface.quantization import quantize
from distilface.quantization.choice import affine_uint8, fake_quantize
from distilface.quantization.dynamic import quantize_dynamic
from distilface.quantization.gate import GateResult, enforce, measure
from distilface.quantization.static import groups_of, quantize_static
from distilface.quantization.tables import quantize_tables
from distilface.quantization.weights import symmetric_int8
from distilface.runtime import Encoder
from distilface.smarthome import utterances
from tests.toy_graphs import graph_of, linear, run_graph, stats_of

Array = NDArray[Any]
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


# ----------------------------------------------------------------- numbers


def test_symmetric_int8_by_hand() -> None:
    # Column 0: largest 1.27, scale 0.01. Column 1: largest 254, scale 2; 3 / 2 = 1.5 rounds to even. Column 2: zero.
    weights = np.array([[1.27, 254.0, 0.0], [-0.5, 3.0, 0.0], [0.004, -254.0, 0.0]], dtype=np.float32)
    integers, scale = symmetric_int8(weights, axis=0)
    assert integers.tolist() == [[127, 127, 0], [-50, 2, 0], [0, -127, 0]]
    assert integers.dtype == np.int8 and scale.shape == (1, 3)
    np.testing.assert_allclose(scale, [[0.01, 2.0, 1.0]], rtol=1e-6)


def test_symmetric_int8_by_row_with_a_limit() -> None:
    integers, scale = symmetric_int8(np.array([[64.0, -32.0], [1.0, -1.0]], dtype=np.float32), axis=1, limit=64)
    assert integers.tolist() == [[64, -32], [64, -64]]
    np.testing.assert_allclose(scale, [[1.0], [1 / 64]])


@pytest.mark.parametrize(("low", "high", "scale", "zero"), [
    (0.0, 255.0, 1.0, 0), (-255.0, 0.0, 1.0, 255), (-1.0, 1.55, 0.01, 100), (51.0, 255.0, 1.0, 0),
    (-255.0, -51.0, 1.0, 255), (0.0, 0.0, 1.0, 0),
])
def test_affine_uint8_by_hand(low: float, high: float, scale: float, zero: int) -> None:
    found, zero_point = affine_uint8(low, high)
    assert found == pytest.approx(scale, rel=1e-6) and zero_point == zero
    assert fake_quantize(np.zeros(1, np.float32), found, zero_point).tolist() == [0.0]


def test_fake_quantize_rounds_and_clips() -> None:
    values = np.array([-3.0, -1.0, 0.004, 0.006, 1.55, 9.0], dtype=np.float32)
    np.testing.assert_allclose(fake_quantize(values, 0.01, 100), [-1.0, -1.0, 0.0, 0.01, 1.55, 1.55], atol=1e-6)


def test_fake_quantize_is_what_onnx_runtime_does() -> None:
    values = np.random.default_rng(0).normal(size=(1, 50, 8)).astype(np.float32)
    scale, zero = affine_uint8(-1.5, 2.0)
    ends = ["scale", "zero"]
    model = graph_of([helper.make_node("QuantizeLinear", ["x", *ends], ["q"]),
                    helper.make_node("DequantizeLinear", ["q", *ends], ["y"])],
                   {"x": [1, "s", 8]}, {"y": [1, "s", 8]}, {"scale": np.float32(scale), "zero": np.uint8(zero)})
    np.testing.assert_array_equal(run_graph(model, x=values), fake_quantize(values, scale, zero))


# ----------------------------------------------------------------- saturation on CPUs without VNNI


def _saturating_dot(activations: Array, weights: Array) -> int:
    """U8 x S8 as vpmaddubsw does it: each pair of products is added in 16 bits and saturates there."""
    products = activations.astype(np.int64) * weights.astype(np.int64)
    pairs = products.reshape(-1, 2).sum(axis=1)
    return int(np.clip(pairs, -(2**15), 2**15 - 1).sum())


def _exact_dot(activations: Array, weights: Array) -> int:
    return int(activations.astype(np.int64) @ weights.astype(np.int64))


@pytest.mark.parametrize(("weight", "exact", "saturating"), [(127, 129_540, 65_534), (64, 65_280, 65_280)])
def test_two_full_pairs(weight: int, exact: int, saturating: int) -> None:
    activations, weights = np.full(4, 255, dtype=np.uint8), np.full(4, weight, dtype=np.int8)
    assert _exact_dot(activations, weights) == exact
    assert _saturating_dot(activations, weights) == saturating


def _integer_weights(model: Any) -> list[Array]:
    """Every constant int8 operand of an integer product, ``[K, N]``."""
    index = GraphIndex(model.graph)
    found = []
    for node in model.graph.node:
        if node.op_type == "MatMulInteger":
            found.append(index.constant(node.input[1]))
        elif node.op_type in ("MatMul", "Gemm") and index.producer.get(node.input[1]) is not None:
            dequantize = index.producer[node.input[1]]
            if dequantize.op_type == "DequantizeLinear":
                found.append(index.constant(dequantize.input[0]))
    return [value for value in found if value is not None]


def _quantized(mode: str, limit: int) -> Any:
    random = np.random.default_rng(0)
    weight = random.normal(size=(64, 16))
    weight[:, 0] = 1.0  # a column whose weights are all the largest: every pair is at its extreme
    model = linear(weight, random.normal(size=16))
    if mode == "dynamic":
        return quantize_dynamic(model, limit)
    return quantize_static(model, {"x": stats_of(random.normal(size=(200, 64)))}, limit=limit)[0]


@pytest.mark.parametrize("mode", ["dynamic", "static"])
def test_with_limit_64_no_product_can_saturate(mode: str) -> None:
    (weights,) = _integer_weights(_quantized(mode, 64))
    assert int(np.abs(weights.astype(int)).max()) == 64  # the range that is allowed is used
    random = np.random.default_rng(1)
    for activations in (np.full(64, 255), *random.integers(0, 256, (20, 64))):
        for column in weights.T:
            assert _saturating_dot(activations, column) == _exact_dot(activations, column)


@pytest.mark.parametrize("mode", ["dynamic", "static"])
def test_with_the_full_range_products_saturate(mode: str) -> None:
    (weights,) = _integer_weights(_quantized(mode, 127))
    worst = np.full(64, 255)
    assert any(_saturating_dot(worst, column) != _exact_dot(worst, column) for column in weights.T)


@pytest.mark.parametrize("rows", [1, 7])
def test_with_limit_64_this_processor_is_exact_alone_and_in_a_batch(rows: int) -> None:
    """Weights of 64 against activations of 255, through the single-row and the batched kernel."""
    model = quantize_dynamic(linear(np.ones((64, 16))), 64)
    values = np.full((rows, 64), 255.0, dtype=np.float32)
    np.testing.assert_allclose(run_graph(model, x=values), np.full((rows, 16), 64 * 255.0), rtol=1e-6)


# ----------------------------------------------------------------- structure


def test_dynamic_follows_the_formula_of_the_standard() -> None:
    random = np.random.default_rng(0)
    weight, bias = random.normal(size=(16, 8)).astype(np.float32), random.normal(size=8).astype(np.float32)
    values = random.normal(size=(6, 16)).astype(np.float32)
    model = quantize_dynamic(linear(weight, bias))
    onnx.checker.check_model(model)
    assert count_matmuls(model) == (1, 0, 0)
    scale, zero = affine_uint8(float(values.min()), float(values.max()))
    integers, weight_scale = symmetric_int8(weight, axis=0)
    expected = fake_quantize(values, scale, zero) @ (integers * weight_scale) + bias
    np.testing.assert_allclose(run_graph(model, x=values), expected, atol=1e-4)


def _shared() -> Any:
    """Two MatMuls of one activation, as query and key."""
    random = np.random.default_rng(0)
    nodes = [helper.make_node("MatMul", ["x", "w1"], ["a"], "first"),
             helper.make_node("MatMul", ["x", "w2"], ["c"], "2nd"),
             helper.make_node("Add", ["a", "c"], ["y"])]
    return graph_of(nodes, {"x": ["n", "s", 16]}, {"y": ["n", "s", 8]},
                  {name: random.normal(size=(16, 8)).astype(np.float32) for name in ("w1", "w2")})


def test_matmuls_of_one_activation_share_its_quantization() -> None:
    model = _shared()
    (group,) = groups_of(model)
    assert (group.source, group.matmuls, group.weights) == ("x", ("a", "c"), ("w1", "w2"))
    dynamic = quantize_dynamic(model)
    assert [node.op_type for node in dynamic.graph.node].count("DynamicQuantizeLinear") == 1
    static, choices = quantize_static(model, {"x": stats_of(np.random.default_rng(1).normal(size=(100, 16)))})
    assert [node.op_type for node in static.graph.node].count("QuantizeLinear") == 1
    assert count_matmuls(dynamic) == count_matmuls(static) == (2, 0, 0) and list(choices) == ["x"]


def test_a_group_that_is_kept_float_stays() -> None:
    model = _shared()
    static, choices = quantize_static(model, {}, keep_float=["x"])
    assert count_matmuls(static) == (0, 0, 2) and choices == {}


def test_the_input_model_is_not_changed() -> None:
    model = _shared()
    before = model.SerializeToString()
    quantize_dynamic(model)
    quantize_static(model, {"x": stats_of(np.random.default_rng(1).normal(size=(100, 16)))})
    assert model.SerializeToString() == before


# ----------------------------------------------------------------- embedding tables


def _table_model(table: Array, gathers: int = 1, axis: int = 0) -> Any:
    nodes = [helper.make_node("Gather", ["table", "ids"], [f"row{i}"], f"gather{i}", axis=axis) for i in range(gathers)]
    nodes.append(helper.make_node("Sum", [f"row{i}" for i in range(gathers)], ["y"]))
    shape = [f"axis{i}" for i in range(table.ndim)]
    return graph_of(nodes, {"ids": ["n"]}, {"y": shape}, {"table": table.astype(np.float32)}, ids=True)


def test_a_table_becomes_int8_rows_equal_to_hand() -> None:
    table = np.zeros((64, 2))
    table[3], table[5] = [1.27, -0.5], [-254.0, 3.0]  # scales 0.01 and 2; 3 / 2 = 1.5 rounds to even: 2
    model = _table_model(table)
    assert quantize_tables(model) == 1
    onnx.checker.check_model(model)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    dtypes = {name: value.dtype for name, value in constants.items()}
    assert dtypes == {"table_int8": np.int8, "table_scale": np.float32}
    found = run_graph(model, ids=np.array([3, 5, 0]))
    np.testing.assert_allclose(found, [[1.27, -0.5], [-254.0, 4.0], [0, 0]], rtol=1e-6)


def test_a_row_is_within_half_a_step() -> None:
    table = np.random.default_rng(0).normal(size=(100, 32))
    model = _table_model(table)
    quantize_tables(model)
    error = np.abs(run_graph(model, ids=np.arange(100)) - table).max(axis=1)
    assert (error <= np.abs(table).max(axis=1) / 127 / 2 + 1e-6).all()


def test_a_table_read_twice_is_stored_once() -> None:
    model = _table_model(np.ones((64, 4)), gathers=2)
    assert quantize_tables(model) == 2
    onnx.checker.check_model(model)
    assert sorted(tensor.name for tensor in model.graph.initializer) == ["table_int8", "table_scale"]
    np.testing.assert_allclose(run_graph(model, ids=np.array([7])), [[2.0] * 4], rtol=1e-6)


@pytest.mark.parametrize(("shape", "axis"), [((63, 4), 0), ((64, 70), 1), ((64, 4, 2), 0)])
def test_what_is_no_embedding_table_stays(shape: tuple[int, ...], axis: int) -> None:
    model = _table_model(np.ones(shape), axis=axis)
    assert quantize_tables(model) == 0
    assert [tensor.name for tensor in model.graph.initializer] == ["table"]


# ----------------------------------------------------------------- the gate


class _Fixed:
    """Vectors by table, whatever the graph."""

    def __init__(self, table: dict[str, list[float]]) -> None:
        self.table = table

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.array([self.table[text] for text in texts], dtype=np.float32)


def test_the_gate_measures_cosines_by_hand() -> None:
    reference = _Fixed({"a": [1, 0], "b": [0, 1], "c": [0.6, 0.8]})
    candidate = _Fixed({"a": [1, 0], "b": [0.6, 0.8], "c": [0.6, 0.8]})
    result = measure(reference, candidate, ["a", "b", "c"])
    assert result.minimum_cosine == pytest.approx(0.8, abs=1e-6)
    assert result.mean_cosine == pytest.approx(2.8 / 3, abs=1e-6)
    assert not result.labelled and result.drop > 0
    assert measure(reference, reference, ["a", "b", "c"]).drop == pytest.approx(0, abs=1e-9)


def test_the_drop_on_labelled_pairs_is_in_spearman_points() -> None:
    """Gold 3 2 1 0; fp32 ranks all right (Spearman 1), the variant swaps the upper two: 1 - 6 * 2 / (4 * 15) = 0.8."""
    angle = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4}
    swapped = {"a": 0.2, "b": 0.1, "c": 0.3, "d": 0.4}
    reference, candidate = (
        _Fixed({"x": [1.0, 0.0]} | {name: [float(np.cos(t)), float(np.sin(t))] for name, t in angles.items()})
        for angles in (angle, swapped))
    pairs = StsPairs("hand", ("x",) * 4, ("a", "b", "c", "d"), np.array([3.0, 2.0, 1.0, 0.0]))
    result = measure(reference, candidate, ["a", "b"], pairs)
    assert result.labelled and result.pairs == 4
    assert result.drop == pytest.approx(20.0)


def _result(**changes: float) -> GateResult:
    values: dict[str, Any] = {"minimum_cosine": 0.99, "mean_cosine": 0.999, "drop": 0.5, "labelled": True, "texts": 20,
                              "pairs": 100}
    return GateResult(**(values | changes))


def test_the_gate_passes_at_its_limits() -> None:
    enforce(_result(), max_drop=0.5, min_cosine=0.99, hint="")


@pytest.mark.parametrize("changes", [{"minimum_cosine": 0.9899}, {"drop": 0.51}, {"minimum_cosine": float("nan")},
                                     {"drop": float("nan")}, {"minimum_cosine": 0.0, "drop": 100.0}])
def test_the_gate_fails_beyond_them(changes: dict[str, float]) -> None:
    with pytest.raises(GateError, match="Try more texts") as caught:
        enforce(_result(**changes), max_drop=0.5, min_cosine=0.99, hint="Try more texts")
    text = str(caught.value)
    assert "\n" not in text
    assert ("0.99 or more" in text) == ("minimum_cosine" in changes) and ("0.5 or less" in text) == ("drop" in changes)


# ----------------------------------------------------------------- quantize: a bundle, whole or as it was


TEXTS = [item.text for item in utterances("train")][:120]


def _hashes(folder: Path) -> dict[str, str]:
    return {file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
            for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def untouched(bundle_copy: Path) -> Iterator[Path]:
    """A bundle that must be byte-identical afterwards, with nothing new beside it."""
    before, beside = _hashes(bundle_copy), sorted(bundle_copy.parent.iterdir())
    yield bundle_copy
    assert _hashes(bundle_copy) == before
    assert sorted(bundle_copy.parent.iterdir()) == beside


def _spoiled(mode: str, value: float) -> Callable[..., Any]:
    """The real quantization, then every weight scale set to ``value``."""
    genuine = quantize_dynamic if mode == "dynamic" else distilface.quantization.static.apply

    def spoil(*arguments: Any, **options: Any) -> Any:
        model = genuine(*arguments, **options)
        touched = 0
        for tensor in model.graph.initializer:
            if tensor.name.endswith("_weight_scale"):
                old = numpy_helper.to_array(tensor)
                tensor.CopyFrom(numpy_helper.from_array(np.full_like(old, value), tensor.name))
                touched += 1
        assert touched
        return model

    return spoil


@pytest.mark.parametrize("mode", ["dynamic", "static"])
@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_a_failed_gate_leaves_the_bundle_as_it_was(
        untouched: Path, monkeypatch: pytest.MonkeyPatch, mode: Any, value: float) -> None:
    maker = {"dynamic": "dynamic.quantize_dynamic", "static": "static.apply"}[mode]
    monkeypatch.setattr(f"distilface.quantization.{maker}", _spoiled(mode, value))
    with pytest.raises(GateError):
        quantize(untouched, mode, TEXTS, overwrite=True, calibration_texts=20)


def test_a_broken_limit_names_the_nodes_that_hurt(untouched: Path) -> None:
    with pytest.raises(GateError, match="minimum cosine") as caught:
        quantize(untouched, "static", TEXTS, overwrite=True, min_cosine=1.0, calibration_texts=20)
    groups = Bundle.open(untouched).manifest.variants["int8-static"].recipe["groups"]
    assert sum(f"{source} (" in str(caught.value) for source in groups) == 3
    effects = [group["effect"] for group in groups.values()]
    assert effects == sorted(effects, reverse=True) and effects[0] > 0


def test_a_failed_gate_leaves_no_copy_either(untouched: Path) -> None:
    with pytest.raises(GateError):
        quantize(untouched, "dynamic", TEXTS, out=untouched.parent / "copy", min_cosine=1.0)


def test_an_interrupt_leaves_the_bundle_as_it_was(untouched: Path) -> None:
    def interrupt(step: str, done: int, total: int) -> None:
        if step == "checking against fp32":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(untouched, "dynamic", TEXTS, overwrite=True, progress=interrupt)


@pytest.mark.parametrize(("arguments", "expected"), [
    ({"mode": "static"}, "--calibration"), ({"mode": "dynamic"}, "already has int8-dynamic"),
    ({"mode": "int4"}, "'int4'"), ({"mode": "dynamic", "overwrite": True, "target_isa": "sse2"}, "'sse2'"),
    ({"mode": "static", "overwrite": True, "calibration": ["one", "two", "two", " "]}, r"2 distinct text"),
    ({"mode": "static", "overwrite": True, "calibration": []}, r"0 distinct text"),
])
def test_wrong_arguments(untouched: Path, arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=expected) as caught:
        quantize(untouched, **arguments)
    assert "\n" not in str(caught.value)


def test_an_output_folder_that_holds_something(untouched: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(UserError, match="not empty"):
        quantize(untouched, "dynamic", TEXTS, out=tmp_path / "full")
    assert [item.name for item in (tmp_path / "full").iterdir()] == ["file"]
    (tmp_path / "full" / "file").unlink()
    (tmp_path / "full").rmdir()


@pytest.mark.parametrize("name", ["onnx/model.onnx", "onnx/model_int8.onnx", "tokenizer.json"])
def test_an_altered_file_is_not_quantized_nor_given_a_clean_record(bundle_copy: Path, name: str) -> None:
    file = bundle_copy / name
    file.write_bytes(file.read_bytes() + b"\x00")
    with pytest.raises(GateError, match=rf"{file.name}' was altered"):
        quantize(bundle_copy, "dynamic", TEXTS, overwrite=True)


def test_the_variants_of_the_bundle(tiny_bundle: Path) -> None:
    """2 layers have 12 MatMuls with a weight; all are on integers, and static does not depend on neighbours."""
    opened = Bundle.open(tiny_bundle)
    assert opened.variant_names == ["fp32", "int8-static", "int8-dynamic"]
    for name in ("int8-static", "int8-dynamic"):
        variant = opened.variant(name)
        assert (variant.integer_matmuls, variant.weight_only_matmuls, variant.float_matmuls) == (12, 0, 0)
        model = onnx.load(str(opened.graph(name)))
        onnx.checker.check_model(model)
        assert not variant.needs_custom_ops and {node.domain for node in model.graph.node} == {""}
        big_floats = [tensor.name for tensor in model.graph.initializer
                      if tensor.data_type == FLOAT and len(tensor.dims) == 2 and min(tensor.dims) > 1]
        assert big_floats == []  # weights and tables alike are INT8
    assert opened.variant("int8-static").batch_invariant
    assert opened.variant("fp32").float_matmuls == 12
    assert opened.variant("int8-dynamic").batch_invariant is False
    assert any("batch" in note for note in opened.variant("int8-dynamic").notes)
    assert any("VNNI" in note for note in opened.variant("int8-static").notes)


@pytest.mark.parametrize("mode", ["dynamic", "static"])
def test_the_file_for_any_processor_holds_no_weight_above_64(bundle_copy: Path, tmp_path: Path, mode: Any) -> None:
    done = quantize(bundle_copy, mode, TEXTS, out=tmp_path / "any", target_isa="any", calibration_texts=20)
    weights = _integer_weights(onnx.load(str(done.bundle.graph(done.name))))
    assert len(weights) == 12
    assert max(int(np.abs(value.astype(int)).max()) for value in weights) == 64
    assert not any("VNNI" in note for note in done.variant.notes)
    assert done.variant.recipe["target_isa"] == "any"
    full = _integer_weights(onnx.load(str(Bundle.open(bundle_copy).graph(done.name))))
    assert max(int(np.abs(value.astype(int)).max()) for value in full) == 127


def test_a_copy_gains_the_variant_and_the_source_stays(
        untouched: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    out = tmp_path_factory.mktemp("copies") / "with blank é"
    done = quantize(untouched, "dynamic", TEXTS, out=out)
    assert done.bundle.folder == out and done.name == "int8-dynamic"
    assert done.gate.minimum_cosine >= 0.95 and done.gate.texts == 120
    vectors = Encoder.load(out, "int8-dynamic").encode(["turn on the light"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_without_texts_dynamic_is_judged_by_the_built_in_commands(
        untouched: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    done = quantize(untouched, "dynamic", out=tmp_path_factory.mktemp("copies") / "b")
    assert done.gate.texts == len(utterances("test"))


def test_texts_that_set_the_ranges_do_not_judge(tiny_bundle: Path) -> None:
    recipe = Bundle.open(tiny_bundle).variant("int8-static").recipe
    fitting, words, held_out = distilface.quantization._split(TEXTS, "static", 40)
    assert set(words) == set(TEXTS) - set(held_out) and set(fitting) <= set(words)
    assert not set(fitting) & set(held_out)
    assert (len(fitting), len(held_out)) == (40, len(set(TEXTS)) - 40) == (40, recipe["gate"]["texts"])
    assert recipe["calibration"] == {"texts": 40, "sha256": hashlib.sha256("\n".join(fitting).encode()).hexdigest()}


@pytest.mark.parametrize(("labelled", "drop", "passes"), [
    (False, 1.9, True), (False, 2.1, False), (True, 0.9, True), (True, 1.1, False)])
def test_the_default_limit_is_one_point_on_labelled_pairs_and_two_without(
        bundle_copy: Path, monkeypatch: pytest.MonkeyPatch, labelled: bool, drop: float, passes: bool) -> None:
    monkeypatch.setattr(distilface.quantization, "measure", lambda *_: GateResult(0.99, 0.995, drop, labelled, 10, 10))
    pairs = StsPairs("dev", ("a", "b"), ("c", "d"), np.array([1.0, 2.0])) if labelled else None

    def attempt() -> None:
        quantize(bundle_copy, "dynamic", overwrite=True, labelled=pairs)

    if passes:
        attempt()
    else:
        with pytest.raises(GateError, match="Spearman drop"):
            attempt()
