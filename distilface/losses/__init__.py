"""Losses: vectors in, one scalar out, always in float32."""

from distilface.losses.contrastive import duplicate_mask, info_nce
from distilface.losses.distillation import (
    cosine_distance,
    distribution_cross_entropy,
    hidden_distance,
    relation_divergence,
    similarity_mse,
    squared_distance,
)
from distilface.losses.matryoshka import at_dimensions
from distilface.losses.scored import angle, cosent

__all__ = [
    "angle",
    "at_dimensions",
    "cosent",
    "cosine_distance",
    "distribution_cross_entropy",
    "duplicate_mask",
    "hidden_distance",
    "info_nce",
    "relation_divergence",
    "similarity_mse",
    "squared_distance",
]
