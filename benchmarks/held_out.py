"""The retrieval test: the captions of the last pictures, kept out of everything that trains."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import scores
from distilface.data import read_groups
from distilface.evaluation import group_recall
from distilface.protocol import SentenceVectors

GROUPS = 2000
"""Caption groups at the end of caption_groups.tsv.gz that only test."""


class HeldOut:
    """The last groups of a file, and what is left for training.

    A training row that holds a held-out caption is dropped, whatever its case and punctuation: captions of the same
    pictures are among the sentences and the NLI premises, too.

    Args:
        data: folder with caption_groups.tsv.gz.

    Attributes:
        groups: for the test.
        training: the other groups.
    """

    def __init__(self, data: Path, groups: int = GROUPS) -> None:
        everything = read_groups(data / "caption_groups.tsv.gz")
        self.groups = everything[-groups:]
        self._known = {_plain(text) for group in self.groups for text in group}
        self.training = self.spared(everything[:-groups])

    def spared(self, rows: Iterable[Sequence[str]]) -> list[Sequence[str]]:
        """The rows without a held-out caption."""
        return [row for row in rows if not any(_plain(text) in self._known for text in row)]

    def recall(self, encoder: SentenceVectors) -> dict[str, float]:
        """Caption -> another caption of its picture, in points."""
        return {f"recall@{k}": 100 * value for k, value in group_recall(encoder, self.groups).items()}


def measured(encoder: SentenceVectors, data: Path, held: HeldOut) -> dict[str, Any]:
    """The seven STS sets and the retrieval test, in points."""
    return scores(encoder, data) | held.recall(encoder)


def write_rows(file: Path, rows: Iterable[Sequence[str]]) -> Path:
    """Write rows as tab-separated text."""
    with file.open("w", encoding="utf-8", newline="\n") as stream:
        stream.writelines("\t".join(row) + "\n" for row in rows)
    return file


def _plain(text: str) -> str:
    return re.sub(r"\W+", " ", text.lower()).strip()
