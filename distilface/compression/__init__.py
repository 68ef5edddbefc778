"""`compress`: the best small model within a stated loss, size and latency, chosen on dev pairs alone.

The names here are loaded on first use, so that reading a budget does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distilface.errors import require
from distilface.lazy import loader

if TYPE_CHECKING:
    from distilface.compression.budget import Budget
    from distilface.compression.run import CompressResult, compress

__all__ = ["Budget", "CompressResult", "compress"]

_HOME = {
    "Budget": "distilface.compression.budget",
    "CompressResult": "distilface.compression.run",
    "compress": "distilface.compression.run",
}


def _check(name: str) -> None:
    if name != "Budget":
        for module, extra in (("torch", "export"), ("onnx", "export"), ("scipy", "export"), ("matplotlib", "bench")):
            require(module, extra, "distilface compress")


__getattr__ = loader(__name__, _HOME, _check)
