"""From finished cells to one tidy table, and from its seeds to means with confidence intervals."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distilface.errors import require
from distilface.probing.config import ProbeConfig
from distilface.probing.grid import Cell

CONFIDENCE = 0.95
COLUMNS = ("probe", "variant", "position", "layer", "pooling", "reinitialised", "order", "size", "seed", "metric",
           "score", "seconds", "cell")


@dataclass(frozen=True)
class Summary:
    """One setting over its seeds: mean score in points, and the 95 % t-interval (None with one seed).

    Attributes:
        label: the setting in words.
        series: the line of the plot it belongs to; ``place`` is where on it, None for a line over the whole width.
    """

    label: str
    series: str
    place: int | None
    size: int | None
    mean: float
    low: float | None
    high: float | None
    seeds: int


def tidy(config: ProbeConfig, cells: Iterable[tuple[Cell, dict[str, Any]]]) -> list[dict[str, Any]]:
    """One row for each score of each cell, with `COLUMNS`; lists of layers are words, absent values None.

    Args:
        cells: each with what `CellStore` holds of it.
    """
    rows = []
    for cell, stored in cells:
        known = {"probe": config.probe, "variant": cell.variant, "position": cell.position, "size": cell.size,
                 "seed": cell.seed, "reinitialised": " ".join(map(str, cell.reinitialised)),
                 "order": None if cell.order is None else " ".join(map(str, cell.order)), "cell": cell.key,
                 "seconds": stored["seconds"]}
        rows += [{column: (known | score).get(column) for column in COLUMNS} for score in stored["scores"]]
    return rows


def write_tables(folder: Path, rows: Sequence[dict[str, Any]]) -> None:
    """results.csv, and results.parquet where pyarrow is installed."""
    with (folder / "results.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        return
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), str(folder / "results.parquet"))


def summarise(config: ProbeConfig, rows: Sequence[dict[str, Any]]) -> list[Summary]:
    """The chosen metric by setting, in the order the cells have; an undefined score is left out."""
    groups: dict[tuple[str, str, int | None, int | None], list[float]] = {}
    for row in rows:
        if row["metric"] == config.metric and row["score"] is not None:
            groups.setdefault((*_setting(config, row), row["size"]), []).append(row["score"])
    return [Summary(label, series, place, size, *interval(scores), len(scores))
            for (label, series, place, size), scores in groups.items()]


def interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Mean, and the ends of its 95 % interval by Student's t; None with one value."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, None, None
    stats: Any = require("scipy.stats", "train", "confidence intervals")
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    return mean, float(mean - half), float(mean + half)


def _setting(config: ProbeConfig, row: dict[str, Any]) -> tuple[str, str, int | None]:
    """Words, series and place of a row's setting."""
    variant, position = row["variant"], row["position"]
    if variant == "untrained":
        return f"layer {row['layer']}, {row['pooling']}", row["pooling"], row["layer"]
    if variant == "progressive":
        return f"first {position} layers kept", "first layers kept", position
    if variant in ("reinitialised", "kept"):
        last = position + config.grid.window - 1
        window = f"layer {position}" if last == position else f"layers {position}-{last}"
        what = "re-initialised" if variant == "reinitialised" else "kept alone"
        return f"{window} {what}", f"window {what}", position
    if variant == "permuted":
        return f"order {row['order']}", "permuted", position
    words = {"all": "all layers kept", "none": "all layers re-initialised", "original": "original order"}[variant]
    return words, words, None
