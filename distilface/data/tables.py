"""Rows of cells from every format, with the place of each row for error messages."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distilface.data.hub import load_hub
from distilface.data.lines import GZIP_MAGIC, display_name, first_bytes, iter_lines
from distilface.data.source import STDIN, SUFFIXES, DataSource, Format, locate
from distilface.errors import UserError, require

Row = tuple[int, list[Any]]

PARQUET_MAGIC = b"PAR1"
LONGEST_FIELD = 2**30  # characters; csv refuses more than 131,072 unless told
BATCH = 4096  # rows decoded at a time from columnar formats


@dataclass(frozen=True)
class Table:
    """Rows ``(number, cells)`` of a source, numbered from 1, holding only the columns asked for.

    ``unit`` is what the number counts: ``line`` of a text file, or ``row``.
    """

    name: str
    unit: str
    rows: Iterator[Row]

    def where(self, number: int) -> str:
        """The place of a row, for an error message."""
        return f"{self.name}, {self.unit} {number}"


def open_table(source: DataSource, width: int | None) -> Table:
    """Open ``source``; rows are read as they are consumed.

    Args:
        width: number of columns that the reader needs; None takes any number, and lets headerless rows differ.

    Raises:
        UserError: on anything wrong with the file, its columns or a row (then with the row's place).
    """
    if source.columns is not None and width is not None and len(source.columns) != width:
        raise UserError(f"columns={','.join(source.columns)} names {_count(len(source.columns))}; {width} needed here")
    path = locate(source)
    if path is None:
        if source.format is not None or source.header is not None:
            raise UserError(f"format and header belong to files; {source.path!r} is a Hub data set")
        dataset = load_hub(source)
        names = _choose(source.path, dataset.column_names, source.columns, width)
        batches = ([batch[name] for name in names] for batch in dataset.select_columns(names).iter(batch_size=BATCH))
        return Table(source.path, "row", _from_columns(source.path, batches))
    name, kind = display_name(path), source.format or _detect(path)
    if source.header is not None and kind not in ("tsv", "csv"):
        raise UserError(f"header={source.header} belongs to TSV and CSV; {name} is read as {kind}")
    if kind == "parquet":
        return Table(name, "row", _parquet(path, source.columns, width))
    if kind == "jsonl":
        return Table(name, "line", _jsonl(path, source.columns, width))
    if kind == "text":
        if source.columns is not None:
            raise UserError(f"{name} is read as plain text, which has no columns ({', '.join(source.columns)} asked "
                            "for); say format=tsv, csv or jsonl if it is one")
        if width not in (None, 1):
            raise UserError(f"{name} is read as plain text, which has one column; {width} needed here: use TSV, CSV, "
                            "JSONL or Parquet, or say format=tsv")
        return Table(name, "line", ((number, [line]) for number, line in enumerate(iter_lines(path), 1)))
    split = _csv(path) if kind == "csv" else _tsv(path)
    has_header = source.header if source.header is not None else kind == "csv" or source.columns is not None
    return Table(name, "line", (_with_header if has_header else _headerless)(name, split, source.columns, width))


def _detect(path: Path) -> Format:
    if path == STDIN:
        return "text"
    if first_bytes(path, len(PARQUET_MAGIC)) == PARQUET_MAGIC:
        return "parquet"
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    return SUFFIXES.get(suffixes[-1], "text") if suffixes else "text"


def _tsv(path: Path) -> Iterator[Row]:
    """Tabs separate, quotes are text: a bare quote in a sentence must not swallow the lines after it."""
    return ((number, line.split("\t")) for number, line in enumerate(iter_lines(path), 1))


def _csv(path: Path) -> Iterator[Row]:
    """RFC 4180 quoting; a quoted field may span lines, and the number is that of the row's first line."""
    csv.field_size_limit(LONGEST_FIELD)
    reader = csv.reader(iter_lines(path, keep_ends=True), strict=True)
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise UserError(f"{display_name(path)}, line {number}: not valid CSV ({error}); quote fields "
                            "that hold quotes, or use TSV, where quotes are text") from None
        yield number, cells or [""]


def _is_blank(cells: Sequence[str]) -> bool:
    """A blank line: an empty text in a file of one column, no row in a wider one."""
    return len(cells) == 1 and not cells[0].strip()


def _with_header(name: str, rows: Iterator[Row], columns: Sequence[str] | None, width: int | None) -> Iterator[Row]:
    header = next((cells for _, cells in rows if not _is_blank(cells)), None)
    if header is None:
        raise UserError(f"{name} holds no header line")
    picks = [header.index(column) for column in _choose(name, header, columns, width)]
    for number, cells in rows:
        if len(header) > 1 and _is_blank(cells):
            continue
        if len(cells) != len(header):
            raise UserError(f"{name}, line {number}: {_count(len(cells))} where the header has {len(header)}")
        yield number, [cells[pick] for pick in picks]


def _headerless(name: str, rows: Iterator[Row], columns: Sequence[str] | None, width: int | None) -> Iterator[Row]:
    if columns is None:
        for number, cells in rows:
            if width != 1 and _is_blank(cells):
                continue
            if width is not None and len(cells) != width:
                raise UserError(f"{name}, line {number}: {_count(len(cells))} where {width} needed; name the columns "
                                "to read with columns (a header's names, or positions with header=false)")
            yield number, cells
        return
    if not all(column.isdecimal() and int(column) > 0 for column in columns):
        raise UserError(f"columns={','.join(columns)} with header=false: without a header, columns are positions "
                        "counted from 1")
    picks = [int(column) - 1 for column in columns]
    expected = None
    for number, cells in rows:
        if expected != 1 and _is_blank(cells):
            continue
        expected = len(cells) if expected is None else expected
        if len(cells) != expected:
            raise UserError(f"{name}, line {number}: {_count(len(cells))} where the first line has {expected}")
        if max(picks) >= expected:
            raise UserError(f"{name} has {_count(expected)}; column {max(picks) + 1} asked for")
        yield number, [cells[pick] for pick in picks]


def _jsonl(path: Path, columns: Sequence[str] | None, width: int | None) -> Iterator[Row]:
    """One JSON object a line (columns by key), or one array or string a line (no column names)."""
    name = display_name(path)
    names: list[str] | None = None
    for number, line in enumerate(iter_lines(path), 1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            value = json.loads(line)
        except ValueError as error:
            raise UserError(f"{where}: not valid JSON ({error}); JSONL holds one object a line") from None
        if isinstance(value, dict):
            if names is None:
                names = _choose(where, list(value), columns, width)
            missing = next((column for column in names if column not in value), None)
            if missing is not None:
                raise _no_column(where, missing, list(value))
            yield number, [value[column] for column in names]
        elif isinstance(value, list | str) and columns is None:
            cells = [value] if isinstance(value, str) else value
            if width is not None and len(cells) != width:
                raise UserError(f"{where}: {_count(len(cells))} where {width} needed")
            yield number, cells
        else:
            found = "object" if columns is None else f"object with {', '.join(columns)}"
            raise UserError(f"{where}: expected a JSON {found}, got {line.strip()[:40]!r}")


def _parquet(path: Path, columns: Sequence[str] | None, width: int | None) -> Iterator[Row]:
    if path == STDIN:
        raise UserError("Parquet can't be read from standard input; name the file")
    parquet = require("pyarrow.parquet", "parquet", f"reading {path}")
    arrow_error = require("pyarrow", "parquet", f"reading {path}").ArrowException
    head = first_bytes(path, len(PARQUET_MAGIC))
    if not head:
        raise UserError(f"{path} is empty")
    if head.startswith(GZIP_MAGIC):
        raise UserError(f"{path} is gzipped; Parquet compresses inside, so gunzip it first")
    try:
        with parquet.ParquetFile(path) as file:
            names = _choose(str(path), file.schema_arrow.names, columns, width)
            batches = ([column.to_pylist() for column in batch.columns]
                       for batch in file.iter_batches(batch_size=BATCH, columns=names))
            yield from _from_columns(str(path), batches)
    except (OSError, arrow_error) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"{path} is not a readable Parquet file ({reason})") from None


def _from_columns(name: str, batches: Iterable[Sequence[Sequence[Any]]]) -> Iterator[Row]:
    number = 0
    for columns in batches:
        for cells in zip(*columns, strict=True):
            number += 1
            yield number, list(cells)
    if number == 0:
        raise UserError(f"{name} holds no rows")


def _choose(name: str, available: Sequence[str], columns: Sequence[str] | None, width: int | None) -> list[str]:
    """The columns to read: those asked for, or all of them where their number is what is needed."""
    if columns is not None:
        missing = next((column for column in columns if column not in available), None)
        if missing is not None:
            raise _no_column(name, missing, available)
        return list(columns)
    if width is not None and len(available) != width:
        raise UserError(f"{name} has {_count(len(available))} ({_listed(available)}); name the {width} to read with "
                        "columns")
    return list(available)


def _no_column(name: str, missing: str, available: Sequence[str]) -> UserError:
    hint = ("; positions count from 1, in a file without a header (header=false, --no-header)" if missing.isdecimal()
            else "")
    return UserError(f"{name} has no column {missing!r}; it has {_listed(available) or 'none'}{hint}")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name if len(name) <= 40 else f"{name[:40]}...") for name in names[:12])
    return f"{shown} and {len(names) - 12} more" if len(names) > 12 else shown


def _count(columns: int) -> str:
    return f"{columns} column{'' if columns == 1 else 's'}"
