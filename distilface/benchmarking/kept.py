"""What a run has measured so far, a file a step, so that an interrupted run goes on with the rest."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from distilface.artifact import atomic_file
from distilface.benchmarking.results import Sitting
from distilface.config import differences
from distilface.errors import UserError
from distilface.machine import LoadWatch, MachineFacts
from distilface.protocol import Vectors
from distilface.tokenizer import write_json

logger = logging.getLogger(__name__)

PLAN = "plan.json"


class Kept:
    """The steps of one run. Each is written whole: a kill loses the step that ran, nothing before it.

    Args:
        folder: a new one, or that of an interrupted run.
        plan: what the numbers depend on, as JSON values: settings, hashes of models and texts, the machine.
        anew: drop the steps of another plan instead of refusing them.

    Raises:
        UserError: the folder holds steps of another plan, or something else.
    """

    def __init__(self, folder: Path, plan: Mapping[str, Any], anew: bool = False) -> None:
        self.folder = folder
        stored = _stored_plan(folder)
        found = None if stored is None else next(iter(differences(json.loads(json.dumps(plan)), stored)), None)
        if found is not None:
            name, before, now = found
            if not anew:
                raise UserError(f"{str(folder)!r} holds an interrupted run whose {name} was {before!r} and is {now!r} "
                                "now; set it back to go on, pass --overwrite to drop what it measured, or use another "
                                "--out")
            logger.warning("%s: dropped what an interrupted run measured: its %s was %r and is %r now", folder, name,
                           before, now)
            forget(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if stored is None or found is not None:
            with atomic_file(folder / PLAN) as temporary:
                write_json(temporary, dict(plan))
        self._number = 1 + len(list(folder.glob("sitting-*.json")))
        if self.steps:
            logger.info("%s: going on with a run of which %d steps were measured", folder, self.steps)

    @property
    def steps(self) -> int:
        """How many there are."""
        return sum(1 for _ in self._files())

    @property
    def timed(self) -> bool:
        """Whether a round was measured, in this or an earlier sitting."""
        return next(self.folder.glob("step-latency-*.json"), None) is not None

    def step(self, name: str, measure: Callable[[], Any]) -> Any:
        """The answer of a step, as JSON values: kept from an earlier sitting, else measured now."""
        file = self.folder / f"step-{name}.json"
        if file.is_file():
            return _read(file)["answer"]
        answer = measure()
        with atomic_file(file) as temporary:
            write_json(temporary, {"sitting": self._number, "answer": answer})
        return answer

    def vectors(self, name: str, make: Callable[[Path], None]) -> Vectors:
        """The array of a .npy file: kept, else made now by a call that writes it to the path it is given."""
        file = self.folder / f"vectors-{name}.npy"
        if not file.is_file():
            with atomic_file(file) as temporary:
                make(temporary)
        vectors: Vectors = np.load(file, allow_pickle=False)
        return vectors

    @contextmanager
    def sitting(self, machine: MachineFacts) -> Iterator[None]:
        """One stretch of measuring, from its start to its end or interruption. A kill leaves its start alone."""
        file, start, watch = self.folder / f"sitting-{self._number}.json", time.perf_counter(), LoadWatch()
        begun = Sitting(started=datetime.now(timezone.utc).isoformat(timespec="seconds"), machine=machine)
        self._write(file, begun)
        try:
            yield
        except KeyboardInterrupt:
            logger.warning("interrupted: %d steps are measured and kept in %s; the same command goes on", self.steps,
                           self.folder)
            raise
        finally:
            if self.folder.is_dir():
                seconds = round(time.perf_counter() - start, 1)
                self._write(file, begun.model_copy(update={"seconds": seconds, "disturbance": watch.finish()}))

    def sittings(self) -> tuple[Sitting, ...]:
        """Those in which a step was measured, with how many."""
        measured = [_read(file)["sitting"] for file in self._files()]
        found = [(number, Sitting.model_validate(_read(self.folder / f"sitting-{number}.json")))
                 for number in range(1, self._number + 1)]
        return tuple(sitting.model_copy(update={"steps": measured.count(number)})
                     for number, sitting in found if number in measured)

    def notes(self) -> tuple[str, ...]:
        """What a reader must know of a run that was interrupted."""
        found = self.sittings()
        if len(found) < 2:
            return ()
        notes = [f"measured in {len(found)} sittings, begun {', '.join(one.started for one in found)}: each round "
                 "compares the subjects within one of them, and absolute values are medians over all"]
        for number, one in enumerate(found[:-1], 1):
            if one.disturbance is None:
                notes.append(f"sitting {number} was killed: what else the machine did then is not known")
            else:
                notes += [f"sitting {number}: {warning}" for warning in one.disturbance.warnings]
        return tuple(notes)

    def _files(self) -> Iterator[Path]:
        return self.folder.glob("step-*.json")

    @staticmethod
    def _write(file: Path, sitting: Sitting) -> None:
        with atomic_file(file) as temporary:
            write_json(temporary, sitting.model_dump(mode="json"))


def forget(folder: Path) -> None:
    """Delete what a run kept, once its report is written."""
    if (folder / PLAN).is_file():
        shutil.rmtree(folder)


def _stored_plan(folder: Path) -> dict[str, Any] | None:
    if (folder / PLAN).is_file():
        return _read(folder / PLAN)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{str(folder)!r} is where this run would keep what it measures, and it holds other things; "
                        "move them, or use another --out")
    return None


def _read(file: Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return values
    except (OSError, ValueError) as error:
        raise UserError(f"{str(file)!r} is damaged ({error}); remove it to measure that anew") from None
