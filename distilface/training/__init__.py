"""Contrastive training on the transformers `Trainer`: one process, or many under torchrun and accelerate launch.

The names here are loaded on first use, so that reading a configuration does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distilface.lazy import Need, loader

if TYPE_CHECKING:
    from distilface.training.config import TrainConfig
    from distilface.training.run import TrainResult, train

__all__ = ["TrainConfig", "TrainResult", "train"]

_HOME = {
    "TrainConfig": "distilface.training.config",
    "TrainResult": "distilface.training.run",
    "train": "distilface.training.run",
}

_NEEDS = [Need(("torch", "transformers", "accelerate"), "train", "training")]

__getattr__ = loader(__name__, _HOME, _NEEDS, without="distilface.training.config")
