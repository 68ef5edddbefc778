"""Distillation: a student encoder learns a teacher's vectors, on the training package's own loop.

The names here are loaded on first use, so that reading a configuration does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distilface.errors import require
from distilface.lazy import loader

if TYPE_CHECKING:
    from distilface.distillation.config import DistillConfig
    from distilface.distillation.run import distill

__all__ = ["DistillConfig", "distill"]

_HOME = {"DistillConfig": "distilface.distillation.config", "distill": "distilface.distillation.run"}


def _check(name: str) -> None:
    if name == "distill":
        for module in ("torch", "transformers", "accelerate"):
            require(module, "train", "distillation")


__getattr__ = loader(__name__, _HOME, _check)
