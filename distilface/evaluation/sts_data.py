"""The STS sets in the folder layout of SentEval (Conneau & Kiela 2018, arXiv:1803.05449), quirks included.

``folder`` holds ``STS/STS12-en-test`` ... ``STS/STS16-en-test``, ``STS/STSBenchmark`` and ``SICK``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distilface.data import DataSource, read_scored_pairs
from distilface.data.lines import iter_lines
from distilface.data.source import as_source, locate
from distilface.errors import UserError

STS_SETS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSBenchmark", "SICKRelatedness")

# By name, so that a missing file is an error and not a smaller set. STS12 also has a gs.ALL file, which repeats the
# others; the sentences of STS13's SMT were never free to distribute.
SUBSETS = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),
    "STS14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
BENCHMARK_FILES = {"train": "sts-train.csv", "dev": "sts-dev.csv", "test": "sts-test.csv"}
SICK_FILES = {"train": "SICK_train.txt", "dev": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
HUB_SPLITS = {"train": "train", "dev": "validation", "test": "test"}
SCORED_COLUMNS = ("sentence1", "sentence2", "score")


@dataclass(frozen=True, eq=False)
class StsPairs:
    """Judged sentence pairs; ``gold`` is float64 ``[n]``."""

    name: str
    sentences1: tuple[str, ...]
    sentences2: tuple[str, ...]
    gold: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.gold)


@dataclass(frozen=True, eq=False)
class StsSet:
    """One of `STS_SETS`: a year's subsets, or a single one."""

    name: str
    subsets: tuple[StsPairs, ...]

    def __len__(self) -> int:
        return sum(map(len, self.subsets))


def load_sts(folder: str | Path, names: Sequence[str] = STS_SETS) -> tuple[StsSet, ...]:
    """Load test sets by name, in the order given.

    Raises:
        UserError: on an unknown name, a missing file or a ragged line (with its number).
    """
    unknown = [name for name in names if name not in STS_SETS]
    if unknown or not names:
        raise UserError(f"unknown STS set {unknown[0]!r}; the sets are {', '.join(STS_SETS)}" if unknown
                        else f"no STS set named; the sets are {', '.join(STS_SETS)}")
    root = _checked_root(Path(folder))
    loaders: dict[str, Callable[[Path], StsPairs]] = {"STSBenchmark": load_sts_benchmark, "SICKRelatedness": load_sick}
    return tuple(
        StsSet(name, (loaders[name](root),) if name in loaders
               else tuple(_load_subset(root / "STS" / f"{name}-en-test", subset) for subset in SUBSETS[name]))
        for name in names
    )


def load_sts_benchmark(folder: str | Path, split: str = "test") -> StsPairs:
    """The ``train``, ``dev`` or ``test`` pairs of STS-B: 5,749, 1,500 and 1,379; scores 0 to 5.

    The files are called .csv but separated by tabs, and quotes in them are text.

    Raises:
        UserError: on an unknown split, a missing file, a ragged line or a bad score.
    """
    file = _checked_root(Path(folder)) / "STS" / "STSBenchmark" / _split_file(BENCHMARK_FILES, split)
    # genre, file, year, id, score, sentence1, sentence2 and, in some distributions, licence notes
    rows = [cells[4:7] for cells in _rows(file, at_least=7, uniform=False)]
    gold = [_gold(file, number, row[0]) for number, row in enumerate(rows, 1)]
    return _pairs(f"STSBenchmark-{split}", [row[1] for row in rows], [row[2] for row in rows], gold)


def load_sick(folder: str | Path, split: str = "test") -> StsPairs:
    """The ``train``, ``dev`` (trial) or ``test`` pairs of SICK relatedness: 4,500, 500 and 4,927; scores 1 to 5.

    Raises:
        UserError: on an unknown split, a missing file, a ragged line or a bad score.
    """
    file = _checked_root(Path(folder)) / "SICK" / _split_file(SICK_FILES, split)
    # a header, then pair_ID, sentence_A, sentence_B, relatedness_score, entailment_judgment
    rows = [cells[1:4] for cells in _rows(file, at_least=5)][1:]
    gold = [_gold(file, number, row[2]) for number, row in enumerate(rows, 2)]
    return _pairs(f"SICKRelatedness-{split}", [row[0] for row in rows], [row[1] for row in rows], gold)


def load_scored(source: DataSource | str | Path, split: str = "dev") -> StsPairs:
    """Judged pairs from wherever they are: a SentEval folder (then STS-B), a file, or a Hub data set.

    Files and Hub data sets have the columns sentence1, sentence2 and score unless ``source`` names others, or says
    ``header=False`` and has just these three. A Hub data set such as ``sentence-transformers/stsb`` is read at the
    matching split (``dev`` is ``validation``) unless ``source`` names one.

    Raises:
        UserError: if the source can't be read.
    """
    given = as_source(source)
    if Path(given.path).expanduser().is_dir():
        return load_sts_benchmark(Path(given.path).expanduser(), split)
    _split_file(HUB_SPLITS, split)
    nameless = given.columns is None and given.header is False
    wanted = given if nameless or given.columns else given.model_copy(update={"columns": SCORED_COLUMNS})
    if locate(wanted) is None and given.split is None:
        wanted = wanted.model_copy(update={"split": HUB_SPLITS[split]})
    pairs = read_scored_pairs(wanted)
    return _pairs(given.path, [pair.sentence1 for pair in pairs], [pair.sentence2 for pair in pairs],
                  [pair.score for pair in pairs])


def _load_subset(folder: Path, subset: str) -> StsPairs:
    texts, scores = folder / f"STS.input.{subset}.txt", folder / f"STS.gs.{subset}.txt"
    inputs, judged = _rows(texts, at_least=2), _lines(scores)  # two source notes follow in the original STS16
    if len(inputs) != len(judged):
        raise UserError(f"{texts} has {len(inputs)} lines and {scores.name} {len(judged)}; they belong line to line")
    first, second, gold = [], [], []
    for number, (cells, score) in enumerate(zip(inputs, judged, strict=True), 1):
        if score.strip():  # a blank line was not judged
            first.append(cells[0])
            second.append(cells[1])
            gold.append(_gold(scores, number, score))
    return _pairs(subset, first, second, gold)


def _checked_root(folder: Path) -> Path:
    if not (folder / "STS").is_dir() and not (folder / "SICK").is_dir():
        raise UserError(f"{str(folder)!r} is not a SentEval folder: it must hold STS/STS12-en-test ... "
                        "STS/STSBenchmark and SICK (SentEval's data/downstream)")
    return folder


def _split_file(files: dict[str, str], split: str) -> str:
    if split not in files:
        raise UserError(f"unknown split {split!r}; the splits are {', '.join(files)}")
    return files[split]


def _lines(file: Path) -> list[str]:
    if not file.is_file():
        raise UserError(f"no such file: {file}; the SentEval folder is incomplete")
    return list(iter_lines(file))


def _rows(file: Path, at_least: int, uniform: bool = True) -> list[list[str]]:
    """Tab-separated cells; ``uniform`` asks every line for as many as the first, so a tab in a sentence is noticed."""
    rows = [line.split("\t") for line in _lines(file)]
    width = len(rows[0])
    for number, cells in enumerate(rows, 1):
        if len(cells) < at_least:
            raise UserError(f"{file}, line {number}: {len(cells)} tab-separated columns, at least {at_least} needed")
        if uniform and len(cells) != width:
            raise UserError(f"{file}, line {number}: {len(cells)} tab-separated columns where line 1 has {width}")
    return rows


def _gold(file: Path, number: int, text: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise UserError(f"{file}, line {number}: expected a number as score, got {text[:40]!r}")
    return score


def _pairs(name: str, first: Sequence[str], second: Sequence[str], gold: Sequence[float]) -> StsPairs:
    return StsPairs(name, tuple(first), tuple(second), np.array(gold, dtype=np.float64))
