"""Distillation: a student encoder learns a teacher's vectors, on the training package's own loop.

The names here are loaded on first use, so that reading a configuration does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from distilface.errors import require

if TYPE_CHECKING:
    from distilface.distillation.config import DistillConfig
    from distilface.distillation.run import distill

__all__ = ["DistillConfig", "distill"]

_HOME = {"DistillConfig": "distilface.distillation.config", "distill": "distilface.distillation.run"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'distilface.distillation' has no attribute {name!r}; it has {', '.join(__all__)}")
    if name == "distill":
        for module in ("torch", "transformers", "accelerate"):
            require(module, "train", "distillation")
    return getattr(import_module(_HOME[name]), name)
