"""The processes of all subjects, which live together and take turns."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from distilface.benchmarking.client import Worker
from distilface.benchmarking.config import BenchConfig
from distilface.benchmarking.subjects import Subject
from distilface.errors import GateError
from distilface.protocol import Vectors

FIRST_TEXT = "switch off the lamp in the hall"
"""Short in every vocabulary; what the first-vector time encodes."""


class Crew:
    """One process a subject. Use it in a ``with`` block: none outlives the block.

    They start when one is first needed, so that nothing starts for steps that an earlier sitting measured.
    """

    def __init__(self, subjects: Sequence[Subject], config: BenchConfig, threads: int,
                 target: str | None = None) -> None:
        self.subjects = subjects
        self._config, self._threads, self._target = config, threads, target or config.target
        self._stack = ExitStack()
        self._workers: dict[str, Worker] = {}

    def start(self) -> dict[str, dict[str, Any]]:
        """Start and load all, one after the other; what each answered by the subject's name."""
        return {subject.name: self._start(subject) for subject in self.subjects}

    def ask(self, subject: Subject, op: str, **fields: Any) -> dict[str, Any]:
        """One request to one subject's process."""
        if not self._workers:
            self.start()
        return self._workers[subject.name].ask(op, **fields)

    def encode(self, subject: Subject, texts: Sequence[str], out: Path) -> None:
        """Write the vectors of ``texts`` to the .npy file ``out``.

        Raises:
            GateError: they are not finite.
        """
        self.ask(subject, "encode", texts=list(texts), out=str(out))
        vectors: Vectors = np.load(out, allow_pickle=False)
        if not np.isfinite(vectors).all():
            raise GateError(f"{subject.name}: vectors hold NaN or infinity; the model is broken, export it again")

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, trace)

    def _start(self, subject: Subject) -> dict[str, Any]:
        worker = self._stack.enter_context(Worker(subject, self._threads))
        self._workers[subject.name] = worker
        config = self._config
        return worker.ask("load", subject=subject.model_dump(mode="json"), threads=self._threads, target=self._target,
                          max_seq_length=config.max_seq_length, first_text=FIRST_TEXT,
                          npm_folder=str(config.npm_folder or "."))
