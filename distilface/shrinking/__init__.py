"""Checkpoint to smaller checkpoint: fewer layers, narrower FFNs, a trimmed vocabulary, BERT as DistilBERT."""

from distilface.shrinking.run import ShrinkResult, shrink

__all__ = ["ShrinkResult", "shrink"]
