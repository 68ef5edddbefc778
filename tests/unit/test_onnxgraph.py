"""Graph edits on graphs built by hand: what is counted, dropped, sorted and simplified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from distilface.onnxgraph import (
    GraphIndex,
    MatMulCount,
    add_initializers,
    count_matmuls,
    describe_variant,
    remove_unused,
    simplify_attention_mask,
    sort_topologically,
    strip_debug_information,
)

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
SMALLEST = float(np.finfo(np.float32).min)


def _model(nodes: list[Any], inputs: dict[str, tuple[int, list[Any]]], outputs: dict[str, tuple[int, list[Any]]],
           constants: dict[str, Any] | None = None, custom: bool = False) -> Any:
    values = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(
        nodes, "test", [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
        [helper.make_tensor_value_info(name, *kind) for name, kind in outputs.items()], values)
    opsets = [helper.make_opsetid("", 18)] + ([helper.make_opsetid("com.microsoft", 1)] if custom else [])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _run(model: Any, **feeds: NDArray[Any]) -> list[NDArray[Any]]:
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)


def _names(items: Any) -> list[str]:
    return [item.name for item in items]


X = {"x": (FLOAT, [None, 4])}
Y = {"y": (FLOAT, [None, 3])}
WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)
INT8 = WEIGHT.astype(np.int8)
SCALES = {"scale": np.float32(0.1), "zero": np.uint8(0), "w_scale": np.ones(3, np.float32),
          "w_zero": np.zeros(3, np.int8)}
QUANTIZE = [helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["dq"])]
WEIGHT_DQ = helper.make_node("DequantizeLinear", ["w8", "w_scale", "w_zero"], ["w"], axis=1)


# ----------------------------------------------------------------- counting


def test_a_float_matmul_and_a_gemm_are_plain() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Gemm", ["h", "v"], ["y"])]
    model = _model(nodes, X, Y, {"w": WEIGHT, "v": np.eye(3, dtype=np.float32)})
    assert count_matmuls(model) == MatMulCount(integer=0, weight_only=0, plain=2)


def test_a_product_of_two_activations_is_not_counted() -> None:
    model = _model([helper.make_node("MatMul", ["x", "z"], ["y"])], X | {"z": (FLOAT, [4, 3])}, Y)
    assert count_matmuls(model) == MatMulCount(0, 0, 0)


def test_matmul_integer_is_integer() -> None:
    nodes = [helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
             helper.make_node("MatMulInteger", ["q", "w8", "z"], ["i"]),
             helper.make_node("Cast", ["i"], ["y"], to=FLOAT)]
    assert count_matmuls(_model(nodes, X, Y, {"w8": INT8})) == MatMulCount(1, 0, 0)


def test_qdq_on_both_sides_is_integer() -> None:
    nodes = [*QUANTIZE, WEIGHT_DQ, helper.make_node("MatMul", ["dq", "w"], ["y"])]
    model = _model(nodes, X, Y, {"w8": INT8, **SCALES})
    onnx.checker.check_model(model)
    assert count_matmuls(model) == MatMulCount(1, 0, 0)


def test_int8_weights_with_float_activations_are_weight_only() -> None:
    """What a widely used "INT8" MiniLM file is: a quarter of the size, and not one integer product."""
    nodes = [WEIGHT_DQ, helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = _model(nodes, X, Y, {"w8": INT8, **SCALES})
    assert count_matmuls(model) == MatMulCount(integer=0, weight_only=1, plain=0)


def test_four_bit_blocks_are_weight_only() -> None:
    node = helper.make_node("MatMulNBits", ["x", "w8", "w_scale"], ["y"], domain="com.microsoft", K=4, N=3, bits=4,
                            block_size=16)
    assert count_matmuls(_model([node], X, Y, {"w8": INT8, **SCALES}, custom=True)) == MatMulCount(0, 1, 0)


@pytest.mark.parametrize("operator", ["QLinearMatMul", "DynamicQuantizeMatMul", "MatMulIntegerToFloat"])
def test_fused_integer_operators_are_integer(operator: str) -> None:
    node = helper.make_node(operator, ["x", "w8", "w_scale"], ["y"], domain="com.microsoft")
    assert count_matmuls(_model([node], X, Y, {"w8": INT8, **SCALES}, custom=True)) == MatMulCount(1, 0, 0)


def test_a_mixed_graph_adds_up() -> None:
    nodes = [*QUANTIZE, WEIGHT_DQ, helper.make_node("MatMul", ["dq", "w"], ["a"]),
             helper.make_node("MatMul", ["x", "w"], ["b"]), helper.make_node("MatMul", ["x", "f"], ["c"]),
             helper.make_node("Sum", ["a", "b", "c"], ["y"])]
    assert count_matmuls(_model(nodes, X, Y, {"w8": INT8, "f": WEIGHT, **SCALES})) == MatMulCount(1, 1, 1)


def test_weight_matmuls_are_those_with_a_constant_float_matrix() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], "weight"), helper.make_node("MatMul", ["x", "z"], ["b"]),
             helper.make_node("MatMul", ["x", "v"], ["c"], "vector"), helper.make_node("Add", ["a", "b"], ["y"])]
    model = _model(nodes, X | {"z": (FLOAT, [4, 3])}, Y, {"w": WEIGHT, "v": np.ones(4, np.float32)})
    assert _names(GraphIndex(model.graph).weight_matmuls()) == ["weight"]


# ----------------------------------------------------------------- edits


def test_unused_nodes_and_constants_go_and_the_function_stays() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "used"), helper.make_node("Mul", ["x", "k"], ["dead"], "d1"),
             helper.make_node("Neg", ["dead"], ["deader"], "d2")]
    model = _model(nodes, X, Y, {"w": WEIGHT, "k": np.float32(2), "never": np.float32(3)})
    remove_unused(model.graph)
    assert (_names(model.graph.node), _names(model.graph.initializer)) == (["used"], ["w"])
    np.testing.assert_array_equal(_run(model, x=np.ones((1, 4), np.float32))[0], [[18, 22, 26]])


def test_one_needed_output_of_two_keeps_the_node() -> None:
    nodes = [helper.make_node("Split", ["x"], ["a", "b"], "split", axis=1, num_outputs=2),
             helper.make_node("Identity", ["b"], ["y"], "end")]
    model = _model(nodes, X, {"y": (FLOAT, [None, 2])})
    remove_unused(model.graph)
    assert _names(model.graph.node) == ["split", "end"]


def test_sorting_puts_every_node_after_those_it_reads() -> None:
    chain = [helper.make_node("Add", [f"t{i}" if i else "x", "one"], [f"t{i + 1}" if i < 49 else "y"], f"n{i}")
             for i in range(50)]
    model = _model(chain[::-1], X, {"y": (FLOAT, [None, 4])}, {"one": np.float32(1)})
    with pytest.raises(onnx.checker.ValidationError):
        onnx.checker.check_model(model)
    sort_topologically(model.graph)
    onnx.checker.check_model(model)
    assert _names(model.graph.node) == [f"n{i}" for i in range(50)]
    np.testing.assert_array_equal(_run(model, x=np.zeros((1, 4), np.float32))[0], [[50] * 4])


def test_sorting_a_graph_deeper_than_the_recursion_limit() -> None:
    chain = [helper.make_node("Identity", [f"t{i}" if i else "x"], [f"t{i + 1}"], f"n{i}") for i in range(3000)]
    model = _model(chain[::-1], X, {"t3000": (FLOAT, [None, 4])})
    sort_topologically(model.graph)
    assert _names(model.graph.node) == [f"n{i}" for i in range(3000)]


def test_debug_information_goes() -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "m", doc_string="File /somewhere/model.py, line 3")
    node.metadata_props.add(key="stack", value="/somewhere/model.py")
    model = _model([node], X, Y, {"w": WEIGHT})
    model.metadata_props.add(key="path", value="/somewhere/model.py")
    model.graph.value_info.append(helper.make_tensor_value_info("h", FLOAT, [1]))
    model.graph.initializer[0].doc_string = "/somewhere/weights"
    model.graph.doc_string = "/somewhere"
    strip_debug_information(model)
    assert b"somewhere" not in model.SerializeToString()
    assert len(model.graph.value_info) == 0
    onnx.checker.check_model(model)


def test_constants_are_added_by_name() -> None:
    model = _model([helper.make_node("MatMul", ["x", "w"], ["y"])], X, Y)
    add_initializers(model.graph, {"w": WEIGHT, "s": np.float32(2)})
    index = GraphIndex(model.graph)
    np.testing.assert_array_equal(index.constant("w"), WEIGHT)
    assert index.constant("s").shape == () and index.constant("x") is None  # type: ignore[union-attr]


# ----------------------------------------------------------------- the attention mask

MASK_INPUTS = {"scores": (FLOAT, ["b", 2, "s", "s"]), "attention_mask": (INT64, ["b", "s"])}
PROBABILITIES = {"y": (FLOAT, ["b", 2, "s", "s"])}


def _exported_mask() -> list[Any]:
    """The arithmetic an exporter leaves: a boolean ``[b, 1, s, s]`` mask expanded by shape, then Where."""
    return [
        helper.make_node("Shape", ["attention_mask"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"], axis=0),
        helper.make_node("Gather", ["shape", "first"], ["length"], axis=0),
        helper.make_node("Concat", ["batch", "first", "length", "length"], ["target"], axis=0),
        helper.make_node("Cast", ["attention_mask"], ["keep"], to=TensorProto.BOOL),
        helper.make_node("Unsqueeze", ["keep", "axes"], ["keep_row"]),
        helper.make_node("Expand", ["keep_row", "target"], ["keep_square"]),
        helper.make_node("Where", ["keep_square", "nothing", "smallest"], ["bias"]),
    ]


_MASK_CONSTANTS = {"zero": np.array([0]), "first": np.array([1]), "axes": np.array([1, 2]), "nothing": np.float32(0),
                   "smallest": np.float32(SMALLEST)}


def _attention(nodes: list[Any], constants: dict[str, Any] | None = None, flip: bool = False) -> Any:
    add = helper.make_node("Add", ["bias", "scores"] if flip else ["scores", "bias"], ["masked"], "add")
    return _model([*nodes, add, helper.make_node("Softmax", ["masked"], ["y"], axis=-1)], MASK_INPUTS, PROBABILITIES,
                  _MASK_CONSTANTS | (constants or {}))


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (1, 5), (4, 7), (3, 64)])
def test_a_simplified_mask_is_the_same_function(batch: int, length: int, flip: bool) -> None:
    before, after = _attention(_exported_mask(), flip=flip), _attention(_exported_mask(), flip=flip)
    simplify_attention_mask(after)
    onnx.checker.check_model(after)
    kinds = [node.op_type for node in after.graph.node]
    assert "Where" not in kinds and "Expand" not in kinds and "Shape" not in kinds
    random = np.random.default_rng(length)
    mask = (random.random((batch, length)) < 0.6).astype(np.int64)
    mask[:, 0] = 1
    scores = (10 * random.standard_normal((batch, 2, length, length))).astype(np.float32)
    (expected,) = _run(before, scores=scores, attention_mask=mask)
    (found,) = _run(after, scores=scores, attention_mask=mask)
    np.testing.assert_array_equal(found, expected)
    assert float(found[np.broadcast_to(mask[:, None, None] == 0, found.shape)].sum()) == 0


@pytest.mark.parametrize("kept_first", [False, True])
def test_a_mask_filled_into_the_scores_is_the_same_function(kept_first: bool) -> None:
    """DistilBERT of transformers 4 fills the smallest number into the scores; there is no Add to find."""
    choose = ["keep_square", "scores", "smallest"]
    nodes = [*_exported_mask()[:-1], helper.make_node("Where", choose, ["masked"])]
    if not kept_first:  # "where padding, the smallest number" instead of "where text, the scores"
        nodes[-1:] = [helper.make_node("Not", ["keep_square"], ["drop_square"]),
                      helper.make_node("Where", ["drop_square", "smallest", "scores"], ["masked"])]
    nodes.append(helper.make_node("Softmax", ["masked"], ["y"], axis=-1))
    before, after = (_model(nodes, MASK_INPUTS, PROBABILITIES, _MASK_CONSTANTS) for _ in range(2))
    simplify_attention_mask(after)
    onnx.checker.check_model(after)
    assert not {"Where", "Expand", "Shape", "Not"} & {node.op_type for node in after.graph.node}
    feeds = {"scores": np.random.default_rng(0).standard_normal((2, 2, 5, 5)).astype(np.float32),
             "attention_mask": np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])}
    np.testing.assert_array_equal(_run(after, **feeds)[0], _run(before, **feeds)[0])


def test_a_text_without_tokens_stays_finite() -> None:
    model = _attention(_exported_mask())
    simplify_attention_mask(model)
    (found,) = _run(model, scores=np.zeros((1, 2, 3, 3), np.float32), attention_mask=np.zeros((1, 3), np.int64))
    np.testing.assert_allclose(found, 1 / 3, rtol=1e-6)


def test_a_bias_that_does_not_come_from_the_mask_stays() -> None:
    """A relative position bias depends on the length alone, and must survive beside the mask's."""
    nodes = [*_exported_mask(), helper.make_node("Cast", ["length"], ["length_float"], to=FLOAT),
             helper.make_node("Mul", ["positions", "length_float"], ["relative"]),
             helper.make_node("Add", ["scores", "relative"], ["shifted"]),
             helper.make_node("Add", ["shifted", "bias"], ["masked"]),
             helper.make_node("Softmax", ["masked"], ["y"], axis=-1)]
    constants = _MASK_CONSTANTS | {"positions": np.arange(5, dtype=np.float32)}
    before = _model(nodes, MASK_INPUTS, PROBABILITIES, constants)
    after = _model(nodes, MASK_INPUTS, PROBABILITIES, constants)
    simplify_attention_mask(after)
    assert "relative" in {name for node in after.graph.node for name in node.output}
    feeds = {"scores": np.random.default_rng(0).standard_normal((2, 2, 5, 5)).astype(np.float32),
             "attention_mask": np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])}
    np.testing.assert_array_equal(_run(after, **feeds)[0], _run(before, **feeds)[0])


def test_a_bias_that_depends_on_the_scores_too_stays() -> None:
    nodes = [*_exported_mask()[:-1], helper.make_node("Where", ["keep_square", "scores", "smallest"], ["bias"])]
    model = _attention(nodes)
    before = model.SerializeToString()
    simplify_attention_mask(model)
    assert model.SerializeToString() == before


def test_a_graph_without_attention_stays() -> None:
    model = _model([helper.make_node("MatMul", ["x", "w"], ["y"])], X, Y, {"w": WEIGHT})
    before = model.SerializeToString()
    simplify_attention_mask(model)
    assert model.SerializeToString() == before


# ----------------------------------------------------------------- the manifest entry


@pytest.mark.parametrize(("dependence", "invariant"), [(1.0, True), (0.999999, True), (0.9999989, False)])
def test_the_manifest_entry_is_read_from_the_file(tmp_path: Path, dependence: float, invariant: bool) -> None:
    file = tmp_path / "m.onnx"
    onnx.save(_model([helper.make_node("MatMul", ["x", "w"], ["y"])], X, Y, {"w": WEIGHT}), str(file))
    entry = describe_variant(file, "onnx/m.onnx", "float32", dependence, 0.9, {"a": 1}, ["note"])
    assert (entry.file, entry.size, entry.opset, entry.ir_version) == ("onnx/m.onnx", file.stat().st_size, 18, 8)
    assert (entry.float_matmuls, entry.integer_matmuls, entry.weight_only_matmuls) == (1, 0, 0)
    assert entry.batch_invariant is invariant and not entry.needs_custom_ops
    assert (entry.recipe, entry.notes) == ({"a": 1}, ["note"])


def test_custom_operators_are_declared(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    node = helper.make_node("FusedMatMul", ["x", "w"], ["y"], domain="com.microsoft")
    onnx.save(_model([node], X, Y, {"w": WEIGHT}, custom=True), str(file))
    assert describe_variant(file, "m.onnx", "float32", 1.0, 0.9).needs_custom_ops
