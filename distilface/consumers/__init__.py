"""Every consumer that is installed, run for real on a bundle: golden texts in, golden ids and vectors out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from distilface.artifact import Bundle, GoldenText, Variant
from distilface.consumers.registry import CONSUMERS, Consumer, consumers_named
from distilface.errors import GateError, UserError
from distilface.parity import FP32_FLOOR, cosines
from distilface.tokenizer import Tokenizer

__all__ = ["CONSUMERS", "Consumer", "Outcome", "check_consumers", "require_consumers"]

Status = Literal["ok", "failed", "can't load", "not installed", "not possible"]
TIMEOUT = 900
_CHILD = Path(__file__).parent / "child.py"
_NODE_CHILD = Path(__file__).parent / "child.cjs"


@dataclass(frozen=True)
class Outcome:
    """What one consumer made of one variant.

    Attributes:
        status: ``can't load`` is a variant outside plain ONNX (operators of ONNX Runtime's own, half precision) that
            this consumer was given and refused; of the other variants each consumer must give the vectors.
        version: of the consumer; None where it is not installed.
        cosine: worst cosine to the golden vectors, for texts within the length limit where the consumer cuts
            differently than the rest of the world (`Consumer.keeps_end`).
        detail: the reason, or what to install; for ``ok``, a difference worth knowing, or nothing.
    """

    consumer: str
    variant: str
    status: Status
    version: str | None = None
    cosine: float | None = None
    detail: str = ""

    @property
    def line(self) -> str:
        """One line for the user."""
        what = " ".join(filter(None, [self.consumer, self.version])) + (f", {self.variant}" if self.variant else "")
        found = "" if self.cosine is None else f"worst cosine {self.cosine:.7f}"
        return f"{self.status}  {what}: {'; '.join(filter(None, [found, self.detail]))}"


def check_consumers(bundle: str | Path, variant: str | None = None, pythons: Sequence[str | Path] = (),
                    node_folder: str | Path | None = None, checkpoint: str | Path | None = None,
                    names: list[str] | None = None, progress: Callable[[str], None] | None = None) -> list[Outcome]:
    """Run the installed consumers on a bundle, each in a process of its own.

    Args:
        variant: only this graph; default, all.
        pythons: interpreters of further environments; a consumer runs in the first that has it, the one that runs this
            last.
        node_folder: folder with the npm packages (holds node_modules); default, the current one.
        checkpoint: the checkpoint that the bundle was exported from, for the consumers that read torch weights.
        names: only consumers whose names begin so.

    Raises:
        UserError: no bundle, no such variant or consumer, an interpreter or folder that does not exist.
    """
    opened = Bundle.open(bundle)
    variants = opened.variant_names if variant is None else [opened.resolve_variant(variant)]
    chosen = consumers_named(names)
    with tempfile.TemporaryDirectory(prefix="distilface-consumers-") as work:
        environments = _Environments([*map(str, pythons), sys.executable], node_folder, Path(work), chosen)
        checker = _Checker(opened, Path(work), checkpoint)
        outcomes: list[Outcome] = []
        for consumer in chosen:
            if progress is not None:
                progress(consumer.name)
            outcomes += checker.outcomes(consumer, variants, environments)
    return outcomes


def require_consumers(bundle: str | Path, outcomes: Sequence[Outcome]) -> None:
    """Raise `GateError` naming the first consumer that failed."""
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    if failed:
        raise GateError(f"{str(bundle)!r} failed in {len(failed)} of {len(outcomes)} checks of consumers; first: "
                        f"{failed[0].line}")


class _Environments:
    """Which interpreter or node has which consumer."""

    def __init__(self, pythons: Sequence[str], node_folder: str | Path | None, work: Path,
                 chosen: Sequence[Consumer]) -> None:
        self.work = work
        folder = Path.cwd() if node_folder is None else Path(node_folder)
        if node_folder is not None and not (folder / "node_modules").is_dir():
            raise UserError(f"--consumer-node {str(folder)!r} holds no node_modules; run npm install there")
        self.modules = str(folder.resolve())
        self.node = shutil.which("node")
        self.commands: list[tuple[list[str], dict[str, str | None]]] = []
        wanted = {kind: sorted({name for item in chosen if item.runtime == kind for name in item.needs})
                  for kind in ("python", "node")}
        for python in dict.fromkeys(pythons):
            found = shutil.which(python)
            if found is None:
                raise UserError(f"--consumer-python {python!r} is no interpreter; name the python of an environment")
            # Absolute, for the children run in a folder of theirs; not resolved, for a link is what makes a venv one.
            self._add([str(Path(found).absolute()), str(_CHILD)], wanted["python"])
        if self.node is not None and wanted["node"]:
            self._add([self.node, str(_NODE_CHILD)], wanted["node"])

    def _add(self, command: list[str], distributions: list[str]) -> None:
        answer = run(command, "probe", {"distributions": distributions, "modules": self.modules}, self.work)
        self.commands.append((command, answer["versions"]))

    def find(self, consumer: Consumer) -> tuple[list[str], str] | None:
        """The command that runs it and its version, or None."""
        child = str(_CHILD if consumer.runtime == "python" else _NODE_CHILD)
        for command, versions in self.commands:
            found = [versions.get(name) for name in consumer.needs]
            if command[1] == child and all(found):
                return command, str(found[0])
        return None


class _Checker:
    def __init__(self, bundle: Bundle, work: Path, checkpoint: str | Path | None) -> None:
        self.bundle, self.work, self.checkpoint = bundle, work, checkpoint
        self.golden = bundle.golden()
        self.kinds = _modules(bundle.folder)
        self.pooling = _pooling(bundle.folder) if "Pooling" in self.kinds else None
        self.pad = Tokenizer.load(bundle.folder, bundle.manifest.max_seq_length).pad_token_id

    def outcomes(self, consumer: Consumer, variants: Sequence[str], environments: _Environments) -> Iterator[Outcome]:
        """One outcome for each variant, or one in all where the consumer does not come to run."""
        files = self._files(consumer, variants)
        impossible = self._impossible(consumer)
        if not files:
            impossible = "the bundle has no text-in graph; make one with: distilface export ... --tokenizer-in-graph"
        elif consumer.reads == "checkpoint" and self.checkpoint is None:
            impossible = "no torch weights in a bundle; name its checkpoint with --consumer-checkpoint"
        found = environments.find(consumer)
        if impossible:
            yield Outcome(consumer.name, "", "not possible", detail=impossible)
        elif found is None:
            missing = "node is not installed; then " if consumer.runtime == "node" and not environments.node else ""
            yield Outcome(consumer.name, "", "not installed", detail=missing + consumer.install)
        else:
            for variant, file in files.items():
                yield self._run(consumer, variant, file, *found, environments.modules)

    def _files(self, consumer: Consumer, variants: Sequence[str]) -> dict[str, str]:
        if consumer.reads == "checkpoint":
            return {"checkpoint": ""}
        if consumer.reads == "text":
            return {form.variant: form.file for form in self.bundle.manifest.forms
                    if form.kind == "text" and form.variant in variants}
        return {name: self.bundle.manifest.variants[name].file for name in variants}

    def _impossible(self, consumer: Consumer) -> str:
        if consumer.reads not in ("modules", "first output"):
            return ""
        if self.pooling is None:
            pooling = self.bundle.manifest.pooling
            return f"no module pools the first output to {pooling} vectors; read sentence_embedding"
        if consumer.reads == "first output" and "Dense" in self.kinds:
            return "a trained Dense head follows the pooling; read sentence_embedding"
        if self.pooling not in consumer.poolings:
            return f"it has no {self.pooling} pooling; read sentence_embedding"
        return ""

    def _run(self, consumer: Consumer, variant: str, file: str, command: list[str], version: str,
             modules: str) -> Outcome:
        manifest = self.bundle.manifest
        request = {"folder": str(self.bundle.folder.resolve()), "file": file, "dim": manifest.dim,
                   "texts": [item.text for item in self.golden], "pooling": self.pooling or "mean",
                   "max_seq_length": manifest.max_seq_length, "modules": modules,
                   "pad_token_id": self.pad,
                   "checkpoint": str(Path(self.checkpoint).resolve()) if self.checkpoint else None}
        with ExitStack() as stack:
            if consumer.main_graph and file != "onnx/model.onnx":
                from distilface.delivery import deliver

                folder = stack.enter_context(tempfile.TemporaryDirectory(dir=self.work))
                request |= {"folder": str(deliver(self.bundle.folder, Path(folder, "bundle"), variant).folder),
                            "file": "onnx/model.onnx"}
            try:
                answer = run(command, consumer.function, request, self.work)
            except GateError as error:
                return _stopped(consumer, variant, version, str(error), manifest.variants.get(variant))
        floor = FP32_FLOOR if variant in ("fp32", "checkpoint") else manifest.variants[variant].cosine_floor
        return judge(consumer, variant, version, answer, self.golden, manifest.max_seq_length, floor)


def _stopped(consumer: Consumer, variant: str, version: str, reason: str, record: Variant | None) -> Outcome:
    """What a consumer without vectors comes to: a fault of the bundle, or a kind of graph that it does not know."""
    special = record is not None and (record.needs_custom_ops or record.kind == "float16")
    return Outcome(consumer.name, variant, "can't load" if special else "failed", version, detail=reason)


def judge(consumer: Consumer, variant: str, version: str, answer: dict[str, Any], golden: Sequence[GoldenText],
          limit: int, floor: float) -> Outcome:
    """Compare what a consumer answered with the golden texts.

    The answer holds vectors for all texts, once or several times over, and ids or None.
    """
    expected = np.array([item.vector for item in golden], dtype=np.float32)
    vectors = np.array(answer["vectors"], dtype=np.float32)
    failed = Outcome(consumer.name, variant, "failed", version)
    if vectors.ndim != 2 or vectors.shape[1] != expected.shape[1] or not vectors.shape[0] or \
            vectors.shape[0] % expected.shape[0]:
        return _replace(failed, detail=f"vectors of shape {vectors.shape}, expected {expected.shape}")
    times = vectors.shape[0] // expected.shape[0]
    near = cosines(vectors, np.concatenate([expected] * times)).reshape(times, -1).min(axis=0)
    cut = np.array([not consumer.keeps_end and len(item.ids) == limit for item in golden])
    cosine = float(near[~cut].min())
    failed = _replace(failed, cosine=cosine)
    for item, row, was_cut in zip(golden, answer["ids"] or [], cut, strict=False):
        compared = (row[: limit - 1], item.ids[:-1]) if was_cut else (row, item.ids)
        if compared[0] != compared[1]:
            return _replace(failed, detail=f"other ids for {item.text[:30]!r}: {row[:10]}, expected {item.ids[:10]}")
    norm = float(np.abs(np.linalg.norm(vectors.astype(np.float64), axis=1) - 1).max())
    if norm > 1e-4:
        return _replace(failed, detail=f"vectors are not of unit length: off by {norm:.1e}")
    if not cosine >= floor:
        return _replace(failed, detail=f"floor {floor}; worst text {golden[int(near.argmin())].text[:30]!r}")
    note = f"texts over the limit lose their last special token: cosine {near[cut].min():.5f}" if cut.any() else ""
    return Outcome(consumer.name, variant, "ok", version, cosine, note)


def _replace(outcome: Outcome, **changes: Any) -> Outcome:
    return Outcome(**(vars(outcome) | changes))


def run(command: Sequence[str], function: str, request: dict[str, Any], work: Path) -> dict[str, Any]:
    """One function of a child in its own process, offline; `GateError` with its last words when it fails."""
    work = work.resolve()  # the child starts there
    request_file, answer_file = work / "request.json", work / "answer.json"
    request_file.write_text(json.dumps(request), encoding="utf-8")
    answer_file.unlink(missing_ok=True)
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
                    "PYTHONUTF8": "1", "CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run([*command, function, str(request_file), str(answer_file)], cwd=work, env=environment,
                              capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=TIMEOUT,
                              check=False)
    except subprocess.TimeoutExpired:
        raise GateError(f"no answer within {TIMEOUT} s") from None
    if done.returncode != 0 or not answer_file.is_file():
        words = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise GateError(words[-1] if words else f"ended with exit code {done.returncode} and no message")
    answer: dict[str, Any] = json.loads(answer_file.read_text(encoding="utf-8"))
    return answer


def _modules(folder: Path) -> list[str]:
    listed = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    return [str(module["type"]).rsplit(".", 1)[-1] for module in listed]


def _pooling(folder: Path) -> str | None:
    modes = json.loads((folder / "1_Pooling" / "config.json").read_text(encoding="utf-8"))
    return next((name for name in ("cls", "mean", "max") if modes.get("pooling_mode") == name or any(
        modes.get(f"pooling_mode_{name}_{rest}") for rest in ("token", "tokens"))), None)
