"""Which layers matter: untrained scores of every layer, and fine-tuning after re-initialising or permuting layers.

Source: Tamkin et al., "Investigating Transferability in Pretrained Language Models" (Findings of EMNLP 2020); the
layer-wise scores are those of Oh et al. (COLING 2022), figure 1. The names here are loaded on first use, so that
reading a configuration does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distilface.lazy import Need, loader

if TYPE_CHECKING:
    from distilface.probing.config import ProbeConfig
    from distilface.probing.run import ProbeResult, probe

__all__ = ["ProbeConfig", "ProbeResult", "probe"]

_HOME = {
    "ProbeConfig": "distilface.probing.config",
    "ProbeResult": "distilface.probing.run",
    "probe": "distilface.probing.run",
}

_NEEDS = [
    Need(("torch", "transformers", "accelerate", "scipy"), "train", "probing"),
    Need(("matplotlib",), "bench", "the plots of probing"),
]

__getattr__ = loader(__name__, _HOME, _NEEDS, without="distilface.probing.config")
