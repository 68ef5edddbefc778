"""The plots as inline SVG made by matplotlib, coloured by the page so that they suit a light and a dark theme."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from distilface.benchmarking.results import BenchReport, Spread, SubjectResult
from distilface.report.figure import PALETTE, WIDTH, style
from distilface.report.text import MEGABYTE, set_name, significant

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Placeholders that become the page's own colours.
_INK, _GRID = "#010203", "#040506"
_COLOURS = {_INK: "currentColor", _GRID: "var(--rule)"}
_STYLE = {
    **style(_INK, _GRID), "svg.fonttype": "none", "figure.facecolor": "none", "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


@dataclass(frozen=True)
class Plot:
    """A titled figure: ``svg`` is safe to inline; ``alt`` says in words what it shows."""

    title: str
    alt: str
    svg: str


def make_plots(report: BenchReport) -> list[Plot]:
    """The plots that this report has data for. Needs matplotlib (ModuleNotFoundError without)."""
    colours = {result.name: PALETTE[index % len(PALETTE)] for index, result in enumerate(report.subjects)}
    makers = (_quality, _sizes, _rates, _lengths, _batches, _threads, _sts_sets, _sts_changes)
    return [plot for number, make in enumerate(makers) if (plot := make(report, colours, number)) is not None]


def _quality(report: BenchReport, colours: dict[str, str], number: int) -> Plot | None:
    points = [(r, r.latency_at(report.short_tokens).p50, r.sts.average) for r in report.subjects if r.sts is not None]
    label, kind = "Spearman × 100", "STS"
    if not points:
        label, kind = "mean cosine to fp32", "cosine to fp32"
        points = [(r, r.latency_at(report.short_tokens).p50, r.cosine.mean if r.cosine else 1.0)
                  for r in report.subjects if r.cosine is not None or (r.is_baseline and r.kind == "float32")]
    if len(points) < 2:
        return None

    def draw(axes: Axes) -> None:
        sizes = [r.size_bytes or 0 for r, _, _ in points]
        for r, x, y in points:
            area = 60 + 340 * (r.size_bytes or 0) / (max(sizes) or 1)
            axes.scatter([x], [y], s=area, color=colours[r.name], alpha=0.85, linewidths=0, label=r.name, zorder=3,
                         clip_on=False)
        axes.set_xlim(0, max(x for _, x, _ in points) * 1.15)
        low, high = min(y for *_, y in points), max(y for *_, y in points)
        # Never less than a point of Spearman (0.02 of cosine) from bottom to top: noise must not look like a cliff.
        margin = max(0.25 * (high - low), (0.02 if kind == "cosine to fp32" else 1.0) / 2 - (high - low) / 2)
        axes.set_ylim(low - margin, high + margin)
        axes.ticklabel_format(axis="y", useOffset=False)
        axes.set_xlabel(f"p50 at batch 1, {report.short_tokens} tokens, ms (left is faster)")
        axes.set_ylabel(f"{label} (up is better)")
        _legend(axes, len(points), marker=60)

    words = "; ".join(f"{r.name} {significant(x)} ms, {significant(y, 4)}" for r, x, y in points)
    return _plot(f"Quality ({kind}) against latency", f"{label} against p50 latency: {words}. Larger dot, larger file.",
                 draw, number, 3.4 + 0.22 * len(points))


def _sizes(report: BenchReport, colours: dict[str, str], number: int) -> Plot | None:
    known = [r for r in report.subjects if r.size_bytes is not None]
    values = [(r.size_bytes or 0) / MEGABYTE for r in known]
    labels = [f"{significant(value)} MB" for value in values]
    return _bars("Size on disk", "MB (shorter is better)", known, values, labels, None, colours, number)


def _rates(report: BenchReport, colours: dict[str, str], number: int) -> Plot | None:
    rates = [r.best_throughput.sentences_per_second for r in report.subjects]
    spans = ([rate.median - rate.low for rate in rates], [rate.high - rate.median for rate in rates])
    labels = [significant(rate.median) for rate in rates]
    return _bars("Throughput on real text", "sentences/s, median and range (longer is better)",
                 report.subjects, [rate.median for rate in rates], labels, spans, colours, number)


def _bars(title: str, label: str, results: Sequence[SubjectResult], values: list[float], labels: list[str],
          spans: tuple[list[float], list[float]] | None, colours: dict[str, str], number: int) -> Plot | None:
    if not results:
        return None

    def draw(axes: Axes) -> None:
        places = range(len(results))
        axes.barh(places, values, height=0.62, color=[colours[r.name] for r in results], xerr=spans,
                  error_kw={"ecolor": _INK, "elinewidth": 1, "capsize": 3})
        tops = [v + (spans[1][i] if spans else 0) for i, v in enumerate(values)]
        for place, top, text in zip(places, tops, labels, strict=True):
            axes.text(top + 0.015 * max(tops), place, text, va="center")
        axes.set_yticks(list(places), [_shortened(r.name) for r in results])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlim(0, max(tops) * 1.18)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.set_xlabel(label)

    words = "; ".join(f"{r.name} {text}" for r, text in zip(results, labels, strict=True))
    return _plot(title, f"Bars, {label}: {words}.", draw, number, 1.0 + 0.42 * len(results))


def _lengths(report: BenchReport, colours: dict[str, str], number: int) -> Plot | None:
    lengths = [row.tokens for row in report.subjects[0].latency]
    if len(lengths) < 2:
        return None

    def draw(axes: Axes) -> None:
        for r in report.subjects:
            axes.plot(lengths, [row.p50 for row in r.latency], color=colours[r.name], marker="o", markersize=4,
                      linewidth=1.8, label=r.name)
            axes.fill_between(lengths, [row.q1 for row in r.latency], [row.q3 for row in r.latency],
                              color=colours[r.name], alpha=0.18, linewidth=0)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        # 14 and 16 would overlap; the odd one out is named in the table.
        ticks = [n for i, n in enumerate(lengths) if not (i + 1 < len(lengths) and lengths[i + 1] < 1.3 * n)]
        axes.set_xticks(ticks, [str(n) for n in ticks])
        axes.minorticks_off()
        lowest = min(row.q1 for r in report.subjects for row in r.latency)
        highest = max(row.q3 for r in report.subjects for row in r.latency)
        marks = [m * 10.0**e for e in range(-3, 5) for m in (1, 2, 5) if lowest * 0.8 <= m * 10.0**e <= highest * 1.25]
        axes.set_yticks(marks, [f"{mark:g}" for mark in marks])
        axes.set_xlabel("tokens")
        axes.set_ylabel("ms for one text")
        _legend(axes, len(report.subjects))

    words = "; ".join(f"{r.name} " + ", ".join(f"{row.tokens}: {significant(row.p50)} ms" for row in r.latency)
                      for r in report.subjects)
    return _plot("Latency by length", f"p50 at batch 1 by tokens, with quartiles: {words}.", draw, number,
                 3.3 + 0.22 * len(report.subjects))


def _batches(report: BenchReport, colours: dict[str, str], number: int) -> Plot | None:
    curves = {r.name: {row.batch_tokens: row.sentences_per_second for row in r.throughput
                       if row.threads is None and row.batch_tokens is not None} for r in report.subjects}
    return _rate_curves("Throughput by batch size", "padded tokens in a batch", curves, colours, number)


def _threads(report: BenchReport, colours: dict[str, str], number: int) -> Plot | None:
    curves: dict[str, dict[int, Spread]] = {}
    for r in report.subjects:
        best = curves.setdefault(r.name, {})
        for row in r.throughput:
            threads, rate = row.threads or report.threads, row.sentences_per_second
            if threads not in best or rate.median > best[threads].median:
                best[threads] = rate
    return _rate_curves("Throughput by threads", "threads, the best batch size of each", curves, colours, number)


def _rate_curves(title: str, label: str, curves: dict[str, dict[int, Spread]], colours: dict[str, str],
                 number: int) -> Plot | None:
    """Median and range of sentences a second over a number; None where there is one number only."""
    places = sorted({place for curve in curves.values() for place in curve})
    if len(places) < 2:
        return None

    def draw(axes: Axes) -> None:
        for name, curve in curves.items():
            at = sorted(curve)
            axes.plot(at, [curve[place].median for place in at], color=colours[name], marker="o", markersize=4,
                      linewidth=1.8, label=name)
            axes.fill_between(at, [curve[place].low for place in at], [curve[place].high for place in at],
                              color=colours[name], alpha=0.18, linewidth=0)
        axes.set_xscale("log", base=2)
        axes.set_xticks(places, [f"{place:,}" for place in places])
        axes.minorticks_off()
        axes.set_ylim(0, None)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
        axes.set_xlabel(label)
        axes.set_ylabel("sentences/s, median and range")
        _legend(axes, len(curves))

    words = "; ".join(f"{name} " + ", ".join(f"{place}: {significant(curve[place].median)}" for place in sorted(curve))
                      for name, curve in curves.items())
    return _plot(title, f"Sentences a second by {label}: {words}.", draw, number, 3.3 + 0.22 * len(curves))


def _sts_sets(report: BenchReport, colours: dict[str, str], number: int) -> Plot | None:
    scored = [(r, r.sts) for r in report.subjects if r.sts is not None]
    if not scored:
        return None
    names = [score.name for score in scored[0][1].sets]

    def draw(axes: Axes) -> None:
        height = 0.8 / len(scored)
        for index, (r, sts) in enumerate(scored):
            places = [place - 0.4 + (index + 0.5) * height for place in range(len(names))]
            axes.barh(places, [score.spearman for score in sts.sets], height=0.92 * height, color=colours[r.name],
                      label=r.name)
        axes.set_yticks(range(len(names)), [_set_name(name) for name in names])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        every = [score.spearman for _, sts in scored for score in sts.sets]
        axes.set_xlim(min(0.0, *every), max(100.0 if max(every) > 85 else max(every) * 1.15, 1.0))
        axes.set_xlabel("Spearman × 100 (longer is better)")
        _legend(axes, len(scored))

    words = "; ".join(f"{r.name} " + ", ".join(f"{score.name} {score.spearman:.2f}" for score in sts.sets)
                      for r, sts in scored)
    return _plot("STS by set", f"Spearman of each set: {words}.", draw, number,
                 1.2 + len(names) * (0.22 + 0.17 * len(scored)) + 0.22 * len(scored))


def _sts_changes(report: BenchReport, colours: dict[str, str], number: int) -> Plot | None:
    scored = [(r, r.sts) for r in report.subjects if r.sts is not None and r.sts.sets[0].change_low is not None]
    if not scored:
        return None
    names = [score.name for score in scored[0][1].sets]

    def draw(axes: Axes) -> None:
        step = 0.7 / len(scored)
        for index, (r, sts) in enumerate(scored):
            places = [place - 0.35 + (index + 0.5) * step for place in range(len(names))]
            middle = [score.change or 0.0 for score in sts.sets]
            below = [max(0.0, m - (s.change_low or 0.0)) for m, s in zip(middle, sts.sets, strict=True)]
            above = [max(0.0, (s.change_high or 0.0) - m) for m, s in zip(middle, sts.sets, strict=True)]
            axes.errorbar(middle, places, xerr=(below, above), fmt="o", color=colours[r.name], capsize=3, markersize=5,
                          linewidth=1.6, label=r.name)
        axes.axvline(0, color=_INK, linewidth=1)
        axes.set_yticks(range(len(names)), [_set_name(name) for name in names])
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("change against the baseline, points, 95 % interval")
        _legend(axes, len(scored))

    words = "; ".join(f"{r.name} " + ", ".join(f"{s.name} {s.change or 0:+.2f}" for s in sts.sets) for r, sts in scored)
    return _plot("STS: what compression changed", f"Change of Spearman against the baseline: {words}.", draw, number,
                 1.2 + len(names) * (0.22 + 0.16 * len(scored)) + 0.22 * len(scored))


def _legend(axes: Axes, entries: int, marker: float | None = None) -> None:
    """Above the plot, one name a line, so that long names never cover data."""
    legend: Any = axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=1 if entries <= 4 else 2,
                              borderaxespad=0.2, handlelength=1.4)
    if marker is not None:
        for handle in legend.legend_handles:
            handle.set_sizes([marker])


def _plot(title: str, alt: str, draw: Callable[[Any], None], number: int, height: float) -> Plot:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": f"distilface-{number}"}):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        draw(figure.subplots())
        stream = io.StringIO()
        figure.savefig(stream, format="svg",
                       metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return Plot(title, alt, _inline(stream.getvalue(), title, alt, number))


def _inline(svg: str, title: str, alt: str, number: int) -> str:
    """An SVG element for a page: no XML prologue, scalable, named for screen readers, coloured by the page."""
    body = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    opening, rest = body.split(">", 1)
    opening = re.sub(r'\s(?:width|height|version)="[^"]*"', "", opening)
    for placeholder, colour in _COLOURS.items():
        rest = rest.replace(placeholder, colour)
    rest = re.sub(r'\bid="(figure_1|axes_1|patch_\d+|[\w.]*_\d+)"', rf'id="p{number}-\1"', rest)
    label = f'<title id="p{number}-t">{escape(title)}</title><desc id="p{number}-d">{escape(alt)}</desc>'
    return f'{opening} role="img" aria-labelledby="p{number}-t p{number}-d">{label}{rest}'


def _shortened(name: str, limit: int = 30) -> str:
    return name if len(name) <= limit else f"…{name[-limit + 1 :]}"


def _set_name(name: str) -> str:
    return _shortened(set_name(name), 16)
