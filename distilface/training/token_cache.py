"""Training text as token ids, computed once: a later run with the same text and tokenizer maps them from the disk.

An entry is one Arrow file, the format of the datasets library: its arrays are memory-mapped as they are, and processes
of one machine share them. It is read without that library, whose access by row costs more than a batch needs. One file
for all sources of a run, because equal texts share a number across sources; its name says what it was made from, so it
is never out of date and can be deleted at any time. It appears by a rename when it is complete. Processes that start
together and find none each tokenise, and the first writes: nobody waits, and nobody reads what is being written.

Standard input and data sets of the Hub are not cached: that their text is the same shows only once it has been read.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from distilface.artifact import atomic_file
from distilface.caching import cache_folder
from distilface.data.source import STDIN, locate
from distilface.errors import require
from distilface.loading import sha256_of
from distilface.tokenizer import Tokenizer
from distilface.training.config import SourceConfig
from distilface.training.examples import Examples, TokenRows, load_examples

logger = logging.getLogger(__name__)

_FORMAT = 1
"""To be raised when a reader or the layout of an entry changes."""
_KEY = b"distilface"


def load_data(sources: Sequence[SourceConfig], tokenizer: Tokenizer, keep_texts: bool = False,
              cached: bool = True) -> tuple[TokenRows, list[Examples]]:
    """The rows of all sources and the examples of each, from the cache or for it.

    Args:
        tokenizer: with the length limit of training.
        keep_texts: see `TokenRows`.
        cached: False neither reads nor writes the cache.

    Raises:
        UserError: see `load_examples`.
    """
    file = entry(sources, tokenizer, keep_texts) if cached else None
    if file is not None and (found := _read(file, sources, tokenizer)) is not None:
        logger.info("token ids of the training text come from %s", file)
        return found
    rows = TokenRows(tokenizer, keep_texts)
    with _heard() as warnings:
        examples = [load_examples(source, rows) for source in sources]
    if file is not None and int(os.environ.get("RANK", "0")) == 0:
        try:
            _write(file, rows, examples, warnings)
        except OSError as error:  # the run does not need it
            logger.warning("the token ids of the training text can't be kept in %s (%s): the next run will tokenise "
                           "again; set DISTILFACE_CACHE to a folder with room, or train.token_cache=false", file,
                           error.strerror or error)
    return rows, examples


def entry(sources: Sequence[SourceConfig], tokenizer: Tokenizer, keep_texts: bool) -> Path | None:
    """The file of these texts by this tokenizer; None when a source is no local file."""
    described = []
    for source in sources:
        path = locate(source)
        if path is None or path == STDIN:
            return None
        # The suffix counts because it says how to read the file; where it lies does not.
        described.append(source.model_dump(mode="json", exclude={"path"})
                         | {"content": sha256_of(path), "suffixes": path.suffixes})
    known = {"format": _FORMAT, "texts": keep_texts, "sources": described, "limit": tokenizer.max_seq_length,
             "escape": tokenizer.backend.encode_special_tokens, "tokenizer": tokenizer.backend.to_str()}
    name = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:32]
    return cache_folder("tokens") / f"{name}.arrow"


def _write(file: Path, rows: TokenRows, examples: Sequence[Examples], warnings: Sequence[str]) -> None:
    arrow: Any = require("pyarrow", "train", "caching token ids")
    columns = {"ids": np.asarray(rows.ids), "starts": np.asarray(rows.starts)}
    for index, source in enumerate(examples):
        columns[f"examples {index}"] = source.texts.ravel()
        if source.scores is not None:
            columns[f"scores {index}"] = source.scores
    # One row of long lists: every column has a length of its own.
    lists = {name: arrow.LargeListArray.from_arrays([0, len(values)], arrow.array(values))
             for name, values in columns.items()}
    if rows.texts is not None:
        lists["texts"] = arrow.LargeListArray.from_arrays([0, len(rows.texts)],
                                                          arrow.array(rows.texts, arrow.large_string()))
    about = {"widths": [source.texts.shape[1] for source in examples],
             "sha256": [source.sha256 for source in examples], "warnings": list(warnings)}
    batch = arrow.record_batch(lists).replace_schema_metadata({_KEY: json.dumps(about).encode()})
    with (atomic_file(file) as temporary, arrow.OSFile(str(temporary), "wb") as sink,
          arrow.ipc.new_file(sink, batch.schema) as writer):
        writer.write_batch(batch)


def _read(file: Path, sources: Sequence[SourceConfig], tokenizer: Tokenizer) -> tuple[TokenRows, list[Examples]] | None:
    """What `_write` wrote, memory-mapped; None when there is none, or the file is not whole."""
    if not file.is_file():
        return None
    arrow: Any = require("pyarrow", "train", "caching token ids")
    try:
        batch = arrow.ipc.open_file(arrow.memory_map(str(file))).get_batch(0)
        about = json.loads(batch.schema.metadata[_KEY])
        lists = {name: column.values for name, column in zip(batch.schema.names, batch.columns, strict=True)}
        texts = lists.pop("texts").to_pylist() if "texts" in lists else None
        values = {name: column.to_numpy(zero_copy_only=True) for name, column in lists.items()}
        rows = TokenRows.stored(tokenizer, values["ids"], values["starts"], texts)
        examples = [Examples(source.path, source.kind, values[f"examples {index}"].reshape(-1, width), sha256,
                             values.get(f"scores {index}"))
                    for index, (source, width, sha256) in enumerate(
                        zip(sources, about["widths"], about["sha256"], strict=True))]
    except (arrow.ArrowException, OSError, ValueError, KeyError, TypeError):
        logger.warning("the cached token ids in %s are damaged or incomplete: tokenising again", file)
        return None
    for message in about["warnings"]:
        logger.warning("%s", message)
    return rows, examples


@contextmanager
def _heard() -> Iterator[list[str]]:
    """The warnings of the block, to be said again when its work is not done again."""
    messages: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    package = logging.getLogger("distilface")
    package.addHandler(handler)
    try:
        yield messages
    finally:
        package.removeHandler(handler)
