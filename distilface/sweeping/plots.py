"""Figures 2 to 6 of the DistilFACE paper for any sweep: dev Spearman by steps, and by each key that was varied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from distilface.report.figure import PALETTE, SOFT, WIDTH, png, room, style
from distilface.sweeping.config import SweepConfig, describe
from distilface.sweeping.results import Row, best_row
from distilface.sweeping.space import Choices, Range, Values, is_number

_SCORE = "dev Spearman × 100"
_NAMED = 5
"""Curves that are told apart by colour; the others are grey."""


@dataclass(frozen=True)
class Plot:
    """A picture: ``name`` of its file without suffix, what it shows in words, and the PNG."""

    name: str
    title: str
    alt: str
    png: bytes


def make_plots(config: SweepConfig, rows: Sequence[Row]) -> list[Plot]:
    """Spearman by steps, then by each key of the space. Empty without a complete trial."""
    best = best_row(rows)
    if best is None:
        return []
    names = _names(list(config.space))
    plots = [_steps(rows, best)]
    for key, values in config.space.items():
        if isinstance(values, Range) or all(is_number(value) for value in values.choices):
            plots.append(_numbers(names[key], key, values, rows, best))
        else:
            plots.append(_words(names[key], key, values, rows, best))
    return plots


def _names(keys: list[str]) -> dict[str, str]:
    """The last part of each key where that is unlike the others': learning_rate, temperature, batch_size, pooling."""
    lasts = [key.rpartition(".")[2] for key in keys]
    return {key: last if lasts.count(last) == 1 and last != "steps" else key.replace(".", "_")
            for key, last in zip(keys, lasts, strict=True)}


def _steps(rows: Sequence[Row], best: Row) -> Plot:
    ranked = sorted((row for row in rows if row.score is not None), key=lambda row: (-(row.score or 0), row.index))
    named = {row.index: number for number, row in enumerate(ranked[:_NAMED])}
    # The winner is drawn last, over the others.
    order = sorted((row for row in rows if row.runs), key=lambda row: -named.get(row.index, _NAMED))

    def draw(axes: Any) -> None:
        for row in order:
            steps, scores = _mean_curve(row)
            place = named.get(row.index)
            colour = SOFT if place is None else PALETTE[place]
            shown = None if place is None else f"trial {row.index}: {row.score:.2f}"
            axes.plot(steps, scores, color=colour, linewidth=2.4 if place == 0 else 1.6 if place is not None else 1.0,
                      alpha=0.6 if place is None else 1.0, marker="o" if len(steps) < 20 else None, markersize=3.5,
                      label=shown)
            if row.state == "pruned":
                axes.plot(steps[-1:], scores[-1:], "x", color=SOFT, markersize=7, markeredgewidth=1.6)
        axes.set_xlabel("step")
        axes.set_ylabel(_SCORE)
        handles, labels = axes.get_legend_handles_labels()
        axes.figure.legend(handles[::-1], labels[::-1], loc="outside lower left", ncols=min(3, len(labels)))

    words = "; ".join(f"trial {row.index} reaches {row.score:.2f}" for row in ranked[:_NAMED])
    pruned = sum(row.state == "pruned" for row in rows)
    note = f" A cross ends each of the {pruned} pruned runs." if pruned else ""
    return _plot("steps", "Spearman by steps", f"Best first: {words}.{note}", draw, 4.4)


def _mean_curve(row: Row) -> tuple[list[int], list[float]]:
    """The mean over seeds at every step that all of them have."""
    curves = [dict(run.curve) for run in row.runs]
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    return steps, [fmean(curve[step] for curve in curves) for step in steps]


def _numbers(name: str, key: str, values: Values, rows: Sequence[Row], best: Row) -> Plot:
    done = [(row.setting[key], row.score) for row in rows if row.score is not None and key in row.setting]
    listed = sorted(values.choices) if isinstance(values, Choices) else []
    peaks = {value: max(score for at, score in done if at == value) for value in listed if value in dict(done)}
    log = values.log if isinstance(values, Range) else listed[0] > 0 and listed[-1] / listed[0] >= 4

    def draw(axes: Any) -> None:
        if log:
            axes.set_xscale("log")
        if listed:
            axes.plot(list(peaks), list(peaks.values()), color=PALETTE[0], linewidth=1.8, label="best at each value")
        _dots(axes, done, [(row.setting[key], row.best_run.score) for row in rows
                           if row.state == "pruned" and row.best_run is not None and key in row.setting],
              (best.setting[key], best.score))
        if listed:
            axes.set_xticks(listed, [f"{value:g}" for value in listed])
            axes.minorticks_off()
        axes.set_xlabel(key)
        axes.set_ylabel(_SCORE)
        room(axes)
        _legend(axes)

    tried = [at for at, _ in done]
    words = (f"Best score at each {key}: " + ", ".join(f"{at:g}: {score:.2f}" for at, score in peaks.items())
             if listed else f"{len(done)} complete trials with {key} from {min(tried):.3g} to {max(tried):.3g}")
    return _plot(name, f"Spearman by {_title(name)}", f"{words}. The best trial has "
                 f"{describe({key: best.setting[key]})}.", draw, 4.0)


def _words(name: str, key: str, values: Choices, rows: Sequence[Row], best: Row) -> Plot:
    labels = [str(value) for value in values.choices]
    done = [(str(row.setting[key]), row.score) for row in rows if row.score is not None and key in row.setting]
    pruned = [(str(row.setting[key]), row.best_run.score) for row in rows
              if row.state == "pruned" and row.best_run is not None and key in row.setting]
    peaks = {text: max((score for at, score in done if at == text), default=None) for text in labels}
    order = sorted(labels, key=lambda text: (peaks[text] is not None, peaks[text] or 0.0))
    at = {text: place for place, text in enumerate(order)}

    def draw(axes: Any) -> None:
        _dots(axes, [(score, at[text]) for text, score in done], [(score, at[text]) for text, score in pruned],
              (best.score, at[str(best.setting[key])]))
        axes.set_yticks(range(len(order)), order)
        axes.set_ylim(-0.6, len(order) - 0.4)
        axes.set_xlabel(_SCORE)
        room(axes, "x")
        _legend(axes)

    words = ", ".join(f"{text}: " + ("none complete" if peaks[text] is None else f"{peaks[text]:.2f}")
                      for text in reversed(order))
    return _plot(name, f"Spearman by {_title(name)}", f"Best score with each {key}: {words}.", draw,
                 1.7 + 0.32 * len(order))


def _dots(axes: Any, done: Sequence[tuple[Any, Any]], pruned: Sequence[tuple[Any, Any]],
          best: tuple[Any, Any]) -> None:
    if pruned:
        axes.scatter(*zip(*pruned, strict=True), s=26, marker="x", color=SOFT, linewidths=1.4, zorder=3,
                     label="pruned, best so far")
    axes.scatter(*zip(*done, strict=True), s=34, color=PALETTE[0], alpha=0.75, linewidths=0, zorder=4,
                 label="complete trial")
    axes.scatter([best[0]], [best[1]], s=130, facecolors="none", edgecolors=PALETTE[1], linewidths=2, zorder=5,
                 label="best trial")


def _legend(axes: Any) -> None:
    axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside lower left", ncols=4, columnspacing=1.2,
                       handletextpad=0.5, fontsize=10)


def _title(name: str) -> str:
    return name.replace("_", " ")


def _plot(name: str, title: str, alt: str, draw: Callable[[Any], None], height: float) -> Plot:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(style()):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.subplots()
        axes.set_title(title)
        draw(axes)
        return Plot(name, title, alt, png(figure))
