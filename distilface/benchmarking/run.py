"""What every stage of a run needs, and what its numbers depend on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distilface import __version__
from distilface.benchmarking.assemble import Samples
from distilface.benchmarking.config import BenchConfig
from distilface.benchmarking.kept import Kept
from distilface.benchmarking.quality import StsData
from distilface.benchmarking.subjects import BUNDLE_BACKENDS, Subject
from distilface.benchmarking.texts import RealTexts
from distilface.loading import hash_of, model_files
from distilface.machine import MachineFacts

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Run:
    """One run; the stages fill ``samples``, by the subjects' names."""

    subjects: Sequence[Subject]
    config: BenchConfig
    threads: int
    texts: RealTexts
    kept: Kept
    samples: dict[str, Samples]
    progress: Progress


def plan_of(subjects: Sequence[Subject], config: BenchConfig, threads: int, texts: RealTexts, sets: Sequence[StsData],
            groups: Sequence[Sequence[str]], machine: MachineFacts) -> dict[str, Any]:
    """Whatever, when it changes, makes earlier measurements those of another run."""
    facts = machine.model_dump(mode="json", include={"cpu", "gpu", "cores_usable", "python", "libraries"})
    return {
        "created_by": f"distilface {__version__}", "threads": threads, "settings": config.model_dump(mode="json"),
        "models": [{**subject.model_dump(mode="json"), "content": _content(subject)} for subject in subjects],
        "texts": _digest(list(texts.sentences)), "groups": _digest([list(group) for group in groups]),
        "sts": _digest([[item.name, item.sentences1, item.sentences2, item.gold.tolist()] for item in sets]),
        "machine": facts,
    }


def _content(subject: Subject) -> str:
    """A hash of the files that a subject is loaded from."""
    folder = subject.folder
    if folder is None:
        return ""
    if subject.backend in BUNDLE_BACKENDS and subject.variant is not None:
        from distilface.artifact import Bundle

        files: list[Path] = [Bundle.open(folder).graph(subject.variant), folder / "tokenizer.json"]
    else:
        files = [folder / name for name in subject.files] or model_files(folder)
    return hash_of(folder, [file for file in files if file.is_file()])[:16]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]
