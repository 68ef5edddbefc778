"""How much of the processor a model uses: the products it needs against the fastest products measured here.

Source of the idea: Williams, Waterman and Patterson, "Roofline" (2009); of its two limits only the one on arithmetic is
measured, which is what batches of sentences run into.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from distilface.benchmarking.results import Roofline
from distilface.errors import require

Precision = Literal["fp32", "int8"]
ROWS, INNER, OUTER = 1024, 1024, 4096
"""The product whose speed is the limit: large enough to hide everything but arithmetic."""
REPEATS = 7


@dataclass(frozen=True)
class Work:
    """Multiply-adds of one text of ``n`` tokens: ``linear n + quadratic n^2``."""

    linear: int
    quadratic: int

    def of(self, lengths: Sequence[int]) -> int:
        """For all texts of these token counts."""
        return sum(self.linear * length + self.quadratic * length * length for length in lengths)


def work_of(graph: Path, layers: int, hidden_size: int) -> Work:
    """Count a bundle's float32 graph: each weight multiplies every token; in each layer's attention, every token meets
    every token twice, for the scores and for the values."""
    from math import prod

    import onnx

    from distilface.onnxgraph import GraphIndex

    model = onnx.load(str(graph))
    index = GraphIndex(model.graph)
    weights = sum(prod(index.initializers[node.input[1]].dims) for node in index.weight_matmuls())
    return Work(weights, 2 * layers * hidden_size)


def measure_peaks(threads: int) -> dict[str, float]:
    """Multiply-adds a second, in 10^9, of large products by the library that runs the graphs, by precision.

    ``fp32`` and ``int8`` in ONNX Runtime; ``bf16`` in torch, where it is installed and the processor has instructions
    for it, else absent: ONNX Runtime has no such product for CPUs.
    """
    require("onnx", "export", "measuring peaks")
    peaks = {"fp32": _peak(_session("MatMul", threads), np.float32),
             "int8": _peak(_session("MatMulInteger", threads), np.uint8)}
    found = _bf16(threads)
    return peaks if found is None else {**peaks, "bf16": found}


def roofline(kind: str, work: Work, lengths: Sequence[int], seconds: float, peaks: dict[str, float]) -> Roofline:
    """What a pass over texts of ``lengths`` tokens in ``seconds`` reaches of the limit of its precision."""
    precision: Precision = "int8" if kind.startswith("int8") else "fp32"
    needed = work.of(lengths) / 1e9
    return Roofline(precision=precision, needed=needed * 1000 / len(lengths), reached=needed / seconds,
                    peak=peaks[precision], fraction=needed / seconds / peaks[precision])


def _session(operator: str, threads: int) -> Any:
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper

    kinds = {"MatMul": ("FLOAT", "FLOAT"), "MatMulInteger": ("UINT8", "INT32")}[operator]
    left, out = (getattr(onnx.TensorProto, kind) for kind in kinds)
    weight = numpy_helper.from_array(np.ones((INNER, OUTER), np.float32 if operator == "MatMul" else np.int8), "w")
    graph = helper.make_graph([helper.make_node(operator, ["x", "w"], ["y"])], "peak",
                              [helper.make_tensor_value_info("x", left, [ROWS, INNER])],
                              [helper.make_tensor_value_info("y", out, [ROWS, OUTER])], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _peak(session: Any, left: Any) -> float:
    feed = {"x": np.ones((ROWS, INNER), dtype=left)}
    session.run(None, feed)
    return _rate(lambda: session.run(None, feed))


def _bf16(threads: int) -> float | None:
    from distilface.machine import machine_facts

    sets = machine_facts().instruction_sets or ()
    if not {"avx512_bf16", "amx_bf16", "bf16"} & set(sets):
        return None
    try:
        import torch
    except ModuleNotFoundError:
        return None
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        left, right = (torch.ones(shape, dtype=torch.bfloat16) for shape in ((ROWS, INNER), (INNER, OUTER)))
        left @ right
        return _rate(lambda: left @ right)
    finally:
        torch.set_num_threads(before)


def _rate(product: Any) -> float:
    """Of the fastest of several: a limit is what nothing exceeds."""
    best = min(_seconds(product) for _ in range(REPEATS))
    return ROWS * INNER * OUTER / best / 1e9


def _seconds(product: Any) -> float:
    start = time.perf_counter()
    product()
    return time.perf_counter() - start
