"""The verb that searches for the smallest model within a stated loss."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from distilface.cli.options import File, Overwrite, Text
from distilface.cli.progress import out as console
from distilface.cli.progress import progress, show_table


def compress(
    model: Annotated[str, typer.Argument(help="Checkpoint, sentence-transformers folder or Hub id.")],
    data: Annotated[str, typer.Option("--data", help="Scored dev pairs: SentEval folder or file.")],
    calibration: Annotated[Path, typer.Option("--calibration", help="Text of the kind the model will see.")],
    max_size: Annotated[Text, typer.Option("--max-size", help="Of the graph: 12MB, 900kB, 11.5MiB.")] = None,
    max_drop: Annotated[Optional[float], typer.Option(  # noqa: UP045
        "--max-drop", help="Most dev Spearman points to lose.")] = None,
    max_latency: Annotated[Text, typer.Option("--max-latency", help="Of one short text: 1ms, 800us.")] = None,
    prefer: Annotated[Text, typer.Option("--prefer", help="quality, size or latency; default by the limits.")] = None,
    vocabulary: Annotated[File, typer.Option("--vocabulary", help="Text whose words stay; default: as above.")] = None,
    modes: Annotated[Text, typer.Option("--modes", help="Of static,token,dynamic,w8,w4; default all.")] = None,
    minutes: Annotated[Optional[float], typer.Option(  # noqa: UP045
        "--minutes", help="Also drop layers and distill, so long in all.")] = None,
    exhaustive: Annotated[bool, typer.Option("--exhaustive", help="Measure also what can't be the answer.")] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder; run again, it goes on.")] = Path("runs/compress"),
    overwrite: Overwrite = False,
) -> None:
    """Find the best small model within a budget: precision, table, vocabulary, layers.

    Scored on dev pairs alone. What was measured is kept: after a kill, or with another budget, run it again and it goes
    on.
    """
    from distilface.compression.budget import Budget, parse_latency, parse_size

    budget = Budget(None if max_size is None else parse_size(max_size), max_drop,
                    None if max_latency is None else parse_latency(max_latency), prefer)  # type: ignore[arg-type]
    from distilface.compression import compress as run
    from distilface.compression.space import MODES
    from distilface.compression.summary import HEADER, cells

    chosen = MODES if modes is None else tuple(mode.strip() for mode in modes.split(","))
    with progress() as report:
        result = run(model, out, budget, data, calibration, vocabulary, chosen, minutes, exhaustive, overwrite, report)
    show_table("Pareto front", HEADER, [cells(point) for point in result.front])
    best = result.best
    console.print(f"best: {best.words}, {best.size / 1e6:.1f} MB, {best.drop:.2f} points lost "
                  f"({best.drop_low:.2f} to {best.drop_high:.2f}), {best.latency:.2f} ms a text")
    console.print(f"bundle: {result.bundle}\nreport: {result.out / 'search.md'}")
