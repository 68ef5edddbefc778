"""Which number format to compute in."""

from __future__ import annotations

import time
from typing import Literal

import torch

from distilface.errors import UserError
from distilface.training.config import LoopConfig, Precision

Resolved = Literal["fp32", "bf16", "fp16"]


def resolve_device(asked: str) -> Literal["cpu", "cuda"]:
    """``auto`` is CUDA where there is one.

    Raises:
        UserError: CUDA was asked for and this process sees none; there is no silent fall-back.
    """
    if asked == "cuda" and not torch.cuda.is_available():
        raise UserError("train.device is cuda, but torch sees no CUDA device here "
                        f"(torch {torch.__version__}); install a CUDA build, or set train.device=cpu")
    return "cuda" if asked != "cpu" and torch.cuda.is_available() else "cpu"


def resolve_precision(loop: LoopConfig) -> Resolved:
    """The format to train in; ``auto`` measures.

    Raises:
        UserError: for fp16 on the CPU, whose matrix products overflow and have no loss scaling, or bf16 on a GPU
            without it.
    """
    device = resolve_device(loop.device)
    asked: Precision = loop.precision
    if asked == "fp16" and device == "cpu":
        raise UserError("train.precision fp16 needs a CUDA device; on the CPU use fp32, bf16 or auto")
    if asked == "bf16" and device == "cuda" and not torch.cuda.is_bf16_supported():
        raise UserError("train.precision bf16 is not supported by this GPU; use fp16 or fp32")
    if asked == "auto":
        if device == "cuda":
            return "bf16" if torch.cuda.is_bf16_supported() else "fp16"
        return "bf16" if _seconds(torch.bfloat16) < 0.8 * _seconds(torch.float32) else "fp32"
    return asked


def _seconds(dtype: torch.dtype, repeats: int = 5) -> float:
    """Best time of a product of the size training has; a flag such as avx512_bf16 does not tell how fast it is."""
    left, right = torch.ones(2048, 384, dtype=dtype), torch.ones(384, 1536, dtype=dtype)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        left @ right
        times.append(time.perf_counter() - start)
    return min(times)
