"""How a runtime really computes a graph's products, read from what it made of the file, not from the file."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distilface.errors import require
from distilface.runtime.engines import Backend, openvino_settings, session_options

_INTEGER = {"QGemm", "QLinearMatMul", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QAttention"}
_WEIGHT = {"QLinearMatMul": 3, "MatMulInteger": 1, "MatMulIntegerToFloat": 1, "DynamicQuantizeMatMul": 1, "QGemm": 3}
"""Operator to the place of its right-hand side."""
_UNPACKING = ("DequantizeLinear", "Transpose", "Cast", "Reshape")


@dataclass(frozen=True)
class ExecutedMatMuls:
    """Products of an activation with a constant weight, as they are computed; those of two activations don't count.

    Attributes:
        integer: on integers.
        other: in float, those with a weight that is stored small among them.
        kinds: how many of each operator (ONNX Runtime) or ``type precision`` (OpenVINO).
    """

    integer: int
    other: int
    kinds: dict[str, int]


def executed_matmuls(graph: str | Path, backend: Backend = "onnxruntime", threads: int = 1) -> ExecutedMatMuls:
    """Load ``graph`` as `Encoder` does and count the kernels.

    Args:
        graph: an ONNX file; for OpenVINO a file of its own (.xml), too.

    Raises:
        UserError: what is needed is not installed: onnx for ``onnxruntime``, openvino for ``openvino``.
    """
    return _openvino(Path(graph), threads) if backend == "openvino" else _onnxruntime(Path(graph), threads)


def _onnxruntime(graph: Path, threads: int) -> ExecutedMatMuls:
    onnx: Any = require("onnx", "export", "counting the kernels of ONNX Runtime")
    import onnxruntime

    options = session_options(threads)
    with tempfile.TemporaryDirectory(prefix="distilface-kernels-") as work:
        options.optimized_model_filepath = str(Path(work, "optimized.onnx"))
        onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        model = onnx.load(options.optimized_model_filepath)
    constants = {item.name for item in model.graph.initializer}
    for node in model.graph.node:  # in topological order: a weight that is unpacked at run time is a weight
        if node.op_type in _UNPACKING and node.input[0] in constants:
            constants.update(node.output)
    kinds: Counter[str] = Counter()
    for node in model.graph.node:
        place = _WEIGHT.get(node.op_type, 1)
        product = node.op_type in _INTEGER or node.op_type == "MatMulNBits" or node.op_type.endswith(("MatMul", "Gemm"))
        if product and len(node.input) > place and node.input[place] in constants:
            kinds[node.op_type] += 1
    integer = sum(count for name, count in kinds.items() if name in _INTEGER)
    return ExecutedMatMuls(integer, sum(kinds.values()) - integer, dict(sorted(kinds.items())))


def _openvino(graph: Path, threads: int) -> ExecutedMatMuls:
    openvino: Any = require("openvino", "openvino", "counting the kernels of OpenVINO")
    compiled = openvino.Core().compile_model(str(graph), "CPU", openvino_settings(threads, 1))
    kinds: Counter[str] = Counter()
    for operation in compiled.get_runtime_model().get_ordered_ops():
        facts = {name: str(operation.rt_info[name].astype(str)) for name in ("layerType", "runtimePrecision")
                 if name in operation.rt_info}
        if facts.get("layerType") == "FullyConnected":  # its MatMul is one of two activations
            kinds[f"FullyConnected {facts.get('runtimePrecision', 'unknown')}"] += 1
    integer = sum(count for name, count in kinds.items() if name.endswith((" i8", " u8")))
    return ExecutedMatMuls(integer, sum(kinds.values()) - integer, dict(sorted(kinds.items())))
