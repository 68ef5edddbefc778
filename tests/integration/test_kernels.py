"""The static INT8 graph is computed on integers: by both runtimes, in every product with a weight."""

from __future__ import annotations

from pathlib import Path

import pytest

from distilface.artifact import Bundle
from distilface.errors import UserError
from distilface.runtime.kernels import executed_matmuls

pytestmark = pytest.mark.integration


def test_onnxruntime_runs_every_product_of_static_int8_on_integers(tiny_bundle: Path) -> None:
    bundle = Bundle.open(tiny_bundle)
    expected = bundle.variant("fp32").float_matmuls
    fp32, int8 = (executed_matmuls(bundle.graph(name)) for name in ("fp32", "int8-static"))
    assert expected > 0
    assert (fp32.integer, fp32.other) == (0, expected)
    assert (int8.integer, int8.other) == (expected, 0), int8.kinds
    assert "MatMul" not in int8.kinds and "Gemm" not in int8.kinds


def test_openvino_runs_every_product_of_static_int8_on_integers(tiny_bundle: Path) -> None:
    pytest.importorskip("openvino", reason="OpenVINO is not installed")
    bundle = Bundle.open(tiny_bundle)
    expected = bundle.variant("fp32").float_matmuls
    fp32, int8 = (executed_matmuls(bundle.graph(name), "openvino") for name in ("fp32", "int8-static"))
    assert (fp32.integer, fp32.other) == (0, expected), fp32.kinds
    assert (int8.integer, int8.other) == (expected, 0), int8.kinds


def test_a_weight_that_is_unpacked_for_a_float_product_is_not_integer(tmp_path: Path) -> None:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    graph = helper.make_graph(
        [helper.make_node("DequantizeLinear", ["q", "scale"], ["w"]), helper.make_node("Transpose", ["w"], ["t"],
                                                                                       perm=[1, 0]),
         helper.make_node("MatMul", ["x", "t"], ["y"]), helper.make_node("MatMul", ["y", "x"], ["z"])],
        "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, 16])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [16, 16])],
        [numpy_helper.from_array(rng.integers(-127, 127, (16, 16)).astype(np.int8), "q"),
         numpy_helper.from_array(np.float32(0.1), "scale")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
              str(tmp_path / "m.onnx"))
    found = executed_matmuls(tmp_path / "m.onnx")
    assert (found.integer, found.other) == (0, 1), found.kinds


def test_openvino_that_is_missing_is_named(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "openvino", None)
    with pytest.raises(UserError, match="counting the kernels of OpenVINO needs the package 'openvino'"):
        executed_matmuls(Bundle.open(tiny_bundle).graph("fp32"), "openvino")
