"""The teacher's vectors of all training texts: computed once, cached by content, memory-mapped."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilface.artifact import Bundle, atomic_file, is_bundle
from distilface.caching import cache_folder
from distilface.data import DataSource, iter_texts
from distilface.distillation.config import SIF, TeacherConfig
from distilface.encoder import SentenceEncoder
from distilface.errors import GateError, UserError, require
from distilface.loading import hash_of, load_any, model_files, resolve_model, sha256_of
from distilface.protocol import SentenceVectors, Vectors

logger = logging.getLogger(__name__)

BLOCK = 8192
"""Texts given to the teacher at once."""

Progress = Callable[[int, int], None]


def identity(teacher: TeacherConfig) -> dict[str, Any]:
    """What the teacher's vectors depend on besides the texts, by content: where it lies does not matter."""
    if teacher.vectors is not None:
        file = Path(teacher.vectors)
        if not file.is_file():
            raise UserError(f"teacher.vectors {teacher.vectors!r} does not exist")
        return {"vectors": sha256_of(file)}
    assert teacher.name is not None
    folder = resolve_model(teacher.name)
    variant = None
    if is_bundle(folder):
        bundle = Bundle.open(folder)
        variant = bundle.resolve_variant(teacher.variant)
        files = [bundle.graph(variant), *(folder / name for name in ("tokenizer.json", "tokenizer_config.json"))]
    else:
        files = model_files(folder)
    return {"model": hash_of(folder, files), "variant": variant, "pooling": teacher.pooling,
            "max_seq_length": teacher.max_seq_length}


def cache_file(teacher: TeacherConfig, known: dict[str, Any], texts: Sequence[str]) -> Path:
    """Where the vectors of these texts by this teacher lie."""
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode())
    for text in texts:
        digest.update(text.encode("utf-8", "replace") + b"\x1e")
    return cache_folder("teacher", teacher.cache) / f"{digest.hexdigest()[:32]}.npy"


def open_cached(file: Path, rows: int) -> Vectors | None:
    """The cached vectors ``[rows, dim]``, memory-mapped; None when there are none, or the file is not whole."""
    if not file.is_file():
        return None
    try:
        vectors: Vectors = np.load(file, mmap_mode="r", allow_pickle=False)
        if vectors.dtype == np.float32 and vectors.ndim == 2 and len(vectors) == rows:
            return vectors
    except (ValueError, EOFError, OSError):
        pass
    logger.warning("the cached teacher vectors in %s are damaged or incomplete: computing them again", file)
    return None


def compute(teacher: TeacherConfig, texts: Sequence[str], file: Path, source: DataSource, device: str,
            progress: Progress) -> None:
    """Write the vectors of ``texts`` to ``file``, which appears when it is complete.

    Args:
        source: the training source that ``.npy`` vectors without ``teacher.texts`` belong to.
        progress: called with the number of texts done and of all.

    Raises:
        UserError: a model that can't be loaded, or precomputed vectors that lack a text.
        GateError: a vector that is not finite.
    """
    if teacher.vectors is not None:
        blocks = _precomputed(teacher, texts, source)
    elif teacher.pooling == SIF:
        blocks = _by_words(teacher, texts)
    else:
        assert teacher.name is not None
        encoder: Any = load_any(teacher.name, teacher.variant, teacher.pooling, teacher.max_seq_length)
        if device == "cuda" and hasattr(encoder, "to"):
            encoder.to(device)
        blocks = _encoded(encoder, texts)
    done = 0
    with atomic_file(file) as temporary:
        target: Any = None  # a numpy.memmap
        for block in blocks:
            if not np.isfinite(block).all():
                raise GateError(f"the teacher's vectors of texts {done} to {done + len(block) - 1} hold NaN or "
                                "infinity; the teacher is broken")
            if target is None:
                target = np.lib.format.open_memmap(temporary, "w+", np.float32, (len(texts), block.shape[1]))
            target[done : done + len(block)] = block
            done += len(block)
            progress(done, len(texts))
        if target is not None:
            target.flush()
        del target  # Windows renames no file that is mapped


def _encoded(encoder: SentenceVectors, texts: Sequence[str]) -> Iterator[Vectors]:
    for start in range(0, len(texts), BLOCK):
        yield encoder.encode(texts[start : start + BLOCK])


def _by_words(teacher: TeacherConfig, texts: Sequence[str]) -> Iterator[Vectors]:
    from distilface.distillation.sif import sif_vectors

    assert teacher.name is not None
    if is_bundle(resolve_model(teacher.name)):
        raise UserError(f"teacher.pooling {SIF} needs the word embeddings of a checkpoint, and {teacher.name!r} is a "
                        "bundle; name the checkpoint that it was made of")
    yield from sif_vectors(SentenceEncoder.load(teacher.name, "mean_last", teacher.max_seq_length), texts)


def _precomputed(teacher: TeacherConfig, texts: Sequence[str], source: DataSource) -> Iterator[Vectors]:
    assert teacher.vectors is not None
    if teacher.vectors.endswith(".parquet"):
        vectors, known = _parquet(teacher.vectors)
    else:
        vectors, known = _npy(teacher.vectors, teacher.texts or source)
    rows = {text.strip(): row for row, text in enumerate(known)}
    try:
        numbers = np.array([rows[text.strip()] for text in texts], dtype=np.int64)
    except KeyError as error:
        missing = sum(text.strip() not in rows for text in texts)
        raise UserError(f"{teacher.vectors!r} has no vector for {missing} of {len(texts)} training texts, the first is "
                        f"{error.args[0][:60]!r}; encode the training text with the teacher again") from None
    for start in range(0, len(numbers), BLOCK):
        yield np.asarray(vectors[numbers[start : start + BLOCK]], dtype=np.float32)


def _npy(file: str, source: DataSource) -> tuple[NDArray[Any], list[str]]:
    try:
        vectors = np.load(file, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise UserError(f"teacher.vectors {file!r} is no whole .npy array of numbers ({error})") from None
    texts = list(iter_texts(source.path, source.columns[0] if source.columns else None, format=source.format,
                            header=source.header))
    if vectors.ndim != 2 or len(vectors) != len(texts):
        raise UserError(f"teacher.vectors {file!r} has shape {list(vectors.shape)}; {source.path!r} has {len(texts)} "
                        "rows, so it must be [rows, dimensions]: blank lines count")
    return vectors, texts


def _parquet(file: str) -> tuple[NDArray[Any], list[str]]:
    parquet: Any = require("pyarrow.parquet", "parquet", "reading Parquet")
    try:
        table = parquet.read_table(file, columns=["text", "vector"])
        texts = table.column("text").to_pylist()
        flat = table.column("vector").combine_chunks().flatten().to_numpy(zero_copy_only=False)
        return flat.reshape(len(texts), -1), texts
    except Exception as error:  # pyarrow has many kinds for an absent column, a damaged file and ragged lists
        reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        raise UserError(f"teacher.vectors {file!r} can't be read ({reason}); it needs the columns text and vector, as "
                        "distilface encode --format parquet writes them") from None
