"""Checkpoint to smaller checkpoint: fewer layers, units, heads and word pieces, BERT as DistilBERT."""

from distilface.shrinking.run import ShrinkResult, shrink

__all__ = ["ShrinkResult", "shrink"]
