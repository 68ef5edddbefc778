"""Which provider of ONNX Runtime really runs a graph's nodes: asking for a GPU does not put every node there."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from distilface.runtime.encoder import Encoder
from distilface.runtime.engines import OUTPUT, open_session, session_options

PRODUCTS = ("MatMul", "Gemm", "MatMulInteger", "MatMulIntegerToFloat", "MatMulNBits", "Attention")
"""How the names of operators end that do the arithmetic."""


@dataclass(frozen=True)
class Placement:
    """Nodes of one run by where they ran.

    Attributes:
        nodes: how many by provider (``CPUExecutionProvider``).
        cpu_products: products that ran on the CPU.
    """

    nodes: dict[str, int]
    cpu_products: int


def placement(encoder: Encoder) -> Placement:
    """Run one short text under ONNX Runtime's profiler, in a session of its own."""
    with tempfile.TemporaryDirectory(prefix="distilface-placement-") as work:
        options = session_options(encoder.threads)
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(work, "run"))
        session = open_session(encoder.graph, options, encoder.provider, encoder.kind, encoder.max_seq_length)
        session.run([OUTPUT], encoder.feed(encoder.tokenizer.encode_batch(["a short text"])))
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    ran = [(event["args"]["provider"], event["args"]["op_name"]) for event in events
           if event.get("cat") == "Node" and event["args"].get("provider")]
    products = sum(provider == "CPUExecutionProvider" and operator.endswith(PRODUCTS) for provider, operator in ran)
    return Placement(dict(Counter(provider for provider, _ in ran)), products)
