"""The bundle: one folder that loads everywhere, its manifest, and how outputs reach the disk whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from distilface.errors import FULL_DISK, GateError, UserError, first_fault
from distilface.loading import sha256_of
from distilface.tokenizer import write_json

Model = TypeVar("Model", bound=BaseModel)
MANIFEST = "distilface.json"
GOLDEN = "golden.json"
CARD = "README.md"
FORMAT_VERSION = 1
_MARKS = (MANIFEST, "report.json", f"bundle/{MANIFEST}", "probe.json")
"""One of these files is in every folder that this package writes: checkpoint and bundle, report, demo, probe."""

Kind = Literal["float32", "float16", "int8-static", "int8-token", "int8-dynamic", "weight-only"]

# File names follow what transformers.js asks for by dtype: fp32, fp16, int8, q8, uint8, q4.
VARIANT_FILES = {
    "fp32": "onnx/model.onnx",
    "fp16": "onnx/model_fp16.onnx",
    "int8-static": "onnx/model_int8.onnx",
    "int8-token": "onnx/model_int8_token.onnx",
    "int8-dynamic": "onnx/model_quantized.onnx",
    "w8": "onnx/model_uint8.onnx",
    "w4": "onnx/model_q4.onnx",
}


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileRecord(_Record):
    """One file of the bundle: hex sha256 and size in bytes."""

    sha256: str
    size: int


class Variant(_Record):
    """One graph of the bundle.

    Attributes:
        cosine_floor: a vector of this graph has at least this cosine to the fp32 vector of the same text, whatever
            else is in its batch; measured on the golden texts and the gate's held-out texts, with a margin.
        batch_invariant: whether the vector is independent of its batch-mates (cosine >= 0.999999).
        batch_dependence: worst cosine measured between a text alone and beside long neighbours.
        integer_matmuls: MatMuls whose product is computed on integers; ``float_matmuls``: the others with a constant
            weight; ``weight_only_matmuls``: stored small, multiplied in float.
        needs_custom_ops: the graph uses ``com.microsoft`` operators, so only ONNX Runtime, its kin and OpenVINO 2026
            run it.
        needs_onnxruntime: the first version that has all its operators (``"1.22"``), or empty when standard ones do.
        largest_integer_weight: largest magnitude of an INT8 weight in an integer product; see `isa`.
    """

    file: str
    kind: Kind
    size: int
    integer_matmuls: int
    weight_only_matmuls: int
    float_matmuls: int
    cosine_floor: float
    batch_invariant: bool
    batch_dependence: float
    needs_custom_ops: bool
    needs_onnxruntime: str = ""
    largest_integer_weight: int = 0
    opset: int
    ir_version: int
    recipe: dict[str, Any] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)


class Form(_Record):
    """Another file that gives the vectors of a variant.

    Attributes:
        kind: ``text`` takes strings, the tokenizer being in the graph; ``ort`` is ONNX Runtime's own format.
        needs: what has to run it, in words.
        required_operators: for ``ort``, the file that lists the operators of a minimal build.
        differences: for ``text``, for which texts the ids are not those of tokenizer.json.
    """

    kind: Literal["text", "ort"]
    variant: str
    file: str
    size: int
    needs: str
    required_operators: str | None = None
    differences: list[str] = Field(default_factory=list)

    @property
    def files(self) -> list[str]:
        """The files that belong to it."""
        return [self.file, *([self.required_operators] if self.required_operators else [])]


class Manifest(_Record):
    """distilface.json of a bundle."""

    kind: Literal["bundle"] = "bundle"
    format_version: int = FORMAT_VERSION
    created_by: str
    architecture: str
    pooling: str
    head: str
    normalized: bool = True
    max_seq_length: int
    dim: int
    num_layers: int
    num_attention_heads: int
    hidden_size: int
    versions: dict[str, str] = Field(default_factory=dict)
    variants: dict[str, Variant] = Field(default_factory=dict)
    forms: list[Form] = Field(default_factory=list)
    files: dict[str, FileRecord] = Field(default_factory=dict)
    scores: dict[str, dict[str, float]] = Field(default_factory=dict)
    origin: str | None = None
    """``OWNER/NAME@COMMIT`` of a bundle that was pulled from the Hub."""


class GoldenText(_Record):
    """One text with its ids and its fp32 vector."""

    text: str
    ids: list[int]
    vector: list[float]


class Bundle:
    """A folder with a manifest. Open with `Bundle.open`; graphs are reached by variant name."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest

    @classmethod
    def open(cls, folder: str | Path) -> Bundle:
        """Read the manifest.

        Raises:
            UserError: no bundle here, a damaged manifest, or one written by a newer version.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise UserError(f"bundle {str(folder)!r} does not exist; make one: distilface export MODEL --out FOLDER")
        values = manifest_values(folder, "copy or export the bundle again")
        if values is None or values.get("kind") != "bundle":
            kind = "a checkpoint" if not values or values.get("kind") != "vectors" else "a folder of vectors"
            what = f"is {kind}, not a bundle" if values else f"has no {MANIFEST}, so it is no bundle"
            raise UserError(f"{str(folder)!r} {what}; make one with: distilface export MODEL --out FOLDER")
        return cls(folder, validated(Manifest, values, folder, "bundle {} has", FORMAT_VERSION, "export again"))

    @property
    def variant_names(self) -> list[str]:
        """Names of the graphs there are, fp32 first."""
        return list(self.manifest.variants)

    def resolve_variant(self, name: str | None) -> str:
        """A variant's full name; ``int8`` means the static INT8 graph, else that by token, else the dynamic one.

        None is fp32, and in a bundle of one graph that one.
        """
        if name is None:
            name = self.variant_names[0] if len(self.variant_names) == 1 else "fp32"
        candidates = ("int8-static", "int8-token", "int8-dynamic") if name == "int8" else (name,)
        for candidate in candidates:
            if candidate in self.manifest.variants:
                return candidate
        hint = " (make it with: distilface quantize BUNDLE --int8)" if name.startswith("int8") else ""
        raise UserError(f"bundle {str(self.folder)!r} has no variant {name!r}; it has "
                        f"{', '.join(self.variant_names)}{hint}")

    def variant(self, name: str | None) -> Variant:
        """What the manifest says of a variant."""
        return self.manifest.variants[self.resolve_variant(name)]

    def graph(self, name: str) -> Path:
        """The ONNX file of a variant."""
        file = self.folder / self.variant(name).file
        if not file.is_file():
            raise UserError(f"{str(file)!r} is named in the manifest but missing; copy the bundle again")
        return file

    def check_file(self, relative: str) -> None:
        """Compare one file with its sha256 in the manifest; `GateError` when it was altered."""
        record = self.manifest.files[relative]
        file = self.folder / relative
        if not file.is_file():
            raise GateError(f"{str(file)!r} is missing; the manifest lists it: copy the bundle again")
        found = sha256_of(file)
        if found != record.sha256:
            raise GateError(f"{str(file)!r} was altered: sha256 {found[:16]}..., the manifest says "
                            f"{record.sha256[:16]}...; copy or export the bundle again")

    def check_files(self, names: Iterable[str] | None = None) -> None:
        """`check_file` for all that the manifest lists, or for ``names``; `GateError` names the first that differs."""
        for name in self.manifest.files if names is None else names:
            self.check_file(name)

    def golden(self) -> list[GoldenText]:
        """The golden texts with their ids and fp32 vectors."""
        values = json.loads((self.folder / GOLDEN).read_text(encoding="utf-8"))
        return [GoldenText.model_validate(item) for item in values["texts"]]


def write_manifest(folder: Path, manifest: Manifest) -> Manifest:
    """Record every file of ``folder`` in the manifest and write it, last and atomically.

    What lies there is taken as it is: files of another bundle are checked before they come here.
    """
    files = {}
    for file in sorted(folder.rglob("*")):
        relative = file.relative_to(folder).as_posix()
        if file.is_file() and relative != MANIFEST:
            files[relative] = FileRecord(sha256=sha256_of(file), size=file.stat().st_size)
    complete = manifest.model_copy(update={"files": files})
    replace_manifest(folder, complete)
    return complete


def replace_manifest(folder: Path, manifest: BaseModel) -> None:
    """Write distilface.json as it is given, atomically: hashes of files are not taken anew."""
    with atomic_file(folder / MANIFEST) as temporary:
        write_json(temporary, manifest.model_dump(mode="json"))


def write_golden(folder: Path, texts: Sequence[GoldenText]) -> None:
    """Write golden.json: one text a line, so that a difference can be read."""
    lines = ",\n".join(json.dumps(text.model_dump(), ensure_ascii=True) for text in texts)
    (folder / GOLDEN).write_text(f'{{"texts": [\n{lines}\n]}}\n', encoding="utf-8", newline="\n")


def is_bundle(folder: str | Path) -> bool:
    """Whether ``folder`` holds a bundle's manifest (a checkpoint has a distilface.json of another kind)."""
    values = manifest_values(Path(folder), "copy or export the bundle again")
    return values is not None and values.get("kind") == "bundle"


def check_output(out: str | Path, overwrite: bool, sources: Iterable[str | Path | None] = ()) -> Path:
    """Refuse an output folder that can't or must not be written, before hours of work are spent on it.

    Args:
        overwrite: replace ``out``, but only if it is empty or something this package wrote: a mistyped path must not
            cost anybody their files.
        sources: what the work reads; ``out`` may not be one of them, lie in one or hold one. Ids that are no paths
            here are passed over.
    """
    out = Path(out)
    if out.is_file():
        raise UserError(f"output {str(out)!r} is an existing file; name a folder")
    if out.is_dir() and any(out.iterdir()):
        if not overwrite:
            raise UserError(f"output folder {str(out)!r} exists and is not empty; choose another or pass --overwrite")
        if not any((out / mark).is_file() for mark in _MARKS):
            raise UserError(f"output folder {str(out)!r} holds files that distilface did not write; --overwrite would "
                            "delete them: choose another folder, or empty it yourself")
    _check_apart(out, sources)
    _check_writable(out)
    return out


def check_output_file(out: str | Path, overwrite: bool, sources: Iterable[str | Path | None] = ()) -> Path:
    """The same for an output file."""
    out = Path(out)
    if out.is_dir():
        raise UserError(f"output {str(out)!r} is a folder; name a file in it")
    if out.exists() and not overwrite:
        raise UserError(f"output {str(out)!r} exists; choose another or pass --overwrite")
    _check_apart(out, sources)
    _check_writable(out)
    return out


def _check_apart(out: Path, sources: Iterable[str | Path | None]) -> None:
    target = out.resolve()
    for source in sources:
        if source is None or not Path(source).exists():
            continue
        origin = Path(source).resolve()
        if origin == target or origin in target.parents or target in origin.parents:
            raise UserError(f"output {str(out)!r} and input {str(source)!r} overlap; choose another output")


def _check_writable(out: Path) -> None:
    parent = _existing_parent(out)
    if not parent.is_dir():
        raise UserError(f"output {str(out)!r} can't be written: {str(parent)!r} is a file, not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"output {str(out)!r} can't be written: no permission in {str(parent)!r}")


@contextmanager
def atomic_directory(out: str | Path, overwrite: bool = False) -> Iterator[Path]:
    """A fresh folder beside ``out`` that becomes ``out`` when the block ends well, and vanishes when it does not."""
    out = check_output(out, overwrite)
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".partial", dir=out.parent))
    temporary.chmod(0o755)
    try:
        with _full_disk_named(out):
            yield temporary
        for file in temporary.rglob("*"):  # safetensors writes for the owner's eyes only
            if file.is_file():
                file.chmod(file.stat().st_mode | 0o444)
        old = None
        if out.exists():
            old = temporary.with_suffix(".old")
            out.rename(old)
        try:
            temporary.rename(out)
        except BaseException:
            if old is not None:
                old.rename(out)
            raise
        if old is not None:
            shutil.rmtree(old)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


@contextmanager
def atomic_file(path: str | Path) -> Iterator[Path]:
    """A temporary file path beside ``path`` that replaces it when the block ends well."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    temporary.chmod(0o644)
    try:
        with _full_disk_named(path):
            yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _full_disk_named(out: Path) -> Iterator[None]:
    """A write knows no name when the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL_DISK and error.filename is None:
            error.filename = str(out)
        raise


def _existing_parent(path: Path) -> Path:
    parent = path.absolute().parent
    while not parent.exists():
        parent = parent.parent
    return parent


def manifest_values(folder: Path, remedy: str) -> dict[str, Any] | None:
    """What a folder's distilface.json holds, of whatever kind; None without one. ``remedy`` is for one that is cut."""
    file = folder / MANIFEST
    if not file.is_file():
        return None
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{str(file)!r} is not valid JSON ({error}); {remedy}") from None
    return values if isinstance(values, dict) else None


def validated(model: type[Model], values: dict[str, Any], folder: Path, subject: str, newest: int,
              remedy: str) -> Model:
    """The values of a distilface.json as a ``model``.

    Args:
        subject: how an error about the version begins, ``{}`` being the folder.
        newest: the newest format version that can be read.
        remedy: for a damaged manifest.

    Raises:
        UserError: a newer version, or a value that does not fit.
    """
    version = values.get("format_version")
    if not isinstance(version, int) or version > newest:
        raise UserError(f"{subject.format(repr(str(folder)))} format version {version!r}; this distilface reads up to "
                        f"{newest}: pip install --upgrade distilface")
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{str(folder / MANIFEST)!r} is damaged at {first_fault(error)}; {remedy}") from None
