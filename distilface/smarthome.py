"""The built-in demo data: commands to a smart home, grouped by intent, with graded pairs.

An intent is a device and an action (``lights.dim``). The three splits share no intent, so a model is judged on
intents that it never saw. The tables and their columns are described in ``demo_data/README.md``.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np

from distilface.errors import UserError
from distilface.protocol import SentenceVectors

SPLITS = ("train", "dev", "test")
GRADED_SPLITS = ("dev", "test")
RELATIONS = {"same_intent": 5.0, "same_device": 3.0, "same_domain": 1.0, "unrelated": 0.0}
"""Grade of each relation; the first that holds names the pair (``same_device`` means another action of it)."""


@dataclass(frozen=True)
class Utterance:
    """One command: what somebody says (``text``) and what the home should do (``intent`` = device.action)."""

    split: str
    domain: str
    device: str
    action: str
    intent: str
    text: str


@dataclass(frozen=True)
class GradedPair:
    """Two commands of one split and how alike their meanings are: ``score`` is 5, 3, 1 or 0 (`RELATIONS`)."""

    split: str
    score: float
    relation: str
    sentence1: str
    sentence2: str


def utterances(split: str | None = None) -> list[Utterance]:
    """The commands of one split, or of all three, in file order. Unknown split: `UserError`."""
    if split is None:
        return list(_utterance_table())
    _check_split(split, SPLITS)
    return [row for row in _utterance_table() if row.split == split]


def graded_pairs(split: str) -> list[GradedPair]:
    """The graded pairs of ``dev`` or ``test``, in file order. Any other split: `UserError`."""
    _check_split(split, GRADED_SPLITS)
    return [row for row in _pair_table() if row.split == split]


def groups(split: str) -> list[list[str]]:
    """The texts of each intent of a split, one list an intent: the texts of a list are positives of each other."""
    by_intent: dict[str, list[str]] = {}
    for row in utterances(split):
        by_intent.setdefault(row.intent, []).append(row.text)
    return list(by_intent.values())


def nearest_intent_accuracy(encoder: SentenceVectors, split: str = "test") -> float:
    """Leave-one-out accuracy in percent (0..100): how often the nearest other command has the same intent.

    Nearest by cosine among all other utterances of the split; on a tie the one that comes first in the file.
    ``encoder.encode`` gets all texts at once and returns ``[n, dim]``, normalised or not; an all-zero row has
    cosine 0 with everything. Raises `ValueError` when the vectors have another shape or are not finite.
    """
    rows = utterances(split)
    vectors = np.asarray(encoder.encode([row.text for row in rows]), dtype=np.float64)
    if vectors.ndim != 2 or len(vectors) != len(rows) or not np.isfinite(vectors).all():
        raise ValueError(f"encode must return finite vectors [{len(rows)}, dim], got shape {vectors.shape}")
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(norms > 0, norms, 1.0)
    cosine = unit @ unit.T
    np.fill_diagonal(cosine, -np.inf)
    intents = np.array([row.intent for row in rows])
    return float(100.0 * np.mean(intents[cosine.argmax(axis=1)] == intents))


def _check_split(split: str, allowed: tuple[str, ...]) -> None:
    if split not in allowed:
        raise UserError(f"unknown split {split!r} of the smart-home data: choose one of {', '.join(allowed)}")


@cache
def _utterance_table() -> tuple[Utterance, ...]:
    return tuple(Utterance(**row) for row in _rows("utterances.tsv"))


@cache
def _pair_table() -> tuple[GradedPair, ...]:
    return tuple(
        GradedPair(row["split"], float(row["score"]), row["relation"], row["sentence1"], row["sentence2"])
        for row in _rows("pairs.tsv")
    )


def _rows(name: str) -> Iterator[dict[str, str]]:
    source = resources.files("distilface").joinpath("demo_data").joinpath(name)
    yield from csv.DictReader(
        io.StringIO(source.read_text(encoding="utf-8")), delimiter="\t", quoting=csv.QUOTE_NONE
    )
