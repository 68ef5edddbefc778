"""All texts into one file, or as JSON lines to standard output."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

from distilface.artifact import atomic_file, check_output_file
from distilface.encoding.writers import FORMATS, WRITERS, Block, Layout, json_lines
from distilface.errors import UserError
from distilface.precision import Precision, Scales, scales_beside
from distilface.runtime import BATCH_TOKENS, Encoder

logger = logging.getLogger(__name__)

BLOCK = 4096
"""Texts encoded and held at a time."""


def encode_to(encoder: Encoder, texts: Iterable[str], out: str | Path, format: str | None = None,
              overwrite: bool = False, batch_tokens: int = BATCH_TOKENS,
              progress: Callable[[int], None] | None = None, source: str | Path | None = None, *,
              precision: Precision = "float32", truncate_dim: int | None = None, scales: Scales | None = None) -> int:
    """Encode ``texts`` into ``out`` and return how many there were; the file appears when it is complete.

    Args:
        out: file, or ``-`` for JSON lines on standard output.
        format: ``npy`` (``[n, width]``), ``jsonl`` (``{"text": ..., "vector": [...]}``) or ``parquet`` (columns
            ``text`` and ``vector``); by default what the suffix says.
        progress: called with the number of texts done.
        source: where the texts come from, if from a file: it is never the output.
        precision, truncate_dim, scales: as for `Encoder.encode`. Without scales, int8 ranges are fitted on the first
            texts; they are written beside the file, as ``OUT.scales.json``.

    Raises:
        UserError: an unknown format, or a file that exists without ``overwrite``.
    """
    kind = _format(str(out), format)
    count = 0
    path = None if str(out) == "-" else check_output_file(out, overwrite, [source])
    if path is not None and precision == "int8":
        check_output_file(scales_beside(path), overwrite)
        if scales is None:
            texts = iter(texts)
            sample = list(islice(texts, BLOCK))
            logger.info("int8 ranges are fitted on the first %d texts", len(sample))
            scales = Scales.fit(encoder.encode_reporting(sample, batch_tokens, truncate_dim=truncate_dim)[0])
            texts = chain(sample, texts)

    def blocks() -> Iterator[Block]:
        nonlocal count
        for block in encoded(encoder, (("", text) for text in texts), batch_tokens, precision, truncate_dim, scales):
            count += len(block.texts)
            yield block._replace(ids=None)
            if progress is not None:
                progress(count)

    if path is None:
        for block in blocks():
            sys.stdout.writelines(json_lines(block))
        sys.stdout.flush()
        return count
    with atomic_file(path) as temporary:
        WRITERS[kind](blocks(), temporary, Layout(truncate_dim or encoder.dim, precision))
        if scales is not None:
            scales.save(scales_beside(path))
    return count


def encoded(encoder: Encoder, rows: Iterable[tuple[str, str]], batch_tokens: int, precision: Precision,
            truncate_dim: int | None, scales: Scales | None,
            on_cut: Callable[[int], None] | None = None) -> Iterator[Block]:
    """Rows ``(id, text)`` in blocks with their vectors.

    Args:
        on_cut: called with the number of texts of a block that were cut to the limit; by default, one warning at the
            end counts them.
    """
    remaining = iter(rows)
    total = cuts = 0
    while taken := list(islice(remaining, BLOCK)):
        texts = [text for _, text in taken]
        vectors, cut = encoder.encode_reporting(texts, batch_tokens, truncate_dim=truncate_dim, precision=precision,
                                                scales=scales)
        total, cuts = total + len(texts), cuts + len(cut)
        if on_cut is not None:
            on_cut(len(cut))
        yield Block(texts, vectors, [key for key, _ in taken])
    if cuts and on_cut is None:
        logger.warning("%d of %d texts are longer than %d tokens and were cut", cuts, total, encoder.max_seq_length)


def _format(out: str, format: str | None) -> str:
    if format is not None and format not in FORMATS:
        raise UserError(f"unknown format {format!r}; allowed: {', '.join(FORMATS)}")
    if out == "-":
        if format not in (None, "jsonl"):
            raise UserError(f"format {format!r} can't go to standard output; use jsonl, or --out FILE")
        return "jsonl"
    suffix = Path(out).suffix.lower().lstrip(".")
    if format is None and suffix not in FORMATS:
        raise UserError(f"output {out!r} has suffix {suffix!r}; allowed: {', '.join(FORMATS)}, or pass --format; for a "
                        "folder of shards end it with /")
    return format or suffix
