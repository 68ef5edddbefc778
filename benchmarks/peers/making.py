"""From a peer to a subject of a benchmark run: its environment, its files, and a first try of it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import distilface.consumers.child as probe
from benchmarks.environments import python_of
from benchmarks.peers import prepare
from benchmarks.peers.registry import PEERS, Peer
from distilface.artifact import Bundle, Variant, atomic_directory, write_manifest
from distilface.benchmarking import Subject
from distilface.benchmarking.client import Worker
from distilface.benchmarking.crew import FIRST_TEXT
from distilface.consumers import run
from distilface.errors import DistilfaceError, GateError, UserError
from distilface.machine import machine_facts
from distilface.onnxgraph import describe_variant
from distilface.parity import cosines
from distilface.runtime import Encoder

NEAR = 0.8
"""Least mean cosine to fp32 on the golden texts; other weights or another pooling lie below."""


@dataclass(frozen=True)
class Tried:
    """A subject that works here: the versions of what runs it, and how it computes the products (None: not known)."""

    subject: Subject
    versions: dict[str, str]
    kernels: dict[str, Any] | None


class Maker:
    """Makes the subjects of one run.

    Args:
        bundle: ours, with every variant to measure; it gains the graphs that peers make of the fp32 one.
        environments: folder of environments, made where they are missing.
        out: folder for what peers make; what is there is used again.
    """

    def __init__(self, bundle: Path, checkpoint: Path, texts: Sequence[str], environments: Path, out: Path,
                 threads: int) -> None:
        self.bundle, self.checkpoint, self.texts = bundle, checkpoint, texts
        self.environments, self.out, self.threads = environments, out, threads
        self.left_out: dict[str, str] = {}

    def ours(self, variants: Sequence[str]) -> list[Tried]:
        """The bundle's variants in ONNX Runtime, then in OpenVINO."""
        opened = Bundle.open(self.bundle)
        own = [Subject(name=name, model="bundle", folder=self.bundle, variant=name, kind=opened.variant(name).kind)
               for name in variants]
        found = [self._tried(subject.name, subject, ("onnxruntime",), None) for subject in own]
        for subject in own:
            name = f"{subject.name}@openvino"
            try:
                python = python_of(self.environments / "nncf")
            except (UserError, OSError) as error:
                self._leave_out(name, error)
                continue
            found.append(self._tried(name, subject.model_copy(update={
                "name": name, "backend": "openvino", "python": python}), ("openvino",), python))
        return [item for item in found if item is not None]

    def peer(self, peer: Peer) -> Tried | None:
        """A peer ready to be measured; None where something is missing or wrong, which `left_out` then says."""
        try:
            python = python_of(self.environments / peer.environment)
            subject = self._subject(peer, python)
        except (DistilfaceError, OSError, ValueError) as error:
            self._leave_out(peer.name, error)
            return None
        return self._tried(peer.name, subject, peer.packages, python, peer.same_weights)

    def _subject(self, peer: Peer, python: str) -> Subject:
        common: dict[str, Any] = {"name": peer.name, "model": peer.name, "kind": peer.kind, "python": python}
        made, files = self._made(peer, python) if peer.prepare else (Path(), [])
        if peer.runs in ("onnxruntime", "openvino"):
            variant = self._add(peer, made / files[0])
            return Subject(folder=self.bundle, variant=variant, backend=peer.runs, **common)
        folder = {"checkpoint": self.checkpoint, "bundle": self.bundle}.get(peer.runs, made)
        weights = [file.name for file in sorted(self.checkpoint.glob("*.safetensors"))]
        loaded = peer.file or (files[0] if files else None)
        counted = files or ([peer.file] if peer.file else weights)
        return Subject(folder=folder, variant=loaded, backend="factory", files=tuple(counted),
                       factory=f"benchmarks.peers.engines:{peer.engine}",
                       reference="fp32" if peer.same_weights else None, **common)

    def _made(self, peer: Peer, python: str) -> tuple[Path, list[str]]:
        """The folder that ``prepare`` filled, now or in an earlier run, and the model's files in it."""
        assert peer.prepare is not None
        folder = self.out / peer.prepare
        listed = folder / "files.txt"
        if not listed.is_file():
            limit = Bundle.open(self.bundle).manifest.max_seq_length
            with atomic_directory(folder, overwrite=False) as new:
                request = {"checkpoint": str(self.checkpoint.resolve()), "texts": list(self.texts), "isa": _isa(),
                           "graph": str(Bundle.open(self.bundle).graph("fp32").resolve()), "out": str(new.resolve()),
                           "tokenizer": str((self.bundle / "tokenizer.json").resolve()), "max_seq_length": limit,
                           "inputs": Encoder.load(self.bundle).input_names}
                answer = run([python, str(Path(prepare.__file__).resolve())], peer.prepare, request, new)
                for leftover in ("request.json", "answer.json"):
                    (new / leftover).unlink()
                for name in ("tokenizer.json", "tokenizer_config.json"):
                    if not (new / name).exists():
                        shutil.copyfile(self.bundle / name, new / name)
                (new / "files.txt").write_text("\n".join(answer["files"]), encoding="utf-8")
        return folder, listed.read_text(encoding="utf-8").split("\n")

    def _add(self, peer: Peer, graph: Path) -> str:
        """Put a graph into the bundle, so that the runtime of our own variants runs it; its name there."""
        assert peer.prepare is not None and peer.kind != "other" and peer.kind != "bfloat16"
        name = peer.prepare.replace("_", "-")
        opened = Bundle.open(self.bundle)
        if name not in opened.variant_names:
            relative = f"onnx/{name}.onnx"
            shutil.copyfile(graph, self.bundle / relative)
            variant: Variant = describe_variant(graph, relative, peer.kind, 1.0, 0.0)
            variants = opened.manifest.variants | {name: variant}
            write_manifest(self.bundle, opened.manifest.model_copy(update={"variants": variants}))
        return name

    def _tried(self, name: str, subject: Subject, packages: Sequence[str], python: str | None,
               same_weights: bool = True) -> Tried | None:
        """Load it in a process of its own and compare its vectors of the golden texts."""
        try:
            return self._try(subject, packages, python, same_weights)
        except DistilfaceError as error:
            self._leave_out(name, error)
            return None

    def _try(self, subject: Subject, packages: Sequence[str], python: str | None, same_weights: bool) -> Tried:
        golden = Bundle.open(self.bundle).golden()
        file = self.out / "tried.npy"
        with Worker(subject, self.threads) as worker:
            worker.ask("load", subject=subject.model_dump(mode="json"), threads=self.threads, target="cpu",
                       max_seq_length=None, first_text=FIRST_TEXT)
            worker.ask("encode", texts=[item.text for item in golden], out=str(file.resolve()))
            kernels = worker.ask("kernels")["matmuls"]
        vectors = np.load(file, allow_pickle=False)
        file.unlink()
        if same_weights:
            expected = np.array([item.vector for item in golden], dtype=np.float32)
            if vectors.shape != expected.shape:
                raise GateError(f"vectors of shape {vectors.shape}, expected {expected.shape}")
            near = float(cosines(vectors, expected).mean())
            if not near >= NEAR:
                raise GateError(f"mean cosine to fp32 is {near:.3f} on the golden texts, at least {NEAR} is expected "
                                "of the same weights: another pooling or length limit?")
        if python is None:
            return Tried(subject, {name: machine_facts().libraries.get(name, "") for name in packages}, kernels)
        found = run([python, str(Path(probe.__file__).resolve())], "probe", {"distributions": list(packages)}, self.out)
        (self.out / "request.json").unlink()
        (self.out / "answer.json").unlink()
        return Tried(subject, found["versions"], kernels)

    def _leave_out(self, name: str, error: Exception) -> None:
        words = str(error).strip().splitlines()
        self.left_out[name] = (words[-1] if words else type(error).__name__).removeprefix(f"{name}: ")


def _isa() -> str:
    return "avx512_vnni" if "avx512_vnni" in (machine_facts().instruction_sets or ()) else "avx2"


def peers_named(names: Sequence[str] | None) -> list[Peer]:
    """All peers, or those whose name contains one of ``names``, whatever its case.

    Raises:
        UserError: a name that is in none; lists them all.
    """
    for name in names or ():
        if not any(name.lower() in peer.name.lower() for peer in PEERS):
            raise UserError(f"--only {name!r} names no peer; known: {', '.join(peer.name for peer in PEERS)}")
    return [peer for peer in PEERS if not names or any(name.lower() in peer.name.lower() for name in names)]


def versions_and_kernels(tried: Sequence[Tried]) -> dict[str, dict[str, Any]]:
    """By name of subject: the versions of its packages, and its MatMuls as they are executed."""
    return {item.subject.name: {"versions": item.versions, "matmuls": item.kernels} for item in tried}
