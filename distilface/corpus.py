"""Vectors to search in: an array, a .npy file, a Parquet file or a folder of shards, read in blocks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distilface.errors import UserError, require
from distilface.precision import Scales, scales_beside
from distilface.shards import ShardSet

Corpus: TypeAlias = NDArray[Any] | str | Path
Blocks = Callable[[int], Iterator[NDArray[Any]]]
VECTOR_COLUMN = "vector"
_TYPES = ("float16", "float32", "float64", "int8", "uint8")


@dataclass(frozen=True)
class CorpusReader:
    """A corpus that can be read from its start as often as needed.

    Attributes:
        width: numbers stored for a row.
        dtype: name of their type; ``uint8`` means packed bits.
        raw: given a number of rows, blocks of at most so many, as stored.
        scales: of an int8 corpus.
    """

    name: str
    width: int
    dtype: str
    raw: Blocks
    scales: Scales | None = None

    @property
    def binary(self) -> bool:
        """Whether rows are packed bits."""
        return self.dtype == "uint8"

    def blocks(self, rows: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """``(first row, block)``: float32 ``[rows, dim]``, or packed bits as they are."""
        start = 0
        for block in self.raw(rows):
            if self.dtype == "int8":
                assert self.scales is not None
                yield start, self.scales.decode(block)
            else:
                yield start, block if self.binary else block.astype(np.float32, copy=False)
            start += len(block)

    def check_queries(self, dim: int) -> None:
        """Refuse queries of another width."""
        fits = (dim + 7) // 8 == self.width if self.binary else dim == self.width
        if not fits:
            held = f"{8 * self.width} bits" if self.binary else f"{self.width} dimensions"
            raise UserError(f"the queries have {dim} dimensions and {self.name} has {held}; encode both with the same "
                            "model and truncate_dim")


def open_corpus(corpus: Corpus, scales: Scales | None = None) -> CorpusReader:
    """See `search.search`.

    Raises:
        UserError: no such file, another kind of file, a type that is no vector's, int8 without its scales.
    """
    if isinstance(corpus, np.ndarray):
        reader = _of_array(corpus)
    elif isinstance(corpus, (str, os.PathLike)):
        path = Path(corpus)
        if path.is_dir():
            return _of_folder(path, scales)
        reader = _of_file(path)
        if reader.dtype == "int8" and scales is None and scales_beside(path).is_file():
            scales = Scales.load(scales_beside(path))
    else:
        raise UserError(f"a corpus is an array, a file or a folder; got {type(corpus).__name__}")
    return _checked(reader, scales)


def _checked(reader: CorpusReader, scales: Scales | None) -> CorpusReader:
    if reader.dtype not in _TYPES:
        raise UserError(f"{reader.name} holds {reader.dtype}; allowed: {', '.join(_TYPES)} (packed bits)")
    if reader.width == 0:
        raise UserError(f"{reader.name} holds vectors of no dimensions")
    if (reader.dtype == "int8") != (scales is not None):
        raise UserError(f"{reader.name} holds {reader.dtype}; scales belong to int8 vectors, which can't be read "
                        "without those they were made with")
    return CorpusReader(reader.name, reader.width, reader.dtype, reader.raw, scales)


def _of_array(array: NDArray[Any]) -> CorpusReader:
    if array.ndim != 2:
        raise UserError(f"a corpus is an array [n, dim]; got shape {array.shape}")

    def blocks(rows: int) -> Iterator[NDArray[Any]]:
        for start in range(0, len(array), rows):
            yield array[start : start + rows]

    return CorpusReader("the corpus", array.shape[1], array.dtype.name, blocks)


def _of_file(path: Path) -> CorpusReader:
    if not path.is_file():
        raise UserError(f"corpus {str(path)!r} does not exist; make one: distilface encode BUNDLE TEXTS --out FILE.npy")
    if path.suffix.lower() == ".npy":
        return _of_npy(path)
    if path.suffix.lower() in (".parquet", ".pq"):
        return _of_parquet(path)
    raise UserError(f"corpus {str(path)!r} has suffix {path.suffix!r}; allowed: .npy, .parquet, or a folder of shards")


def _of_npy(path: Path) -> CorpusReader:
    """Read with plain reads, not mapped: pages of a map count as this process's memory."""
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(file)
            offset = file.tell()
    except (OSError, ValueError) as error:
        raise UserError(f"corpus {str(path)!r} is no readable .npy file ({error})") from None
    if len(shape) != 2 or (fortran and min(shape) > 1):
        order = " in column order" if fortran else ""
        raise UserError(f"corpus {str(path)!r} has shape {shape}{order}; it must be [n, dim], row by row")
    if path.stat().st_size < offset + shape[0] * shape[1] * dtype.itemsize:
        raise UserError(f"corpus {str(path)!r} is shorter than its header says; copy it again")

    def blocks(rows: int) -> Iterator[NDArray[Any]]:
        with path.open("rb") as file:
            file.seek(offset)
            for start in range(0, shape[0], rows):
                count = min(rows, shape[0] - start)
                yield np.fromfile(file, dtype, count * shape[1]).reshape(count, shape[1])

    return CorpusReader(str(path), shape[1], dtype.name, blocks)


def _of_parquet(path: Path) -> CorpusReader:
    arrow: Any = require("pyarrow", "parquet", f"reading {path}")
    parquet: Any = require("pyarrow.parquet", "parquet", f"reading {path}")
    try:
        with parquet.ParquetFile(str(path)) as file:
            schema = file.schema_arrow
    except (OSError, arrow.ArrowException) as error:
        raise UserError(f"corpus {str(path)!r} is no readable Parquet file ({str(error).splitlines()[0]})") from None
    if VECTOR_COLUMN not in schema.names:
        raise UserError(f"corpus {str(path)!r} has no column {VECTOR_COLUMN!r}; it has {', '.join(schema.names)}")
    kind = schema.field(VECTOR_COLUMN).type
    if not arrow.types.is_fixed_size_list(kind):
        raise UserError(f"column {VECTOR_COLUMN!r} of {str(path)!r} holds {kind}; it must be a list of fixed size, as "
                        "distilface encode writes it")

    def blocks(rows: int) -> Iterator[NDArray[Any]]:
        with parquet.ParquetFile(str(path)) as file:
            for batch in file.iter_batches(batch_size=rows, columns=[VECTOR_COLUMN]):
                column = batch.column(0)
                if column.null_count:
                    raise UserError(f"column {VECTOR_COLUMN!r} of {str(path)!r} holds nulls; encode it again")
                yield column.flatten().to_numpy(zero_copy_only=False).reshape(len(batch), kind.list_size)

    dtype = np.dtype(kind.value_type.to_pandas_dtype()).name
    return CorpusReader(str(path), kind.list_size, dtype, blocks)


def _of_folder(path: Path, scales: Scales | None) -> CorpusReader:
    shards = ShardSet.open(path)
    if not shards.complete:
        raise UserError(f"{str(path)!r} is not finished: {len(shards.missing())} of {len(shards.plan.shards)} shards "
                        "are missing; run its encode command again, it goes on where it stopped")
    if scales is not None:
        raise UserError(f"{str(path)!r} holds its own scales; pass none")
    parts = [_checked(_of_file(path / name), shards.scales) for name in shards.vector_files()]
    if not parts:
        raise UserError(f"{str(path)!r} holds no vectors")
    return CorpusReader(str(path), parts[0].width, parts[0].dtype, _chained(parts), shards.scales)


def _chained(parts: Sequence[CorpusReader]) -> Blocks:
    def blocks(rows: int) -> Iterator[NDArray[Any]]:
        for part in parts:
            yield from part.raw(rows)

    return blocks
