"""A search in words and a picture: search.md, points.csv and front.png."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from distilface.artifact import atomic_file
from distilface.compression.budget import Budget
from distilface.compression.points import Point
from distilface.report.figure import PALETTE, SOFT, png, room, style

TABLE, PAGE, PLOT = "points.csv", "search.md", "front.png"
HEADER = ("graph", "MB", "dev Spearman", "points lost (95 %)", "ms a text", "words", "layers", "MatMuls on integers",
          "batch-invariant")
_COLUMNS = ("slug", "words", "variant", "size", "folder", "rows", "layers", "dev", "drop", "drop_low", "drop_high",
            "latency", "batch_invariant", "integer_matmuls", "matmuls")


def cells(point: Point) -> tuple[str, ...]:
    """A table row."""
    return (point.words, f"{point.size / 1e6:.1f}", f"{point.dev:.2f}",
            f"{point.drop:.2f} ({point.drop_low:.2f} to {point.drop_high:.2f})", f"{point.latency:.2f}",
            f"{point.rows:,}", str(point.layers), f"{point.integer_matmuls} of {point.matmuls}",
            "yes" if point.batch_invariant else "no")


def write_summary(out: Path, budget: Budget, reference: float, points: Sequence[Point], front: Sequence[Point],
                  best: Point | None, skipped: Sequence[tuple[str, str]]) -> None:
    """Write the three files into ``out``."""
    with atomic_file(out / TABLE) as temporary, temporary.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow([*_COLUMNS, "on_front", "within_budget", "commands"])
        for point in points:
            writer.writerow([*(getattr(point, name) for name in _COLUMNS), point in front, not point.breaks(budget),
                             " && ".join(point.commands)])
    with atomic_file(out / PLOT) as temporary:
        temporary.write_bytes(plot(budget, reference, points, front, best))
    with atomic_file(out / PAGE) as temporary:
        temporary.write_text(page(budget, reference, points, front, best, skipped), encoding="utf-8", newline="\n")


def page(budget: Budget, reference: float, points: Sequence[Point], front: Sequence[Point], best: Point | None,
         skipped: Sequence[tuple[str, str]]) -> str:
    """The search as Markdown."""
    limits = [*([f"at most {budget.size / 1e6:g} MB"] if budget.size is not None else []),
              *([f"at most {budget.drop:g} points lost"] if budget.drop is not None else []),
              *([f"at most {budget.latency:g} ms a text"] if budget.latency is not None else [])]
    much = "most" if budget.preference == "quality" else "least"
    lines = ["# Search", "", f"Budget: {', '.join(limits)}; best is {much} {budget.preference}.", "",
             f"Chosen on dev pairs alone. The float32 model scores {reference:.2f} there. Latency: median of a single "
             "short text on this machine.", "",
             f"**Best: {best.words}**, in `best/`." if best is not None else "**Nothing keeps the budget.**", "",
             f"![Size and dev Spearman of every point]({PLOT})", "", "## Pareto front", "",
             *_table(front), "", "## All points", "", *_table(points), "", "## Made by", "",
             "Run in an empty folder, from where the named files can be found.", ""]
    for point in points:
        lines += [f"- {point.words}", "", "  ```bash", *(f"  {command}" for command in point.commands), "  ```", ""]
    if skipped:
        lines += ["## Passed over", "", *(f"- {words}: {reason}" for words, reason in skipped), ""]
    return "\n".join(lines)


def _table(points: Sequence[Point]) -> list[str]:
    return [f"| {' | '.join(HEADER)} |", "|" + "---|" * len(HEADER),
            *(f"| {' | '.join(cells(point))} |" for point in points)]


def plot(budget: Budget, reference: float, points: Sequence[Point], front: Sequence[Point],
         best: Point | None) -> bytes:
    """Size against dev Spearman as PNG: all points, the front as a line, the limits as an area."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(style()):
        figure = Figure(figsize=(7.2, 4.6), layout="constrained")
        axes = figure.subplots()
        axes.set_xscale("log")
        axes.plot([point.size / 1e6 for point in front], [point.dev for point in front], color=PALETTE[0],
                  linewidth=1.8, drawstyle="steps-post", label="Pareto front", zorder=2)
        axes.scatter([point.size / 1e6 for point in points], [point.dev for point in points], s=34, color=PALETTE[0],
                     alpha=0.7, linewidths=0, label="measured", zorder=3)
        if budget.size is not None:
            axes.axvline(budget.size / 1e6, color=SOFT, linestyle="--", linewidth=1.2, label="size limit")
        if budget.drop is not None:
            axes.axhline(reference - budget.drop, color=SOFT, linestyle=":", linewidth=1.4, label="loss limit")
        if best is not None:
            axes.scatter([best.size / 1e6], [best.dev], s=140, facecolors="none", edgecolors=PALETTE[1], linewidths=2,
                         label="best", zorder=4)
        sizes = sorted({point.size / 1e6 for point in points})
        ticks = [tick for tick in (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512)
                 if sizes[0] / 1.3 <= tick <= sizes[-1] * 1.3] if sizes else []
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("graph, MB")
        axes.set_ylabel("dev Spearman × 100")
        room(axes)
        figure.legend(loc="outside lower left", ncols=5, fontsize=10, handletextpad=0.5, columnspacing=1.2)
        return png(figure)
