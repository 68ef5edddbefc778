"""Who is at work: a locked file for each worker, so that a dead one is known at once; and turns at shared files."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from optuna.storages.journal import JournalFileOpenLock

try:
    import fcntl
except ImportError:  # Windows: a dead worker is known by its missing heartbeat, some minutes later
    fcntl = None  # type: ignore[assignment]


class Presence:
    """This worker's file in ``folder``; the system unlocks it when the process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.name = uuid.uuid4().hex
        self._path = folder / self.name
        self._file = self._path.open("w", encoding="utf-8")
        if fcntl is not None:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def is_dead(self, worker: str) -> bool:
        """Whether that worker is known to have ended. False where this can't be told from here."""
        path = self._folder / worker
        if fcntl is None or not path.is_file():
            return False
        with path.open("r+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
        return True

    def tidy(self) -> None:
        """Remove the files of the dead; only when none of them has a trial left."""
        for path in self._folder.iterdir():
            if len(path.name) == len(self.name) and self.is_dead(path.name):
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Leave."""
        self._file.close()
        self._path.unlink(missing_ok=True)


@contextmanager
def taking_turns(folder: Path) -> Iterator[None]:
    """One worker at a time; a lock whose holder died is broken after half a minute."""
    lock = JournalFileOpenLock(str(folder / "outputs"))
    lock.acquire()
    try:
        yield
    finally:
        lock.release()
