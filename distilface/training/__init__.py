"""Contrastive training on the transformers `Trainer`: one process, or many under torchrun and accelerate launch.

The names here are loaded on first use, so that reading a configuration does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from distilface.errors import require

if TYPE_CHECKING:
    from distilface.training.config import TrainConfig
    from distilface.training.run import TrainResult, train

__all__ = ["TrainConfig", "TrainResult", "train"]

_HOME = {
    "TrainConfig": "distilface.training.config",
    "TrainResult": "distilface.training.run",
    "train": "distilface.training.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'distilface.training' has no attribute {name!r}; it has {', '.join(__all__)}")
    if _HOME[name] != "distilface.training.config":
        for module in ("torch", "transformers", "accelerate"):
            require(module, "train", "training")
    return getattr(import_module(_HOME[name]), name)
