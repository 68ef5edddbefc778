"""Graphs of a few nodes, made by hand, to quantize and to run."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from distilface.calibration import ActivationStats

Array = NDArray[Any]


def graph_of(nodes: list[Any], inputs: dict[str, list[Any]], outputs: dict[str, list[Any]],
             constants: dict[str, Any], ids: bool = False) -> Any:
    """A model of ``nodes``; inputs are float, or int64 ids."""
    kind = TensorProto.INT64 if ids else TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, "test",
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def run_graph(model: Any, **feeds: Array) -> Array:
    """The first output."""
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]  # type: ignore[no-any-return]


def stats_of(values: Array) -> ActivationStats:
    """Statistics of ``[tokens, channels]``."""
    stats = ActivationStats(values.shape[-1], seed=0)
    stats.update(values.astype(np.float32))
    return stats


def linear(weight: Array, bias: Array | None = None) -> Any:
    """``y = x W (+ b)``, x ``[tokens, K]``."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["xw" if bias is not None else "y"], "product")]
    constants = {"w": weight.astype(np.float32)}
    if bias is not None:
        nodes.append(helper.make_node("Add", ["xw", "b"], ["y"]))
        constants["b"] = bias.astype(np.float32)
    return graph_of(nodes, {"x": ["t", weight.shape[0]]}, {"y": ["t", weight.shape[1]]}, constants)
