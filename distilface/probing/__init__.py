"""Which layers matter: untrained scores of every layer, and fine-tuning after re-initialising or permuting layers.

Source: Tamkin et al., "Investigating Transferability in Pretrained Language Models" (Findings of EMNLP 2020); the
layer-wise scores are those of Oh et al. (COLING 2022), figure 1. The names here are loaded on first use, so that
reading a configuration does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from distilface.errors import require

if TYPE_CHECKING:
    from distilface.probing.config import ProbeConfig
    from distilface.probing.run import ProbeResult, probe

__all__ = ["ProbeConfig", "ProbeResult", "probe"]

_HOME = {
    "ProbeConfig": "distilface.probing.config",
    "ProbeResult": "distilface.probing.run",
    "probe": "distilface.probing.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'distilface.probing' has no attribute {name!r}; it has {', '.join(__all__)}")
    if _HOME[name] != "distilface.probing.config":
        for module in ("torch", "transformers", "accelerate", "scipy"):
            require(module, "train", "probing")
        require("matplotlib", "bench", "the plots of probing")
    return getattr(import_module(_HOME[name]), name)
