"""The plots of a probe, each as PNG and SVG: scores by setting with confidence bands, and what each layer is worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from distilface.probing.config import ProbeConfig
from distilface.probing.ranking import RankedLayer
from distilface.probing.results import Summary
from distilface.report.figure import DPI, PALETTE, style

_METRICS = {"spearman": "STS Spearman x 100", "accuracy": "accuracy, %", "matthews": "Matthews correlation x 100"}
_PANEL = (5.4, 4.2)  # inches


def draw(config: ProbeConfig, summaries: Sequence[Summary], ranked: Sequence[RankedLayer], folder: Path) -> None:
    """Write scores.png, scores.svg, ranking.png and ranking.svg."""
    by_size: dict[int | None, list[Summary]] = {}
    for item in summaries:
        by_size.setdefault(item.size, []).append(item)
    if config.probe in ("progressive", "layerwise"):
        _save(folder, "scores", 1, lambda axes: _lines(axes[0], config, summaries))
    else:
        panel = _windows if config.probe == "localized" else _orders

        def panels(axes: Sequence[Any]) -> None:
            for place, (size, items) in zip(axes, by_size.items(), strict=True):
                panel(place, config, items)
                if size is not None:
                    place.set_title(f"{size:,} training examples", loc="left", fontsize=11)

        _save(folder, "scores", len(by_size), panels)
    _save(folder, "ranking", 1, lambda axes: _ranking(axes[0], config, ranked))


def _lines(axes: Any, config: ProbeConfig, summaries: Sequence[Summary]) -> None:
    """One line for each pooling, or for each number of training examples."""
    lines: dict[str, list[Summary]] = {}
    for item in summaries:
        name = item.series if config.probe == "layerwise" else "" if item.size is None else f"{item.size:,} examples"
        lines.setdefault(name, []).append(item)
    for index, (name, items) in enumerate(lines.items()):
        _band(axes, items, PALETTE[index % len(PALETTE)], name)
    axes.set_xticks(sorted({item.place for item in summaries if item.place is not None}))
    axes.set_xlabel("layer (0: embeddings)" if config.probe == "layerwise" else "first layers kept, the others "
                    "re-initialised")
    _finish(axes, config)


def _windows(axes: Any, config: ProbeConfig, summaries: Sequence[Summary]) -> None:
    width = config.grid.window
    series: dict[str, list[Summary]] = {}
    for item in summaries:
        series.setdefault(item.series, []).append(item)
    for index, (name, items) in enumerate(series.items()):
        colour = PALETTE[index % len(PALETTE)]
        if items[0].place is None:
            _level(axes, items[0], colour)
        else:
            _band(axes, items, colour, name)
    places = sorted({item.place for item in summaries if item.place is not None})
    axes.set_xticks(places, [str(first) if width == 1 else f"{first}-{first + width - 1}" for first in places])
    axes.set_xlabel("window of layers")
    _finish(axes, config)


def _orders(axes: Any, config: ProbeConfig, summaries: Sequence[Summary]) -> None:
    original = next(item for item in summaries if item.place is None)
    orders = sorted((item for item in summaries if item.place is not None), key=lambda item: -item.mean)
    _level(axes, original, PALETTE[0])
    below = [0.0 if item.low is None else item.mean - item.low for item in orders]
    above = [0.0 if item.high is None else item.high - item.mean for item in orders]
    axes.errorbar(range(len(orders)), [item.mean for item in orders], yerr=(below, above), fmt="o", color=PALETTE[1],
                  capsize=3, label="permuted")
    axes.set_xticks(range(len(orders)), [item.label.removeprefix("order ") for item in orders], rotation=90)
    axes.set_xlabel("order of the layers, best first")
    _finish(axes, config)


def _ranking(axes: Any, config: ProbeConfig, ranked: Sequence[RankedLayer]) -> None:
    ordered = sorted(ranked, key=lambda item: item.layer)
    spans = ([0.0 if item.low is None else item.value - item.low for item in ordered],
             [0.0 if item.high is None else item.high - item.value for item in ordered])
    axes.bar([item.layer for item in ordered], [item.value for item in ordered], width=0.62, color=PALETTE[0],
             yerr=spans if any(map(any, spans)) else None, error_kw={"capsize": 3})
    axes.axhline(0, color="#5b6875", linewidth=1)
    axes.set_xticks([item.layer for item in ordered])
    axes.grid(axis="x", visible=False)
    axes.set_xlabel("layer")
    worth = {"permutation": "lost by moving it one place", "layerwise": "added to the layer below"}
    axes.set_ylabel(f"{_METRICS[config.metric]}:\n{worth.get(config.probe, 'worth of its pre-trained weights')}")


def _band(axes: Any, items: Sequence[Summary], colour: str, label: str) -> None:
    items = sorted(items, key=lambda item: item.place or 0)
    places = [item.place for item in items]
    axes.plot(places, [item.mean for item in items], color=colour, marker="o", markersize=4, linewidth=1.8, label=label)
    if all(item.low is not None for item in items):
        axes.fill_between(places, [item.low for item in items], [item.high for item in items], color=colour, alpha=0.18,
                          linewidth=0)


def _level(axes: Any, item: Summary, colour: str) -> None:
    axes.axhline(item.mean, color=colour, linewidth=1.4, linestyle="--", label=item.label)
    if item.low is not None:
        axes.axhspan(item.low, item.high, color=colour, alpha=0.12, linewidth=0)


def _finish(axes: Any, config: ProbeConfig) -> None:
    axes.set_ylabel(_METRICS[config.metric])
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -102), min(high, 102))  # the interval of two seeds may reach beyond what a score can be


def _save(folder: Path, name: str, panels: int, paint: Callable[[Sequence[Any]], None]) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**style(), "svg.hashsalt": "distilface-probe"}):
        figure = Figure(figsize=(_PANEL[0] * panels, _PANEL[1]), layout="constrained")
        axes = figure.subplots(1, panels, squeeze=False, sharey=True)[0]
        paint(axes)
        handles, labels = axes[0].get_legend_handles_labels()
        if any(labels):
            figure.legend(handles, labels, loc="outside lower center", ncols=2 if panels == 1 else 4)
        figure.savefig(folder / f"{name}.png", dpi=DPI)
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
