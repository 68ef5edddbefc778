"""Text in: sentences, pairs, groups and triplets from files or from the Hub, without torch."""

from distilface.data.readers import (
    LabelledText,
    Pair,
    ScoredPair,
    Triplet,
    iter_rows,
    iter_texts,
    read_groups,
    read_labelled,
    read_pairs,
    read_scored_pairs,
    read_sentences,
    read_triplets,
)
from distilface.data.source import DataSource

__all__ = [
    "DataSource",
    "LabelledText",
    "Pair",
    "ScoredPair",
    "Triplet",
    "iter_rows",
    "iter_texts",
    "read_groups",
    "read_labelled",
    "read_pairs",
    "read_scored_pairs",
    "read_sentences",
    "read_triplets",
]
