"""Blocks of texts and vectors into .npy, JSON lines or Parquet."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distilface.corpus import VECTOR_COLUMN
from distilface.errors import require
from distilface.precision import DTYPES, Precision, width_of

Format = Literal["npy", "jsonl", "parquet"]
FORMATS = ("npy", "jsonl", "parquet")


class Block(NamedTuple):
    """Texts, their vectors ``[n, width]``, and what else is known of each row.

    Attributes:
        ids: one a text, if ids were asked for.
        source: the file they come from, where there are many.
        first: number of the first row in that file, from 0.
    """

    texts: list[str]
    vectors: NDArray[Any]
    ids: list[str] | None = None
    source: str | None = None
    first: int = 0

    def columns(self) -> dict[str, list[Any]]:
        """All columns but the vector, as text that can be written as UTF-8."""
        named: dict[str, list[Any]] = {}
        if self.source is not None:
            named["source"] = [_safe(self.source)] * len(self.texts)
            named["row"] = list(range(self.first, self.first + len(self.texts)))
        if self.ids is not None:
            named["id"] = [_safe(item) for item in self.ids]
        return {**named, "text": [_safe(text) for text in self.texts]}


@dataclass(frozen=True)
class Layout:
    """What the columns of a file are, which must be known before the first block."""

    dim: int
    precision: Precision = "float32"
    ids: bool = False
    sources: bool = False

    @property
    def width(self) -> int:
        """Numbers in the vector of a row."""
        return width_of(self.dim, self.precision)


def write_npy(blocks: Iterable[Block], file: Path, layout: Layout) -> None:
    """The header holds the number of rows, which a stream knows only at its end: raw rows first, then both joined."""
    dtype = np.dtype(DTYPES[layout.precision]).newbyteorder("<")
    rows = 0
    with tempfile.TemporaryFile(dir=file.parent) as raw:
        for block in blocks:
            raw.write(np.ascontiguousarray(block.vectors, dtype=dtype).tobytes())
            rows += len(block.texts)
        raw.seek(0)
        with file.open("wb") as target:
            np.lib.format.write_array_header_1_0(target, {
                "descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (rows, layout.width)})
            shutil.copyfileobj(raw, target, 1 << 20)


def write_jsonl(blocks: Iterable[Block], file: Path, layout: Layout) -> None:
    """One object a line: the columns of the block and ``vector``."""
    with file.open("w", encoding="utf-8", newline="\n") as target:
        for block in blocks:
            target.writelines(json_lines(block))


def json_lines(block: Block) -> Iterator[str]:
    """The lines of one block. Eight digits give back the same float32."""
    named = {**block.columns(), "text": block.texts}  # JSON can spell half an emoji
    for *values, vector in zip(*named.values(), block.vectors.tolist(), strict=True):
        numbers = [float(f"{value:.8g}") for value in vector] if block.vectors.dtype == np.float32 else vector
        yield json.dumps({**dict(zip(named, values, strict=True)), VECTOR_COLUMN: numbers}) + "\n"


def write_parquet(blocks: Iterable[Block], file: Path, layout: Layout) -> None:
    """A row group a block; the vector is a list of fixed size."""
    arrow: Any = require("pyarrow", "parquet", "writing Parquet")
    parquet: Any = require("pyarrow.parquet", "parquet", "writing Parquet")
    number = arrow.from_numpy_dtype(np.dtype(DTYPES[layout.precision]))
    place = [("source", arrow.string()), ("row", arrow.int64())] if layout.sources else []
    ids = [("id", arrow.string())] if layout.ids else []
    schema = arrow.schema([*place, *ids, ("text", arrow.string()), (VECTOR_COLUMN, arrow.list_(number, layout.width))])
    with parquet.ParquetWriter(str(file), schema) as writer:
        for block in blocks:
            vectors = arrow.FixedSizeListArray.from_arrays(arrow.array(block.vectors.ravel()), layout.width)
            columns = {**block.columns(), VECTOR_COLUMN: vectors}
            writer.write_table(arrow.table([arrow.array(columns[name], schema.field(name).type) if name != VECTOR_COLUMN
                                            else vectors for name in schema.names], schema=schema))


WRITERS = {"npy": write_npy, "jsonl": write_jsonl, "parquet": write_parquet}


def _safe(text: str) -> str:
    """Half an emoji can't be written as UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
