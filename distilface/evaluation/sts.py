"""Semantic textual similarity: does the cosine of two vectors rank pairs as people do?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from distilface.data import DataSource
from distilface.errors import GateError, UserError
from distilface.evaluation.correlation import pearson, spearman
from distilface.evaluation.sts_data import STS_SETS, StsPairs, load_scored, load_sts
from distilface.evaluation.vectors import cosine_rows, encode_distinct
from distilface.protocol import SentenceVectors

Aggregation = Literal["all", "mean", "wmean"]
AGGREGATIONS: tuple[str, ...] = get_args(Aggregation)
AVG5 = ("STS12", "STS13", "STS14", "STS15", "STSBenchmark")  # the five of the DistilFACE paper


@dataclass(frozen=True)
class Score:
    """Correlations in points (times 100) over ``pairs`` pairs."""

    name: str
    spearman: float
    pearson: float
    pairs: int


@dataclass(frozen=True)
class SetScore(Score):
    """A set's correlations, aggregated over its ``subsets``."""

    subsets: tuple[Score, ...]


@dataclass(frozen=True)
class StsScores:
    """The scores of one model.

    ``avg7`` and ``avg5`` are means of Spearman in points over all seven sets, and over STS12-15 and STS-B; None unless
    every member was measured.
    """

    aggregation: Aggregation
    sets: tuple[SetScore, ...]
    avg7: float | None
    avg5: float | None

    def __getitem__(self, name: str) -> SetScore:
        """The score of a set by its name; KeyError if it was not measured."""
        return {score.name: score for score in self.sets}[name]

    def as_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return asdict(self)


def similarities(encoder: SentenceVectors, pairs: Sequence[StsPairs]) -> list[NDArray[np.float64]]:
    """Cosine of every pair, one array ``[n]`` for each item of ``pairs``; every distinct sentence is encoded once."""
    columns = [column for item in pairs for column in (item.sentences1, item.sentences2)]
    vectors, rows = encode_distinct(encoder, columns)
    return [cosine_rows(vectors[rows[2 * i]], vectors[rows[2 * i + 1]]) for i in range(len(pairs))]


def evaluate_sts(encoder: SentenceVectors, folder: str | Path, sets: Sequence[str] = STS_SETS,
                 aggregation: Aggregation = "all") -> StsScores:
    """Score an encoder on STS test sets in a SentEval folder.

    Args:
        aggregation: how a year's subsets become one number. ``all`` concatenates their pairs (SimCSE's setting, and
            the one published tables use); ``mean`` averages the subsets' correlations; ``wmean`` weights by pairs.

    Raises:
        UserError: on an unknown set or aggregation, or data that can't be read.
        GateError: where a correlation is undefined, because a model gives every pair the same score.
    """
    if aggregation not in AGGREGATIONS:
        raise UserError(f"unknown aggregation {aggregation!r}; choose one of {', '.join(AGGREGATIONS)}")
    loaded = load_sts(folder, sets)
    flat = iter(similarities(encoder, [subset for item in loaded for subset in item.subsets]))
    scored = []
    for item in loaded:
        cosines = [next(flat) for _ in item.subsets]
        subsets = tuple(_score(subset.name, subset.gold, cosine)
                        for subset, cosine in zip(item.subsets, cosines, strict=True))
        if aggregation == "all":
            whole = _score(item.name, np.concatenate([subset.gold for subset in item.subsets]), np.concatenate(cosines))
            correlations = whole.spearman, whole.pearson
        else:
            weights = [subset.pairs for subset in subsets] if aggregation == "wmean" else None
            correlations = (float(np.average([subset.spearman for subset in subsets], weights=weights)),
                            float(np.average([subset.pearson for subset in subsets], weights=weights)))
        scored.append(SetScore(item.name, *correlations, len(item), subsets))
    return StsScores(aggregation, tuple(scored), _average(scored, STS_SETS), _average(scored, AVG5))


def dev_score(encoder: SentenceVectors, source: StsPairs | DataSource | str | Path) -> float:
    """Spearman in points on development pairs: STS-B dev of a SentEval folder, or any source of scored pairs.

    Pass `StsPairs` (from `load_scored`) to read the data once and score many times.

    Raises:
        UserError: if the source can't be read.
        GateError: where Spearman is undefined.
    """
    pairs = source if isinstance(source, StsPairs) else load_scored(source)
    (cosines,) = similarities(encoder, [pairs])
    return _score(pairs.name, pairs.gold, cosines).spearman


def _score(name: str, gold: NDArray[np.float64], cosines: NDArray[np.float64]) -> Score:
    try:
        return Score(name, 100 * spearman(gold, cosines), 100 * pearson(gold, cosines), len(gold))
    except GateError as error:
        raise GateError(f"{name}: {error}") from None


def _average(scores: Sequence[SetScore], members: Sequence[str]) -> float | None:
    by_name = {score.name: score.spearman for score in scores}
    return float(np.mean([by_name[name] for name in members])) if set(members) <= set(by_name) else None
