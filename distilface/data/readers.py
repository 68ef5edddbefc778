"""Training text by kind: sentences, pairs, groups, triplets, scored pairs and labelled texts.

Every reader takes a `DataSource`, or a path or Hub id with every default. Texts lose surrounding whitespace. A row with
too few non-blank texts is dropped, and one warning counts the dropped rows; a row of the wrong shape is an error.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from distilface.data.source import DataSource, Format, as_source
from distilface.data.tables import Table, open_table
from distilface.errors import UserError

logger = logging.getLogger(__name__)


class Pair(NamedTuple):
    """Two texts that mean the same."""

    anchor: str
    positive: str


class Triplet(NamedTuple):
    """An anchor, a text that means the same, and a hard negative that does not."""

    anchor: str
    positive: str
    negative: str


class ScoredPair(NamedTuple):
    """Two texts and how similar people find them, on any scale."""

    sentence1: str
    sentence2: str
    score: float


class LabelledText(NamedTuple):
    """A text and the name of its class."""

    text: str
    label: str


def read_sentences(source: DataSource | str | Path) -> list[str]:
    """One sentence a row; blank rows are dropped in silence.

    Raises:
        UserError: if the source can't be read or holds no sentence.
    """
    table = open_table(as_source(source), 1)
    sentences = [text for number, (cell,) in table.rows if (text := _text(table, number, cell).strip())]
    if not sentences:
        raise UserError(f"{table.name} holds no sentence: every {table.unit} is blank")
    return sentences


def read_pairs(source: DataSource | str | Path) -> list[Pair]:
    """Two columns: anchor, positive.

    Raises:
        UserError: if the source can't be read, a row has another number of columns, or no pair is left.
    """
    return [Pair(*texts) for texts in _complete(open_table(as_source(source), 2), 2, "pair")]


def read_triplets(source: DataSource | str | Path) -> list[Triplet]:
    """Three columns: anchor, positive, hard negative.

    Raises:
        UserError: if the source can't be read, a row has another number of columns, or no triplet is left.
    """
    return [Triplet(*texts) for texts in _complete(open_table(as_source(source), 3), 3, "triplet")]


def read_groups(source: DataSource | str | Path) -> list[list[str]]:
    """Two or more texts a row that mean the same: every column, or the items of a column that holds lists.

    Rows of a headerless file may differ in length. A row with fewer than two texts is dropped.

    Raises:
        UserError: if the source can't be read or no group of two is left.
    """
    return list(_complete(open_table(as_source(source), None), 2, "group"))


def read_scored_pairs(source: DataSource | str | Path) -> list[ScoredPair]:
    """Three columns: sentence1, sentence2, score. A row without a score was not judged, and is dropped.

    Raises:
        UserError: if the source can't be read, a score is not a finite number, or no pair is left.
    """
    table = open_table(as_source(source), 3)
    tally = _Dropped(table, "scored pair")
    pairs = []
    for number, (first, second, score) in table.rows:
        sentence1, sentence2 = _text(table, number, first).strip(), _text(table, number, second).strip()
        if sentence1 and sentence2 and score is not None and str(score).strip():
            pairs.append(ScoredPair(sentence1, sentence2, _score(table, number, score)))
        else:
            tally.add(number)
    tally.close(kept=len(pairs))
    return pairs


def read_labelled(source: DataSource | str | Path) -> list[LabelledText]:
    """Two columns: text, label; a label is text, a whole number or a truth value. A row without one is dropped.

    Raises:
        UserError: if the source can't be read, a label is something else, or no row is left.
    """
    table = open_table(as_source(source), 2)
    tally = _Dropped(table, "labelled text")
    rows = []
    for number, (cell, label) in table.rows:
        if label is not None and not isinstance(label, str | int):
            raise UserError(f"{table.where(number)}: expected a label (text or a whole number), got "
                            f"{type(label).__name__} {str(label)[:40]!r}")
        text, name = _text(table, number, cell).strip(), "" if label is None else str(label).strip()
        if text and name:
            rows.append(LabelledText(text, name))
        else:
            tally.add(number)
    tally.close(kept=len(rows))
    return rows


def iter_texts(path: str | Path, column: str | None = None, *, format: Format | None = None,
               header: bool | None = None) -> Iterator[str]:
    """Stream the texts of a file, or of standard input for ``-``, one for every row: blank ones too, unstripped.

    Row ``i`` of the vectors made from them therefore belongs to row ``i`` of the file.

    Args:
        column: name of the column (or its 1-based position with ``header=False``); plain text has none.
        format: overrides the suffix; standard input is plain text unless told.
        header: see `DataSource`.

    Raises:
        UserError: when iterated, if the source can't be read.
    """
    return (text for _, text in iter_rows(path, column, format=format, header=header))


def iter_rows(path: str | Path, column: str | None = None, id_column: str | None = None, *,
              format: Format | None = None, header: bool | None = None) -> Iterator[tuple[str, str]]:
    """`iter_texts` with the value of another column beside each text, as a string: ``(id, text)``.

    Without ``id_column`` the id is empty.

    Raises:
        UserError: also, if a row has no id.
    """
    if id_column is not None and column is None:
        raise UserError(f"the id column {id_column!r} was named, but not the text column; name both")
    names = tuple(name for name in (column, id_column) if name is not None)
    source = DataSource(path=str(path), columns=names or None, format=format, header=header)
    table = open_table(source, max(1, len(names)))
    missing = 0
    for number, (cell, *rest) in table.rows:
        missing += cell is None
        if rest and (rest[0] is None or isinstance(rest[0], list | dict)):
            raise UserError(f"{table.where(number)}: expected an id in column {id_column!r}, got {rest[0]!r}")
        yield str(rest[0]) if rest else "", _text(table, number, cell)
    if missing:
        logger.warning("%s: %d row(s) hold no text (null) and were read as the empty text", table.name, missing)


class _Dropped:
    """Counts dropped rows and speaks once."""

    def __init__(self, table: Table, kind: str) -> None:
        self.table, self.kind, self.count, self.first = table, kind, 0, 0

    def add(self, number: int) -> None:
        self.first = self.first or number
        self.count += 1

    def close(self, kept: int) -> None:
        if not kept:
            raise UserError(f"{self.table.name} holds no complete {self.kind}"
                            + (f": all {self.count} {self.table.unit}s lack a text" if self.count else ""))
        if self.count:
            logger.warning("%s: dropped %d incomplete %s%s, the first at %s %d", self.table.name, self.count,
                           self.kind, "" if self.count == 1 else "s", self.table.unit, self.first)


def _complete(table: Table, needed: int, kind: str) -> Iterator[list[str]]:
    """The rows with at least ``needed`` non-blank texts."""
    tally = _Dropped(table, kind)
    kept = 0
    for number, cells in table.rows:
        if kind == "group":
            cells = [item for cell in cells for item in (cell if isinstance(cell, list) else [cell])]
        texts = [text for cell in cells if (text := _text(table, number, cell).strip())]
        if len(texts) >= needed:
            kept += 1
            yield texts
        else:
            tally.add(number)
    tally.close(kept)


def _text(table: Table, number: int, cell: Any) -> str:
    if isinstance(cell, str):
        return cell
    if cell is None:
        return ""
    raise UserError(f"{table.where(number)}: expected text, got {type(cell).__name__} {str(cell)[:40]!r}")


def _score(table: Table, number: int, cell: Any) -> float:
    try:
        score = float(cell) if isinstance(cell, str | int | float) and not isinstance(cell, bool) else math.nan
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise UserError(f"{table.where(number)}: expected a number as score, got {str(cell)[:40]!r}")
    return score
