"""The asking side of a measuring process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from types import TracebackType
from typing import Any

from distilface.benchmarking.subjects import Subject
from distilface.errors import DistilfaceError, GateError, UserError

_GRACE_SECONDS = 5


class WorkerError(DistilfaceError):
    """A measuring process died or failed; the message ends with the last line it wrote."""


class Worker:
    """One fresh process for one subject. Use it in a ``with`` block: it never outlives the block.

    The process is a session of its own, so Ctrl-C reaches only the parent, which then ends its workers.
    """

    def __init__(self, subject: Subject, threads: int) -> None:
        self.subject = subject
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed in close()
        self._process = subprocess.Popen(
            _command(subject), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr,
            env=_environment(subject, threads), text=True, encoding="utf-8", start_new_session=True,
        )

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send one request and wait for its answer.

        Raises:
            UserError, GateError: what the worker raised.
            WorkerError: it failed otherwise, or died.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        line = ""
        with contextlib.suppress(BrokenPipeError):
            stdin.write(json.dumps({"op": op, **fields}) + "\n")
            stdin.flush()
            line = stdout.readline()
        if not line.endswith("\n"):
            raise WorkerError(self._epitaph(op))
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            kind = {UserError.exit_code: UserError, GateError.exit_code: WorkerError}[answer["exit_code"]]
            raise kind(f"{self.subject.name}: {answer['error']}")
        return answer

    def close(self, kill: bool = False) -> None:
        """End the process, gently unless ``kill``, and wait for it."""
        if kill:
            self._kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(timeout=_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close(kill=kind is not None)

    def _kill(self) -> None:
        """The process and what it started: a browser."""
        if hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()

    def _epitaph(self, op: str) -> str:
        try:
            code = self._process.wait(timeout=_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._stderr.seek(0)
        lines = [line for line in self._stderr.read().decode("utf-8", "replace").splitlines() if line.strip()]
        last = lines[-1].strip() if lines else "it wrote nothing"
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        memory = " (out of memory?)" if code == -9 else ""
        return f"{self.subject.name}: the measuring process {how}{memory} during {op!r}; last line: {last}"


def _command(subject: Subject) -> list[str]:
    # -P: the folder the user stands in must not shadow a library, as with the distilface command itself.
    safe = ["-P"] if sys.version_info >= (3, 11) and subject.python is None else []
    return [subject.python or sys.executable, *safe, "-m", "distilface.benchmarking.worker"]


def _environment(subject: Subject, threads: int) -> dict[str, str]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    if subject.python is None:
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return environment
