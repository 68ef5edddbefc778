"""`compress`: the best small model within a stated loss, size and latency, chosen on dev pairs alone.

The names here are loaded on first use, so that reading a budget does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distilface.lazy import Need, loader

if TYPE_CHECKING:
    from distilface.compression.budget import Budget
    from distilface.compression.run import CompressResult, compress

__all__ = ["Budget", "CompressResult", "compress"]

_HOME = {
    "Budget": "distilface.compression.budget",
    "CompressResult": "distilface.compression.run",
    "compress": "distilface.compression.run",
}

_NEEDS = [
    Need(("torch", "onnx", "scipy"), "export", "distilface compress"),
    Need(("matplotlib",), "bench", "distilface compress"),
]

__getattr__ = loader(__name__, _HOME, _NEEDS, without="distilface.compression.budget")
