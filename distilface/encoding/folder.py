"""Many files of texts into a folder of shards, resumable; here, or on the machines of a Ray cluster."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Literal, get_args

from distilface.artifact import atomic_file
from distilface.data import iter_rows
from distilface.encoding.single import encoded
from distilface.encoding.writers import WRITERS, Block, Layout
from distilface.errors import GateError, UserError, require
from distilface.loading import sha256_of
from distilface.precision import Precision, Scales, truncate
from distilface.runtime import BATCH_TOKENS, Encoder
from distilface.shards import InputFile, Shard, ShardFormat, ShardPlan, ShardRecord, ShardSet, ShardSettings, stored

logger = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
EngineName = Literal["local", "ray"]
SHARD_ROWS = 50_000
SCALE_TEXTS = 4096
"""Texts, from the start of the inputs, that int8 ranges are fitted on where no scales are given."""


@dataclass(frozen=True)
class FolderResult:
    """What a run did.

    Attributes:
        rows: in the folder, all shards together.
        shards: in the folder; ``encoded`` of them by this run, the others by an earlier one.
    """

    folder: Path
    rows: int
    shards: int
    encoded: int


def encode_folder(encoder: Encoder, inputs: Sequence[str | Path], out: str | Path, *, column: str | None = None,
                  id_column: str | None = None, header: bool | None = None, format: ShardFormat = "parquet",
                  precision: Precision = "float32", truncate_dim: int | None = None, scales: Scales | None = None,
                  shard_rows: int = SHARD_ROWS, batch_tokens: int = BATCH_TOKENS, overwrite: bool = False,
                  progress: Progress | None = None, engine: EngineName = "local",
                  actors: int | None = None) -> FolderResult:
    """Encode every row of ``inputs`` into shards in the folder ``out``.

    All inputs are read once before the first vector, so that a missing column or a damaged line in any of them is met
    at once, and not after hours. A run that was stopped goes on at the first unfinished shard when it is called again
    with the same inputs and settings; with others it is refused.

    Args:
        inputs: files as `data.iter_rows` reads them.
        column, id_column, header: where text and id are; the same in all inputs.
        format: ``parquet``: columns source, row, id, text, vector. ``npy``: the vectors, and a .jsonl beside them with
            the rest.
        scales: for int8; by default fitted on the first texts of the inputs. They are kept in the folder's plan.
        engine: ``local``, or ``ray``: the shards are spread over the actors of a Ray cluster. Inputs, bundle and
            ``out`` must then be on a file system that all machines share, under the same paths.
        actors: how many, for Ray; default, as many as the cluster has processors for. Each has the encoder's threads.

    Raises:
        UserError: an input that can't be read, other settings than those the folder was begun with.
        GateError: an input changed while it was read; a machine failed for good.
    """
    report = progress or (lambda *_: None)
    if shard_rows < 1:
        raise UserError(f"shard_rows is {shard_rows}; allowed: 1 or more (default {SHARD_ROWS})")
    if engine not in get_args(EngineName):
        raise UserError(f"unknown engine {engine!r}; allowed: {', '.join(get_args(EngineName))}")
    if engine == "local" and actors is not None:
        raise UserError(f"actors={actors} belongs to engine 'ray'")
    if format not in get_args(ShardFormat):
        raise UserError(f"a folder of shards can't be {format!r}; allowed: {', '.join(get_args(ShardFormat))}")
    if format == "parquet":
        require("pyarrow.parquet", "parquet", "writing Parquet shards (or use --format npy)")
    fitting = precision == "int8" and scales is None
    encoder.encode([], batch_tokens, truncate_dim=truncate_dim, precision="float32" if fitting else precision,
                   scales=scales)  # meets a wrong value before anything is read or written
    paths = _distinct(inputs)
    begun = ShardSet.find(out, overwrite, paths)
    settings = _settings(encoder, column, id_column, header, format, precision, truncate_dim, shard_rows)
    digests = _hashed(paths, report)
    if begun is not None:
        begun.check_same(settings, paths, digests, scales)
        shards = begun
        shards.remove_leavings()
    else:
        files = _read_through(paths, digests, settings, report)
        if fitting:
            report("fitting int8 ranges", 0, 1)
            scales = _fitted(encoder, settings, paths, batch_tokens)
        plan = ShardPlan(dim=truncate_dim or encoder.dim, settings=settings, inputs=files, scales=stored(scales))
        shards = ShardSet.begin(out, plan)
    missing = shards.missing()
    if missing:
        _encode(encoder, shards, missing, paths, batch_tokens, report, engine, actors)
    return _result(shards, len(missing), encoder.max_seq_length)


class ShardEncoder:
    """Makes one shard after the other. An input is read forwards only, so shards are best asked for in order.

    Args:
        paths: where the inputs of the plan are now.
    """

    def __init__(self, encoder: Encoder, shards: ShardSet, paths: Sequence[Path], batch_tokens: int) -> None:
        self.encoder, self.shards, self.paths, self.batch_tokens = encoder, shards, paths, batch_tokens
        self._source = -1
        self._position = 0
        self._rows: Iterator[tuple[str, str]] = iter(())

    def encode(self, shard: Shard, done: Callable[[int], None] | None = None) -> ShardRecord:
        """Write the files of ``shard`` and its record, each whole or not at all.

        Args:
            done: called with the number of rows after each block.
        """
        plan, settings = self.shards.plan, self.shards.plan.settings
        cuts: list[int] = []
        count = 0
        path = plan.inputs[shard.source].path

        def blocks() -> Iterator[Block]:
            nonlocal count
            for block in encoded(self.encoder, self._take(shard), self.batch_tokens, settings.precision,
                                 settings.truncate_dim, self.shards.scales, cuts.append):
                yield block._replace(ids=block.ids if settings.id_column is not None else None, source=path,
                                     first=shard.start + count)
                count += len(block.texts)
                if done is not None:
                    done(len(block.texts))
            if count != shard.stop - shard.start:
                raise GateError(f"{path!r} has fewer rows than when this run began: it was changed; begin again with "
                                "--overwrite")

        names = self._write(shard, blocks(), Layout(plan.dim, settings.precision, settings.id_column is not None, True))
        return self.shards.finish(shard, count, sum(cuts), names)

    def _write(self, shard: Shard, blocks: Iterable[Block], layout: Layout) -> list[str]:
        kind = self.shards.plan.settings.format
        name = f"{shard.name}.{kind}"
        file = self.shards.folder / name
        if kind == "parquet":
            with atomic_file(file) as temporary:
                WRITERS[kind](blocks, temporary, layout)
            return [name]
        rows = f"{shard.name}.rows.jsonl"
        with atomic_file(self.shards.folder / rows) as listing, atomic_file(file) as temporary, \
                listing.open("w", encoding="utf-8", newline="\n") as target:
            WRITERS[kind](_listed(blocks, target.write), temporary, layout)
        return [name, rows]

    def _take(self, shard: Shard) -> Iterator[tuple[str, str]]:
        settings = self.shards.plan.settings
        if shard.source != self._source or shard.start < self._position:
            self._rows = iter_rows(self.paths[shard.source], settings.column, settings.id_column,
                                   header=settings.header)
            self._source, self._position = shard.source, 0
        skip = shard.start - self._position
        rows = islice(self._rows, skip, skip + shard.stop - shard.start)
        self._source, self._position = -1, 0  # until all of it was taken
        yield from rows
        self._source, self._position = shard.source, shard.stop


def _encode(encoder: Encoder, shards: ShardSet, missing: Sequence[Shard], paths: Sequence[Path], batch_tokens: int,
            report: Progress, engine: EngineName, actors: int | None) -> None:
    total = sum(item.rows for item in shards.plan.inputs)
    state = [total - sum(shard.stop - shard.start for shard in missing)]
    report("encoding", state[0], total)

    def add(rows: int) -> None:
        state[0] += rows
        report("encoding", state[0], total)

    if engine == "ray":
        from distilface.encoding.cluster import encode_on_ray

        encode_on_ray(encoder, shards, missing, paths, batch_tokens, actors, add)
        return
    worker = ShardEncoder(encoder, shards, paths, batch_tokens)
    for shard in missing:
        worker.encode(shard, add)


def _settings(encoder: Encoder, column: str | None, id_column: str | None, header: bool | None, format: ShardFormat,
              precision: Precision, truncate_dim: int | None, shard_rows: int) -> ShardSettings:
    return ShardSettings(
        graph_sha256=sha256_of(encoder.graph), variant=encoder.variant, backend=encoder.backend,
        max_seq_length=encoder.max_seq_length,
        special_tokens="escape" if encoder.tokenizer.backend.encode_special_tokens else "parse",
        precision=precision, truncate_dim=truncate_dim, column=column, id_column=id_column, header=header,
        format=format, shard_rows=shard_rows)


def _distinct(inputs: Sequence[str | Path]) -> list[Path]:
    if not inputs:
        raise UserError("no input files; name one or more")
    paths: dict[Path, Path] = {}
    for item in inputs:
        path = Path(item)
        if str(item) == "-":
            raise UserError("standard input can't be resumed, so it can't go into a folder of shards; use --out FILE")
        if not path.is_file():
            what = "is a folder; name the files in it" if path.is_dir() else "does not exist"
            raise UserError(f"input {str(item)!r} {what} (of {len(inputs)} inputs)")
        if path.resolve() in paths:
            raise UserError(f"input {str(item)!r} is named twice; its rows would be doubled")
        paths[path.resolve()] = path
    return list(paths.values())


def _hashed(paths: Sequence[Path], report: Progress) -> list[str]:
    digests = []
    for number, path in enumerate(paths):
        report("hashing inputs", number, len(paths))
        digests.append(sha256_of(path))
    return digests


def _read_through(paths: Sequence[Path], digests: Sequence[str], settings: ShardSettings,
                  report: Progress) -> list[InputFile]:
    """Count the rows, and meet whatever is wrong with any of them."""
    files = []
    for number, (path, digest) in enumerate(zip(paths, digests, strict=True)):
        report("reading inputs", number, len(paths))
        rows = sum(1 for _ in iter_rows(path, settings.column, settings.id_column, header=settings.header))
        files.append(InputFile(path=str(path), sha256=digest, rows=rows))
    return files


def _fitted(encoder: Encoder, settings: ShardSettings, paths: Sequence[Path], batch_tokens: int) -> Scales:
    rows = chain.from_iterable(iter_rows(path, settings.column, settings.id_column, header=settings.header)
                               for path in paths)
    texts = [text for _, text in islice(rows, SCALE_TEXTS)]
    logger.info("int8 ranges are fitted on the first %d texts of the inputs", len(texts))
    return Scales.fit(truncate(encoder.encode_reporting(texts, batch_tokens)[0], settings.truncate_dim))


def _listed(blocks: Iterable[Block], write: Callable[[str], object]) -> Iterator[Block]:
    """Pass the blocks on, and write a JSON line for each row of them."""
    for block in blocks:
        columns = {**block.columns(), "text": block.texts}
        for values in zip(*columns.values(), strict=True):
            write(json.dumps(dict(zip(columns, values, strict=True))) + "\n")
        yield block


def _result(shards: ShardSet, encoded_now: int, limit: int) -> FolderResult:
    records = [shards.record(shard) for shard in shards.plan.shards]
    rows = sum(record.rows for record in records if record is not None)
    cut = sum(record.cut for record in records if record is not None)
    if cut:
        logger.warning("%d of %d texts are longer than %d tokens and were cut", cut, rows, limit)
    return FolderResult(shards.folder, rows, len(records), encoded_now)
