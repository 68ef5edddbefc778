"""The verb that searches for settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from distilface.cli.options import Number, Sets
from distilface.cli.progress import console as terminal
from distilface.cli.progress import out as console
from distilface.cli.progress import show_table

if TYPE_CHECKING:
    from distilface.sweeping.run import Status

_TABLE_ROWS = 10


def sweep(
    config: Annotated[Path, typer.Option("--config", help="YAML of the sweep; see configs/sweep/.")],
    sets: Sets = None,
    trials: Annotated[Number, typer.Option("--trials", help="Trials of tpe and random, over all workers.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the sweep; run again, it goes on.")] = Path(
        "runs/sweep"),
) -> None:
    """Search for the best settings of train or distill: table, plots, best config, best model.

    Scored on dev pairs alone. A finished trial is never run again; start the command twice to share the work.
    """
    from distilface.sweeping import load_sweep
    from distilface.sweeping import sweep as run  # names a missing extra before anything is read

    settings = load_sweep(config, sets or (), trials)
    with _watching() as report:
        result = run(settings, out, report)
    from distilface.sweeping.summary import ranking, verdict

    header, cells = ranking(settings, result.rows, _TABLE_ROWS)
    more = f", first {_TABLE_ROWS} of {len(result.rows)}" if len(result.rows) > _TABLE_ROWS else ""
    show_table(f"Trials by dev Spearman{more}", header, cells)
    console.print(f"{verdict(result.rows)}\nconfig: {out / 'best.yaml'}\nreport: {out / 'summary.html'}")
    if settings.keep_model and result.best is not None:
        console.print(f"model: {Path(result.best.place or out) / 'best'}")


@contextmanager
def _watching() -> Iterator[Callable[[Status], None]]:
    """A bar over trials with the best score so far and this worker's trial; without a terminal, a line a trial."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from distilface.sweeping.config import describe

    if not terminal.is_terminal:
        seen: set[int] = set()

        def line(status: Status) -> None:
            if status.finished not in seen:
                seen.add(status.finished)
                best = "" if status.best is None else (f", best {status.best.score:.2f} (trial {status.best.index}: "
                                                       f"{describe(status.best.setting)})")
                terminal.print(f"{status.finished} of {status.total} trials{best}", soft_wrap=True)

        yield line
        return
    columns = (TextColumn("sweep"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TextColumn("{task.description}"))
    with Progress(*columns, console=terminal) as bar:
        task = bar.add_task("", total=None)

        def update(status: Status) -> None:
            best = "" if status.best is None else f"best {status.best.score:.2f} (trial {status.best.index})"
            news = status.news
            now = "" if news is None else (f"trial {news.index}, seed {news.seed}: step {news.step}/{news.steps}, "
                                           f"dev {news.score:.2f}")
            bar.update(task, completed=status.finished, total=status.total,
                       description="   ".join(part for part in (best, now) if part))

        yield update
