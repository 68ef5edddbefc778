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

from distilface.benchmarking.results import Roofline, SubjectResult
from distilface.benchmarking.subjects import BUNDLE_BACKENDS, Subject
from distilface.errors import require

Precision = Literal["fp32", "bf16", "int8"]
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
    precision = precision_of(kind)
    needed = work.of(lengths) / 1e9
    return Roofline(precision=precision, needed=needed * 1000 / len(lengths), reached=needed / seconds,
                    peak=peaks[precision], fraction=needed / seconds / peaks[precision])


def precision_of(kind: str) -> Precision:
    """What a kind of subject multiplies in; weight-only and half-precision graphs on a CPU multiply in float32."""
    return "int8" if kind.startswith("int8") else "bf16" if kind == "bfloat16" else "fp32"


def with_rooflines(subjects: Sequence[Subject], results: Sequence[SubjectResult], lengths: Sequence[int],
                   peaks: dict[str, float], limit: int | None) -> tuple[SubjectResult, ...]:
    """The results with a roofline each, or with a note why there is none.

    The products are counted in the float32 graph of the subject's bundle; what has the same weights as a subject of a
    bundle (``reference``) needs the same.

    Args:
        lengths: of the texts of a throughput pass, in tokens, uncut.
        limit: the run's own ``max_seq_length``.
    """
    from distilface.artifact import Bundle

    by_name, found = {subject.name: subject for subject in subjects}, []
    for subject, result in zip(subjects, results, strict=True):
        counted = by_name.get(subject.reference or "", subject)
        bundle = Bundle.open(counted.folder) if counted.folder and counted.backend in BUNDLE_BACKENDS else None
        precision = precision_of(subject.kind)
        missing = ("products are counted in the graph of a bundle, and this is none" if bundle is None else
                   "its bundle has no fp32 graph in which to count the products" if "fp32" not in bundle.variant_names
                   else f"no {precision} product could be measured here" if precision not in peaks else None)
        if missing is not None or bundle is None:
            found.append(result.model_copy(update={"notes": (*result.notes, f"no roofline: {missing}")}))
            continue
        manifest = bundle.manifest
        work = work_of(bundle.graph("fp32"), manifest.num_layers, manifest.hidden_size)
        longest = min(manifest.max_seq_length, limit or manifest.max_seq_length)
        best = result.best_throughput.sentences_per_second.median
        made = roofline(subject.kind, work, [min(length, longest) for length in lengths], len(lengths) / best, peaks)
        over = (f"reaches {made.fraction:.0%} of the measured limit, which so was measured too low: another load "
                "disturbed it, repeat on a quiet machine",) if made.fraction > 1 else ()
        found.append(result.model_copy(update={"roofline": made, "notes": (*result.notes, *over)}))
    return tuple(found)


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
