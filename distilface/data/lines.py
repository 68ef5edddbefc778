"""Lines of UTF-8 text from a file or standard input, gzipped or not."""

from __future__ import annotations

import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, cast

from distilface.data.source import STDIN
from distilface.errors import UserError

GZIP_MAGIC = b"\x1f\x8b"


def display_name(path: Path) -> str:
    """How an error names ``path``."""
    return "standard input" if path == STDIN else str(path)


def first_bytes(path: Path, count: int) -> bytes:
    """The first ``count`` bytes of a file, as stored."""
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}") from None


def iter_lines(path: Path, keep_ends: bool = False) -> Iterator[str]:
    """Yield the lines of a UTF-8 file (a byte-order mark is skipped), streaming.

    Lines end at LF or CRLF only, so a U+2028 or a form feed inside a sentence does not split it. Gzip is recognised by
    its first bytes, whatever the file is called.

    Raises:
        UserError: if the file is unreadable, empty, a damaged gzip, or not UTF-8 (with line and byte offset).
    """
    name = display_name(path)
    offset = 0
    try:
        with ExitStack() as stack:
            for number, raw in enumerate(_open(path, stack), 1):
                try:
                    line = raw.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise UserError(f"{name}, line {number}: byte 0x{raw[error.start]:02x} at offset "
                                    f"{offset + error.start} is not UTF-8; convert the file to UTF-8") from None
                offset += len(raw)
                if number == 1:
                    line = line.removeprefix("\ufeff")
                yield line if keep_ends else line.removesuffix("\n").removesuffix("\r")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{name} is a damaged gzip file ({error}); fetch or compress it again") from None
    except OSError as error:
        raise UserError(f"can't read {name}: {error.strerror or error}") from None
    if offset == 0:
        raise UserError(f"{name} is empty")


def _open(path: Path, stack: ExitStack) -> BinaryIO:
    file = cast(io.BufferedReader, sys.stdin.buffer if path == STDIN else stack.enter_context(path.open("rb")))
    if file.peek(2)[:2] != GZIP_MAGIC:
        return file
    # GzipFile.readline runs in Python; the buffer around it splits lines in C.
    return io.BufferedReader(stack.enter_context(gzip.GzipFile(fileobj=file)))  # type: ignore[arg-type]
