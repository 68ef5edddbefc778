"""Text in: sentences, pairs, groups and triplets from files or from the Hub, without torch."""

from distilface.data.readers import (
    Pair,
    ScoredPair,
    Triplet,
    iter_texts,
    read_groups,
    read_pairs,
    read_scored_pairs,
    read_sentences,
    read_triplets,
)
from distilface.data.source import DataSource

__all__ = [
    "DataSource",
    "Pair",
    "ScoredPair",
    "Triplet",
    "iter_texts",
    "read_groups",
    "read_pairs",
    "read_scored_pairs",
    "read_sentences",
    "read_triplets",
]
