"""`encode`: texts of a file or a pipe to vectors in .npy, JSON lines or Parquet, streamed in blocks of flat memory."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from distilface.artifact import atomic_file, check_output_file
from distilface.errors import UserError, require
from distilface.protocol import Vectors
from distilface.runtime import BATCH_TOKENS, Encoder

Format = Literal["npy", "jsonl", "parquet"]
FORMATS = ("npy", "jsonl", "parquet")
BLOCK = 4096
Block = tuple[list[str], Vectors]


def encode_to(encoder: Encoder, texts: Iterable[str], out: str | Path, format: str | None = None,
              overwrite: bool = False, batch_tokens: int = BATCH_TOKENS,
              progress: Callable[[int], None] | None = None, source: str | Path | None = None) -> int:
    """Encode ``texts`` into ``out`` and return how many there were; the file appears when it is complete.

    Args:
        out: file, or ``-`` for JSON lines on standard output.
        format: ``npy`` (float32 ``[n, dim]``), ``jsonl`` (``{"text": ..., "vector": [...]}``) or ``parquet`` (columns
            ``text`` and ``vector``); by default what the suffix says.
        progress: called with the number of texts done.
        source: where the texts come from, if from a file: it is never the output.

    Raises:
        UserError: an unknown format, or a file that exists without ``overwrite``.
    """
    kind = _format(str(out), format)
    writer = {"npy": _write_npy, "jsonl": _write_jsonl, "parquet": _write_parquet}[kind]
    count = 0

    def blocks() -> Iterator[Block]:
        nonlocal count
        remaining = iter(texts)
        while block := list(islice(remaining, BLOCK)):
            vectors = encoder.encode(block, batch_tokens)
            count += len(block)
            yield block, vectors
            if progress is not None:
                progress(count)

    if str(out) == "-":
        for line in _lines(blocks()):
            sys.stdout.write(line)
        sys.stdout.flush()
        return count
    path = check_output_file(out, overwrite, [source])
    with atomic_file(path) as temporary:
        writer(blocks(), temporary, encoder.dim)
    return count


def _format(out: str, format: str | None) -> str:
    if format is not None and format not in FORMATS:
        raise UserError(f"unknown format {format!r}; allowed: {', '.join(FORMATS)}")
    if out == "-":
        if format not in (None, "jsonl"):
            raise UserError(f"format {format!r} can't go to standard output; use jsonl, or --out FILE")
        return "jsonl"
    suffix = Path(out).suffix.lower().lstrip(".")
    if format is None and suffix not in FORMATS:
        raise UserError(f"output {out!r} has suffix {suffix!r}; allowed: {', '.join(FORMATS)}, or pass --format")
    return format or suffix


def _write_npy(blocks: Iterable[Block], file: Path, dim: int) -> None:
    """The header holds the number of rows, which a stream knows only at its end: raw rows first, then both joined."""
    rows = 0
    with tempfile.TemporaryFile(dir=file.parent) as raw:
        for texts, vectors in blocks:
            raw.write(np.ascontiguousarray(vectors, dtype="<f4").tobytes())
            rows += len(texts)
        raw.seek(0)
        with file.open("wb") as target:
            header = {"descr": "<f4", "fortran_order": False, "shape": (rows, dim)}
            np.lib.format.write_array_header_1_0(target, header)
            shutil.copyfileobj(raw, target, 1 << 20)


def _write_jsonl(blocks: Iterable[Block], file: Path, dim: int) -> None:
    with file.open("w", encoding="utf-8", newline="\n") as target:
        target.writelines(_lines(blocks))


def _lines(blocks: Iterable[Block]) -> Iterator[str]:
    for texts, vectors in blocks:
        for text, vector in zip(texts, vectors, strict=True):
            values = [float(f"{value:.8g}") for value in vector.tolist()]
            yield json.dumps({"text": text, "vector": values}) + "\n"


def _write_parquet(blocks: Iterable[Block], file: Path, dim: int) -> None:
    arrow: Any = require("pyarrow", "parquet", "writing Parquet")
    parquet: Any = require("pyarrow.parquet", "parquet", "writing Parquet")
    schema = arrow.schema([("text", arrow.string()), ("vector", arrow.list_(arrow.float32(), dim))])
    with parquet.ParquetWriter(str(file), schema) as writer:
        for texts, vectors in blocks:
            column = arrow.FixedSizeListArray.from_arrays(arrow.array(vectors.ravel()), dim)
            safe = [text.encode("utf-8", "replace").decode() for text in texts]
            writer.write_table(arrow.table([arrow.array(safe), column], schema=schema))
