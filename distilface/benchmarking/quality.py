"""Quality from vectors that workers have written: cosines to fp32 and STS, by the code that `evaluate` uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distilface.benchmarking.results import Cosine, Retrieval, StsResult, StsScore
from distilface.errors import GateError, UserError
from distilface.protocol import Vectors

SMARTHOME = "smarthome"


@dataclass(frozen=True)
class StsData:
    """Judged pairs of one set; a year's subsets are concatenated (the SentEval "all" setting). ``gold``: ``[n]``."""

    name: str
    sentences1: tuple[str, ...]
    sentences2: tuple[str, ...]
    gold: NDArray[np.float64]


def load_sts_data(source: Path) -> list[StsData]:
    """The test sets that a SentEval folder has, the pairs of one scored file, or the built-in graded pairs.

    Raises:
        UserError: no such source, no set in it, or fewer than two pairs in a set.
        GateError: all pairs of a set have the same score.
    """
    from distilface.evaluation import load_scored

    if source.expanduser().is_dir():
        sets = _senteval(source.expanduser())
    elif str(source) == SMARTHOME:
        from distilface.smarthome import graded_pairs

        rows = graded_pairs("test")
        sets = [StsData(SMARTHOME, tuple(row.sentence1 for row in rows), tuple(row.sentence2 for row in rows),
                        np.array([row.score for row in rows], dtype=np.float64))]
    else:
        pairs = load_scored(source)
        sets = [StsData(source.name.split(".")[0], pairs.sentences1, pairs.sentences2, pairs.gold)]
    for item in sets:
        if len(item.gold) < 2:
            raise UserError(f"STS set {item.name!r} of {str(source)!r} holds {len(item.gold)} pair(s); Spearman needs "
                            "at least 2: give more pairs or drop --sts")
        if (item.gold == item.gold[0]).all():
            raise GateError(f"STS set {item.name!r} of {str(source)!r} gives all {len(item.gold)} pairs the score "
                            f"{item.gold[0]:g}: Spearman is undefined; give pairs of different scores or drop --sts")
    return sets


def distinct_sentences(sets: Sequence[StsData]) -> list[str]:
    """Every sentence of the sets once, in order of first appearance."""
    return list(dict.fromkeys(text for item in sets for column in (item.sentences1, item.sentences2)
                              for text in column))


def pair_cosines(vectors: Vectors, sentences: Sequence[str], sets: Sequence[StsData]) -> list[NDArray[np.float64]]:
    """Cosine of every pair of each set, from ``vectors`` ``[len(sentences), dim]``."""
    from distilface.evaluation.vectors import cosine_rows

    row = {text: index for index, text in enumerate(sentences)}
    return [cosine_rows(vectors[[row[text] for text in item.sentences1]], vectors[[row[text] for text in
                                                                                  item.sentences2]])
            for item in sets]


def check_defined(subject: str, sets: Sequence[StsData], cosines: Sequence[NDArray[np.float64]]) -> None:
    """Raise `GateError` where a set's Spearman is undefined: the subject gives all its pairs the same score."""
    for item, ours in zip(sets, cosines, strict=True):
        _score(subject, item, ours, None, 0, 0)


def sts_result(name: str, sets: Sequence[StsData], cosines: Sequence[NDArray[np.float64]],
               baseline: Sequence[NDArray[np.float64]] | None, bootstrap: int, seed: int) -> StsResult:
    """Scores in points, and their change against the baseline's cosines on the same pairs.

    Raises:
        GateError: Spearman is undefined, because the model gives every pair the same score.
    """
    from distilface.evaluation import STS_SETS

    scores = [_score(name, item, ours, None if baseline is None else baseline[index], bootstrap, seed)
              for index, (item, ours) in enumerate(zip(sets, cosines, strict=True))]
    seven = {score.name for score in scores} == set(STS_SETS)
    label = "avg7" if seven else scores[0].name if len(scores) == 1 else f"mean of {len(scores)} sets"
    changes = [score.change for score in scores if score.change is not None]
    return StsResult(sets=tuple(scores), average=float(np.mean([score.spearman for score in scores])),
                     average_name=label, change=float(np.mean(changes)) if changes else None)


def retrieval_result(vectors: Vectors, texts: Sequence[str], groups: Sequence[Sequence[str]],
                     baseline: Retrieval | None) -> Retrieval:
    """Recall from ``vectors`` ``[len(texts), dim]``."""
    from distilface.evaluation import group_recall
    from distilface.evaluation.vectors import KnownVectors

    found = {k: 100 * share for k, share in group_recall(KnownVectors(texts, vectors), groups).items()}
    made = Retrieval(groups=len(groups), recall1=found[1], recall10=found[10])
    if baseline is None:
        return made
    return made.model_copy(update={"change1": found[1] - baseline.recall1, "change10": found[10] - baseline.recall10})


def load_groups(source: Path, last: int | None) -> list[Sequence[str]]:
    """The groups of a file, or the last so many of them."""
    from distilface.data import read_groups

    groups = read_groups(source)
    if last is not None and last > len(groups):
        raise UserError(f"--last {last} is more than the {len(groups)} groups of {str(source)!r}; use 1 to "
                        f"{len(groups)}")
    return list(groups if last is None else groups[-last:])


def cosine_summary(reference: str, ours: Vectors, theirs: Vectors) -> Cosine:
    """Mean, 1st percentile and smallest cosine, row by row, of two arrays ``[n, dim]``."""
    from distilface.evaluation.vectors import cosine_rows

    values = cosine_rows(ours, theirs)
    return Cosine(reference=reference, texts=len(values), mean=float(values.mean()),
                  p1=float(np.percentile(values, 1)), minimum=float(values.min()))


def _score(subject: str, item: StsData, ours: NDArray[np.float64], baseline: NDArray[np.float64] | None,
           bootstrap: int, seed: int) -> StsScore:
    from distilface.evaluation import bootstrap_difference, pearson, spearman

    try:
        score = StsScore(name=item.name, pairs=len(item.gold), spearman=100 * spearman(item.gold, ours),
                         pearson=100 * pearson(item.gold, ours))
    except GateError as error:
        raise GateError(f"{subject}, STS set {item.name!r}: {error}; its vectors or the pairs carry no information "
                        "(verify the bundle, or give other pairs)") from None
    if baseline is None:
        return score
    if bootstrap == 0:
        change = score.spearman - 100 * spearman(item.gold, baseline)
        return score.model_copy(update={"change": change})
    found = bootstrap_difference(item.gold, baseline, ours, n=bootstrap, seed=seed)
    return score.model_copy(update={"change": 100 * found.difference, "change_low": 100 * found.low,
                                    "change_high": 100 * found.high})


def _senteval(folder: Path) -> list[StsData]:
    from distilface.evaluation import STS_SETS, load_sts

    homes = {name: folder / "STS" / f"{name}-en-test" for name in STS_SETS}
    homes |= {"STSBenchmark": folder / "STS" / "STSBenchmark", "SICKRelatedness": folder / "SICK"}
    present = [name for name in STS_SETS if homes[name].is_dir()]
    if not present:
        raise UserError(f"{str(folder)!r} holds none of the STS sets; it must look like SentEval's data/downstream: "
                        "STS/STS12-en-test ... STS/STSBenchmark, SICK")
    return [StsData(item.name, tuple(text for part in item.subsets for text in part.sentences1),
                    tuple(text for part in item.subsets for text in part.sentences2),
                    np.concatenate([part.gold for part in item.subsets])) for item in load_sts(folder, present)]
