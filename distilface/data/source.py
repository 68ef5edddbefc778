"""Where text comes from: one specification for local files and Hub data sets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import field_validator, model_validator

from distilface.config import StrictModel
from distilface.errors import UserError

Format = Literal["text", "tsv", "csv", "jsonl", "parquet"]

STDIN = Path("-")
SUFFIXES: dict[str, Format] = {
    ".txt": "text", ".text": "text", ".tsv": "tsv", ".tab": "tsv", ".csv": "csv",
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet", ".pq": "parquet",
}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


class DataSource(StrictModel):
    """A file, standard input (``-``) or a Hub data set, and which of its columns hold the text.

    Attributes:
        path: local file, ``-``, or a Hub data set id (``owner/name``). A path that exists is always read as a file.
        format: overrides what the file name's suffix says (``.gz`` is looked through; unknown suffixes are plain text).
        columns: names of the columns to read, in the order the kind needs them. May be left out when the source has
            exactly as many columns as are needed. In a file without a header they are positions from 1: ``["1", "3"]``.
        header: whether the first line of a TSV or CSV file holds names. By default a CSV file has a header, and a TSV
            file has one when ``columns`` is given.
        config: Hub only: the configuration (subset) of the data set.
        split: Hub only: the split; ``train`` by default.
        data_files: Hub only: one file of the data set's repository.
    """

    path: str
    format: Format | None = None
    columns: tuple[str, ...] | None = None
    header: bool | None = None
    config: str | None = None
    split: str | None = None
    data_files: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_path(cls, value: Any) -> Any:
        return {"path": str(value)} if isinstance(value, str | Path) else value

    @field_validator("path", mode="before")
    @classmethod
    def _as_str(cls, value: Any) -> Any:
        return str(value) if isinstance(value, Path) else value

    @field_validator("columns", mode="before")
    @classmethod
    def _one_column(cls, value: Any) -> Any:
        """``columns: text`` means ``columns: [text]``; YAML reads positions as integers."""
        names = [value] if isinstance(value, str | int) else value
        return [str(name) for name in names] if isinstance(names, list | tuple) else names

    @property
    def hub_fields(self) -> list[str]:
        """The names of the Hub-only fields that were set."""
        return [name for name in ("config", "split", "data_files") if getattr(self, name) is not None]


def as_source(source: DataSource | str | Path) -> DataSource:
    """``source`` as a `DataSource`; a bare path or id takes every default."""
    return source if isinstance(source, DataSource) else DataSource(path=str(source))


def locate(source: DataSource) -> Path | None:
    """The file to read, `STDIN`, or None when ``source`` names a Hub data set.

    An absent path counts as a Hub id if it reads ``owner/name`` without a data suffix and no folder ``owner`` is here,
    or if it reads like an id and a Hub-only field is set. Anything else is a mistyped path.

    Raises:
        UserError: if the path is absent, a directory, or a local file with Hub-only fields.
    """
    if source.path == str(STDIN):
        return STDIN
    path = Path(source.path).expanduser()
    try:
        is_there, is_directory, has_parent = path.exists(), path.is_dir(), path.parent.is_dir()
    except OSError as error:
        raise UserError(f"can't read {source.path!r}: {error.strerror}") from None
    if is_directory:
        raise UserError(f"{source.path!r} is a directory; name one file in it")
    if is_there:
        if source.hub_fields:
            raise UserError(f"{source.path!r} is a local file, but {' and '.join(source.hub_fields)} is set, which "
                            "belongs to a Hub data set: drop it or give a Hub id")
        return path
    reads_like_id = _HUB_ID.fullmatch(source.path) is not None
    if reads_like_id and source.hub_fields:
        return None
    if reads_like_id and "/" in source.path and path.suffix.lower() not in {*SUFFIXES, ".gz"} and not has_parent:
        return None
    hint = "; to read the Hub data set of that name, set split (for example split=train)" if reads_like_id else ""
    raise UserError(f"no such file: {source.path!r} (looked from {str(Path.cwd())!r}){hint}")
