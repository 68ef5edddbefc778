"""Hyper-parameter search with Optuna over `train` and `distill`, scored on dev pairs.

The names here are loaded on first use, so that reading a configuration does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distilface.lazy import Need, loader

if TYPE_CHECKING:
    from distilface.sweeping.config import SweepConfig, load_sweep
    from distilface.sweeping.run import SweepResult, sweep

__all__ = ["SweepConfig", "SweepResult", "load_sweep", "sweep"]

_HOME = {
    "SweepConfig": "distilface.sweeping.config",
    "load_sweep": "distilface.sweeping.config",
    "SweepResult": "distilface.sweeping.run",
    "sweep": "distilface.sweeping.run",
}

_NEEDS = [Need(("torch", "transformers", "accelerate", "optuna", "matplotlib"), "sweep", "distilface sweep")]

__getattr__ = loader(__name__, _HOME, _NEEDS, without="distilface.sweeping.config")
