"""A folder of vectors in shards: what it is made from, which shards are finished, and how an interrupted run goes on.

``distilface.json`` is the plan, written once before the first vector. Each shard is finished when its record
``NAME.json`` is there, which is written last. Names follow from the plan, so a shard that is made twice, by a second
run or a second machine, replaces itself: nothing is lost or doubled.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from distilface import __version__
from distilface.artifact import atomic_file, check_output, manifest_values, replace_manifest, validated
from distilface.config import StrictModel
from distilface.errors import UserError
from distilface.loading import sha256_of
from distilface.precision import Precision, Scales
from distilface.tokenizer import SpecialTokens, write_json

FORMAT_VERSION = 1
ShardFormat = Literal["parquet", "npy"]
_REMEDY = "use another folder or --overwrite"


class ShardSettings(StrictModel):
    """All that a vector or a file depends on; a folder holds one set of them."""

    graph_sha256: str
    variant: str
    backend: str
    max_seq_length: int
    special_tokens: SpecialTokens
    precision: Precision
    truncate_dim: int | None
    column: str | None
    id_column: str | None
    header: bool | None
    format: ShardFormat
    shard_rows: int


class InputFile(StrictModel):
    """One file of texts, by its path when the folder was begun."""

    path: str
    sha256: str
    rows: int


class Shard(NamedTuple):
    """Rows ``start`` to ``stop`` of one input."""

    name: str
    source: int
    start: int
    stop: int


class StoredScales(StrictModel):
    """`precision.Scales` as JSON."""

    low: list[float]
    high: list[float]


class ShardPlan(StrictModel):
    """``distilface.json`` of the folder. ``dim`` is the width of the float vectors."""

    kind: Literal["vectors"] = "vectors"
    format_version: int = FORMAT_VERSION
    created_by: str = f"distilface {__version__}"
    dim: int
    settings: ShardSettings
    inputs: list[InputFile]
    scales: StoredScales | None = None

    @property
    def shards(self) -> list[Shard]:
        """In the order of the inputs and of their rows."""
        size = self.settings.shard_rows
        return [Shard(f"{number:05d}-{start // size:05d}", number, start, min(start + size, item.rows))
                for number, item in enumerate(self.inputs) for start in range(0, item.rows, size)]


class ShardRecord(StrictModel):
    """``NAME.json`` of a finished shard: its rows, how many of them were cut to the length limit, and its files."""

    rows: int
    cut: int
    files: dict[str, dict[str, Any]]


class ShardSet:
    """The folder. Open one with `open`; `begin` makes one, or goes on with one of equal settings."""

    def __init__(self, folder: Path, plan: ShardPlan) -> None:
        self.folder = folder
        self.plan = plan

    @classmethod
    def open(cls, folder: str | Path) -> ShardSet:
        """Read the plan.

        Raises:
            UserError: no folder of vectors, a damaged plan, or one of a newer version.
        """
        folder = Path(folder)
        values = manifest_values(folder, _REMEDY)
        if values is None or values.get("kind") != "vectors":
            raise UserError(f"{str(folder)!r} is no folder of vectors; make one: distilface encode BUNDLE TEXTS --out "
                            "FOLDER/")
        return cls(folder, validated(ShardPlan, values, folder, "vectors {} have", FORMAT_VERSION, "encode again"))

    @classmethod
    def find(cls, folder: str | Path, overwrite: bool, sources: Sequence[str | Path]) -> ShardSet | None:
        """What an earlier run left in ``folder``, or None where a run may begin (again, with ``overwrite``).

        Raises:
            UserError: the folder holds something else, overlaps a source, or can't be written.
        """
        values = None if overwrite else manifest_values(Path(folder), _REMEDY)
        begun = values is not None and values.get("kind") == "vectors"
        check_output(folder, overwrite or begun, sources)
        return cls.open(folder) if begun else None

    @classmethod
    def begin(cls, folder: str | Path, plan: ShardPlan) -> ShardSet:
        """Write ``plan`` into an empty folder; what `find` allowed to be replaced goes."""
        folder = Path(folder)
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        replace_manifest(folder, plan)
        return cls(folder, plan)

    @property
    def scales(self) -> Scales | None:
        """Of int8 vectors."""
        stored = self.plan.scales
        if stored is None:
            return None
        return Scales(np.array(stored.low, np.float32), np.array(stored.high, np.float32))

    @property
    def complete(self) -> bool:
        """Whether every shard is finished."""
        return not self.missing()

    def missing(self) -> list[Shard]:
        """The shards to do, in order."""
        return [shard for shard in self.plan.shards if self.record(shard) is None]

    def record(self, shard: Shard) -> ShardRecord | None:
        """What is known of a finished shard; None when it, or a file of it, is not there whole."""
        try:
            found = ShardRecord.model_validate_json((self.folder / f"{shard.name}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        whole = all((self.folder / name).is_file() and (self.folder / name).stat().st_size == facts["size"]
                    for name, facts in found.files.items())
        return found if whole else None

    def finish(self, shard: Shard, rows: int, cut: int, names: Sequence[str]) -> ShardRecord:
        """Write the record of a shard whose files are in place."""
        files = {name: {"sha256": sha256_of(self.folder / name), "size": (self.folder / name).stat().st_size}
                 for name in names}
        record = ShardRecord(rows=rows, cut=cut, files=files)
        with atomic_file(self.folder / f"{shard.name}.json") as temporary:
            write_json(temporary, record.model_dump(mode="json"))
        return record

    def vector_files(self) -> list[str]:
        """Names of the files with the vectors, in order."""
        return [f"{shard.name}.{self.plan.settings.format}" for shard in self.plan.shards]

    def check_same(self, settings: ShardSettings, paths: Sequence[Path], digests: Sequence[str],
                   scales: Scales | None) -> None:
        """Refuse to go on with other settings or other texts, naming what differs."""
        for name, old in self.plan.settings.model_dump().items():
            new = getattr(settings, name)
            if old != new:
                raise self._differs(name, old, new)
        if len(digests) != len(self.plan.inputs):
            raise self._differs("inputs", f"{len(self.plan.inputs)} files", f"{len(digests)} files")
        for item, path, digest in zip(self.plan.inputs, paths, digests, strict=True):
            if item.sha256 != digest:
                what = f"{str(path)!r} with other content" if item.path == str(path) else str(path)
                raise self._differs("inputs", item.path, what)
        held = self.scales
        if scales is not None and (held is None or not np.array_equal(scales.low, held.low)
                                   or not np.array_equal(scales.high, held.high)):
            raise self._differs("scales", "its own", "those given")

    def remove_leavings(self) -> None:
        """Delete the unfinished files of a run that was killed."""
        for file in self.folder.glob(".*.partial"):
            file.unlink(missing_ok=True)

    def _differs(self, name: str, old: object, new: object) -> UserError:
        return UserError(f"{str(self.folder)!r} was begun with {name} {old!r}, and now it is {new!r}; use the same, "
                         "another folder, or --overwrite to begin again")


def stored(scales: Scales | None) -> StoredScales | None:
    """For the plan."""
    return None if scales is None else StoredScales(low=scales.low.tolist(), high=scales.high.tolist())
