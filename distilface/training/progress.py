"""What a user watches while it trains: a progress bar on stderr, and TensorBoard."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from distilface.training.trainer import DEV_KEY

logger = logging.getLogger(__name__)


@contextmanager
def counting(what: str, show: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr for work that reports how much is done, and of how much."""
    if not show:
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                  console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class ProgressBar(TrainerCallback):
    """Steps, latest loss, latest and best dev Spearman, time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                             TextColumn("{task.description}"), console=Console(stderr=True))
        self._loss = ""
        self._dev = ""
        self._best = -100.0
        self._task: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._task = self._bar.add_task("", total=state.max_steps, completed=state.global_step)
        self._bar.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._bar.update(self._task, completed=state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        logs = logs or {}
        if "loss" in logs:
            self._loss = f"loss {logs['loss']:.4f}"
        if DEV_KEY in logs:
            score = logs[DEV_KEY]
            if state.global_step:  # step 0 is the start, not a candidate
                self._best = max(self._best, score)
            self._dev = f"dev {score:.2f}" + (f" (best {self._best:.2f})" if state.global_step else "")
        self._bar.update(self._task, description=f"{self._loss}  {self._dev}")

    def close(self) -> None:
        """Leave the terminal as it was, also after an error."""
        self._bar.stop()


class TensorBoard(TrainerCallback):
    """Loss, learning rate, gradient norm and dev Spearman by step."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    @classmethod
    def create(cls, folder: Path, asked: bool | None) -> TensorBoard | None:
        """Write event files into ``folder``; None when the package is missing (a warning if it was asked for)."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            if asked:
                logger.warning("train.tensorboard is true, but the package is not installed: pip install tensorboard")
            return None
        return cls(SummaryWriter(str(folder)))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        for name, value in (logs or {}).items():
            if isinstance(value, int | float):
                self._writer.add_scalar(name.replace("eval_", "dev/"), value, state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._writer.close()
