"""Progress bars on standard error, for every verb the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

console = Console(stderr=True, highlight=False)
out = Console(highlight=False, soft_wrap=True)
if not out.is_terminal:
    out.width = 200  # a file or a pipe has no edge to wrap at


def show_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table on standard output: words to the left, numbers to the right."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for index, name in enumerate(header):
        numeric = any(str(row[index])[:1].isdigit() for row in rows)
        table.add_column(name, justify="right" if numeric else "left", no_wrap=not numeric)
    for row in rows:
        table.add_row(*(escape(str(cell)) for cell in row))
    out.print(table)


class Report(Protocol):
    """What long work calls: the stage's name, items done and items in all."""

    def __call__(self, stage: str, done: int = 0, total: int = 1) -> None: ...


@contextmanager
def progress() -> Iterator[Report]:
    """One bar for each stage; a stage ends when the next begins. Without a terminal, one line a stage."""
    if not console.is_terminal:
        yield _Lines()
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=False) as bars:
        tasks: dict[str, TaskID] = {}
        current: list[str] = []

        def report(stage: str, done: int = 0, total: int = 1) -> None:
            if current and current[0] != stage:
                finish(current[0])
            current[:] = [stage]
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        def finish(stage: str) -> None:
            task = tasks[stage]
            bars.update(task, completed=next(item.total for item in bars.tasks if item.id == task))
            bars.stop_task(task)

        yield report
        if current:
            finish(current[0])


class _Lines:
    """Progress for a log file: each stage named once."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def __call__(self, stage: str, done: int = 0, total: int = 1) -> None:
        if stage not in self.seen:
            self.seen.add(stage)
            console.print(f"{stage} ...")
