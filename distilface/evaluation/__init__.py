"""How good vectors are, measured on anything that encodes: STS, alignment and uniformity, retrieval.

Everything here needs numpy and scipy only.
"""

from distilface.evaluation.classification import accuracy, matthews
from distilface.evaluation.correlation import Difference, bootstrap_difference, pearson, spearman
from distilface.evaluation.geometry import Geometry, alignment, alignment_uniformity, uniformity
from distilface.evaluation.retrieval import group_recall, recall_at_k
from distilface.evaluation.sts import (
    AGGREGATIONS,
    Aggregation,
    Score,
    SetScore,
    StsScores,
    dev_score,
    evaluate_sts,
    similarities,
)
from distilface.evaluation.sts_data import (
    STS_SETS,
    StsPairs,
    StsSet,
    load_scored,
    load_sick,
    load_sts,
    load_sts_benchmark,
)

__all__ = [
    "AGGREGATIONS",
    "STS_SETS",
    "Aggregation",
    "Difference",
    "Geometry",
    "Score",
    "SetScore",
    "StsPairs",
    "StsScores",
    "StsSet",
    "accuracy",
    "alignment",
    "alignment_uniformity",
    "bootstrap_difference",
    "dev_score",
    "evaluate_sts",
    "group_recall",
    "load_scored",
    "load_sick",
    "load_sts",
    "load_sts_benchmark",
    "matthews",
    "pearson",
    "recall_at_k",
    "similarities",
    "spearman",
    "uniformity",
]
