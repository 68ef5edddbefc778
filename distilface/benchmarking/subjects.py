"""What is measured (a variant of a bundle, a checkpoint, what a factory function returns) and its static facts."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from distilface.config import StrictModel
from distilface.errors import UserError, require
from distilface.isa import saturation_warning

if TYPE_CHECKING:
    from distilface.artifact import Bundle

Backend = Literal["onnxruntime", "openvino", "tensorrt", "torch", "factory"]
BUNDLE_BACKENDS = ("onnxruntime", "openvino", "tensorrt")
"""Those that run a graph of a bundle; ``tensorrt`` is that provider of ONNX Runtime."""


class Subject(StrictModel):
    """One thing to measure.

    Attributes:
        name: unique in a run; what tables and plots show.
        model: what the user typed.
        folder: where it lies; None for a factory that needs none.
        variant: which graph of a bundle.
        factory: ``module:function`` called with (folder, variant, threads); returns anything with ``encode``. How
            peers enter a run: the function lives outside this package.
        kind: as in the manifest; ``float32`` can be the baseline.
        python: interpreter of another environment for the worker; default, this one.
        files: of a factory's model, relative to ``folder``: what its size is counted from.
        reference: name of the subject whose vectors a factory's are compared with, where it has the same weights.
    """

    name: str
    model: str
    folder: Path | None
    variant: str | None = None
    backend: Backend = "onnxruntime"
    factory: str | None = None
    kind: str = "other"
    python: str | None = None
    files: tuple[str, ...] = ()
    reference: str | None = None


class StaticFacts(StrictModel):
    """What can be known without running the subject.

    ``declared_dependent``: the manifest already says that a vector depends on its batch-mates.
    """

    file: str | None = None
    size_bytes: int | None = None
    zip_bytes: int | None = None
    parameters: int | None = None
    integer_matmuls: int | None = None
    weight_only_matmuls: int | None = None
    float_matmuls: int | None = None
    declared_dependent: bool = False
    notes: tuple[str, ...] = ()


def find_subjects(model: str | Path, variant: str | None = None, backend: str | None = None) -> list[Subject]:
    """The subjects that ``model`` stands for: every variant of a bundle, or the one named; or one checkpoint.

    Args:
        backend: what runs the graphs of a bundle: ``onnxruntime`` (default), ``openvino`` or ``tensorrt``.

    Raises:
        UserError: no such model; a variant the bundle lacks (lists what there is); a variant or a backend of a
            checkpoint; an unknown backend.
    """
    from distilface.artifact import Bundle, is_bundle
    from distilface.loading import resolve_model

    if backend is not None and backend not in BUNDLE_BACKENDS:
        raise UserError(f"unknown backend {backend!r} of {str(model)!r}; allowed: {', '.join(BUNDLE_BACKENDS)}")
    folder = resolve_model(model)
    text = str(model)
    if not is_bundle(folder):
        if backend is not None:
            raise UserError(f"backend {backend!r} was asked of {text!r}, which is a checkpoint, not a bundle; run "
                            "distilface export first or drop the backend")
        if variant is not None:
            raise UserError(f"variant {variant!r} was asked of {text!r}, which is a checkpoint, not a bundle; run "
                            "distilface export first or drop the variant")
        return [Subject(name=_short(text), model=text, folder=folder, backend="torch", kind="float32")]
    bundle = Bundle.open(folder)
    names = bundle.variant_names if variant is None else [bundle.resolve_variant(variant)]
    if not names:
        raise UserError(f"bundle {text!r} has no variants; export it again")
    if backend == "openvino":
        require("openvino", "openvino", f"measuring {text}@openvino")
    mark = "" if backend in (None, "onnxruntime") else f"@{backend}"
    return [Subject(name=f"{_short(text)}:{name}{mark}", model=text, folder=folder, variant=name,
                    backend=backend or "onnxruntime", kind=bundle.variant(name).kind)  # type: ignore[arg-type]
            for name in names]


def with_unique_names(subjects: Sequence[Subject]) -> list[Subject]:
    """Same subjects; those that share a name (two folders called ``bundle``) get the path as typed instead.

    Raises:
        UserError: nothing to measure, or the same thing twice.
    """
    if not subjects:
        raise UserError("nothing to measure; name a bundle, BUNDLE:VARIANT, or a checkpoint folder")
    names = [subject.name for subject in subjects]
    unique = [subject if names.count(subject.name) == 1 else subject.model_copy(update={"name": _full(subject)})
              for subject in subjects]
    seen: set[str] = set()
    for subject in unique:
        if subject.name in seen:
            raise UserError(f"{subject.name!r} is named twice; name each model or BUNDLE:VARIANT once")
        seen.add(subject.name)
    return unique


def check_target(subjects: Sequence[Subject], target: str, npm_folder: Path | None = None) -> None:
    """Refuse what the target can't run before anything is measured.

    Raises:
        UserError: no such provider here; dynamic INT8 on a GPU; no browser or npm package, or no graph to run there.
    """
    stranger = next((subject for subject in subjects if subject.backend == "tensorrt"), None)
    if stranger is not None and target != "cuda":
        raise UserError(f"{stranger.name} can't be measured on {target}: TensorRT runs on NVIDIA GPUs only; drop "
                        "@tensorrt, or use --target cuda")
    if target == "cpu":
        return
    if target == "web":
        _check_web(subjects, npm_folder)
        return
    dynamic = [subject.name for subject in subjects if subject.kind == "int8-dynamic"]
    if dynamic:
        others = " ".join(subject.name for subject in subjects if subject.kind != "int8-dynamic") or "the fp32 variant"
        raise UserError(f"{dynamic[0]} can't be measured on {target}: dynamic INT8 has no GPU kernels, each product "
                        f"would go through the CPU and run many times slower; name the others instead: {others}")
    openvino = next((subject.name for subject in subjects if subject.backend == "openvino"), None)
    if openvino is not None:
        raise UserError(f"{openvino} can't be measured on {target}: OpenVINO runs on the CPU only; drop it, or use "
                        "--target cpu")
    graphs = {subject.backend for subject in subjects if subject.backend in BUNDLE_BACKENDS}
    if graphs:
        import onnxruntime

        present = onnxruntime.get_available_providers()
        needed = {"CUDA": "CUDAExecutionProvider"}
        if "tensorrt" in graphs:
            needed["TensorRT"] = "TensorrtExecutionProvider"
        for name, provider in needed.items():
            if provider not in present:
                raise UserError(f"--target {target}: this ONNX Runtime has no {name} provider (it has "
                                f"{', '.join(present)}); on a machine with an NVIDIA GPU install onnxruntime-gpu in "
                                "place of onnxruntime, or use --target cpu")


def _check_web(subjects: Sequence[Subject], npm_folder: Path | None) -> None:
    from distilface.benchmarking.browser import find_browser, find_packages

    stranger = next((subject for subject in subjects if subject.backend != "onnxruntime"), None)
    if stranger is not None:
        bundled = stranger.backend in BUNDLE_BACKENDS
        remedy = f"drop @{stranger.backend}" if bundled else "run distilface export first"
        raise UserError(f"{stranger.name} can't be measured on web: ONNX Runtime's WebAssembly runs the graphs of a "
                        f"bundle, and this is run by {stranger.backend}; {remedy}")
    find_browser()
    find_packages(npm_folder or Path.cwd())


def static_facts(subject: Subject) -> StaticFacts:
    """Size, deflated size, parameters and MatMul counts of a subject, from its files and manifest."""
    if subject.folder is None:
        return StaticFacts()
    if subject.backend in BUNDLE_BACKENDS and subject.variant is not None:
        from distilface.artifact import Bundle

        return _bundle_facts(Bundle.open(subject.folder), subject.variant)
    if subject.files:
        files = [subject.folder / name for name in subject.files]
        return StaticFacts(file=", ".join(subject.files), size_bytes=sum(file.stat().st_size for file in files),
                           zip_bytes=sum(map(deflated_size, files)))
    weights = sorted(subject.folder.glob("*.safetensors"))
    if not weights:
        return StaticFacts(notes=("size unknown: no .safetensors file in the folder",))
    return StaticFacts(
        file=weights[0].name if len(weights) == 1 else f"{len(weights)} .safetensors files",
        size_bytes=sum(file.stat().st_size for file in weights), zip_bytes=sum(map(deflated_size, weights)),
        parameters=sum(map(_safetensors_parameters, weights)),
    )


def deflated_size(file: Path) -> int:
    """Bytes of ``file`` in a zip archive at the default level; read in blocks, nothing is written."""
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    total = 0
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            total += len(packer.compress(block))
    return total + len(packer.flush())


def _bundle_facts(bundle: Bundle, name: str) -> StaticFacts:
    variant = bundle.variant(name)
    graph = bundle.graph(name)
    notes = list(variant.notes)
    if variant.kind == "weight-only" or (variant.kind.startswith("int8") and variant.integer_matmuls == 0):
        notes.append("weight-only: stored small, but no product is computed on integers (no integer MatMul), "
                     "so the file is smaller and not faster")
    warning = saturation_warning(variant)
    if warning is not None:
        notes.append(warning)
    if variant.needs_custom_ops:
        notes.append("uses com.microsoft operators: runs in ONNX Runtime, its kin and OpenVINO 2026 only")
    return StaticFacts(
        file=variant.file, size_bytes=graph.stat().st_size, zip_bytes=deflated_size(graph),
        parameters=_graph_parameters(bundle), integer_matmuls=variant.integer_matmuls,
        weight_only_matmuls=variant.weight_only_matmuls, float_matmuls=variant.float_matmuls,
        declared_dependent=not variant.batch_invariant, notes=tuple(notes),
    )


def _graph_parameters(bundle: Bundle) -> int | None:
    """Float values in the fp32 graph, which every variant stores in some form; None without fp32 or without onnx."""
    if "fp32" not in bundle.variant_names:
        return None
    try:
        import onnx
    except ModuleNotFoundError:
        return None
    model = onnx.load(str(bundle.graph("fp32")))
    return sum(prod(item.dims) for item in model.graph.initializer if item.data_type == onnx.TensorProto.FLOAT)


def _safetensors_parameters(file: Path) -> int:
    """Values in a safetensors file, from its header: 8 bytes of length, then JSON."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header: dict[str, Any] = json.loads(stream.read(length))
    return sum(prod(entry["shape"]) for name, entry in header.items()
               if name != "__metadata__" and entry["dtype"] in ("F32", "F16", "BF16", "F64"))


def _short(model: str) -> str:
    """The last part of a path or Hub id."""
    return Path(model).name or Path(model).resolve().name


def _full(subject: Subject) -> str:
    mark = "" if subject.backend == "onnxruntime" else f"@{subject.backend}"
    return subject.model if subject.variant is None else f"{subject.model}:{subject.variant}{mark}"
