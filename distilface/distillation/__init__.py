"""Distillation: a student encoder learns a teacher's vectors, on the training package's own loop.

The names here are loaded on first use, so that reading a configuration does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distilface.lazy import Need, loader

if TYPE_CHECKING:
    from distilface.distillation.config import DistillConfig
    from distilface.distillation.run import distill

__all__ = ["DistillConfig", "distill"]

_HOME = {"DistillConfig": "distilface.distillation.config", "distill": "distilface.distillation.run"}

_NEEDS = [Need(("torch", "transformers", "accelerate"), "train", "distillation")]

__getattr__ = loader(__name__, _HOME, _NEEDS, without="distilface.distillation.config")
