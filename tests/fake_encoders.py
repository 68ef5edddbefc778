"""Encoders that do nothing but take time or fail, for tests of the measuring processes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

import numpy as np

from distilface.errors import UserError
from distilface.protocol import Vectors


class Timed:
    """Takes ``seconds`` a text; the vector depends on the text alone."""

    max_seq_length = 64

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def encode(self, texts: Sequence[str]) -> Vectors:
        end = time.perf_counter() + self.seconds * len(texts)
        while time.perf_counter() < end:
            pass
        rows = np.zeros((len(texts), 4), dtype=np.float32)
        for index, text in enumerate(texts):
            rows[index] = np.random.default_rng(list(text.encode("utf-8", "replace"))).normal(size=4)
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


class Constant(Timed):
    """Gives every text the same vector."""

    def encode(self, texts: Sequence[str]) -> Vectors:
        return np.tile(np.array([[1, 0]], dtype=np.float32), (len(texts), 1))


class Broken(Timed):
    """Its vectors are not finite."""

    def encode(self, texts: Sequence[str]) -> Vectors:
        return np.full((len(texts), 2), np.nan, dtype=np.float32)


def slow(folder: str | None, variant: str | None, threads: int) -> Timed:
    sys.stdout.write("a library that talks on standard output\n")
    sys.stdout.flush()
    return Timed(0.0008)


def fast(folder: str | None, variant: str | None, threads: int) -> Timed:
    return Timed(0.0002)


def endless(folder: str | None, variant: str | None, threads: int) -> Timed:
    return Timed(0.5)


def constant(folder: str | None, variant: str | None, threads: int) -> Timed:
    return Constant(0)


def broken(folder: str | None, variant: str | None, threads: int) -> Timed:
    return Broken(0)


def dies(folder: str | None, variant: str | None, threads: int) -> Timed:
    sys.stderr.write("first line\nthe allocator gave up\n")
    sys.stderr.flush()
    os._exit(7)


def refuses(folder: str | None, variant: str | None, threads: int) -> Timed:
    raise UserError("this needs a thing: install the thing")


def raises(folder: str | None, variant: str | None, threads: int) -> Timed:
    raise ZeroDivisionError("a bug")
