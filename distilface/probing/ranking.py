"""From a probe's scores to the layers in order of worth, in the format that `distilface shrink --ranking` reads.

Every fine-tuning probe is read by one additive model, ``score = c + sum_j value_j * x_j`` over the settings, fitted by
least squares; of all best fits the one with the smallest values. ``x_j`` is 1 where layer ``j`` kept its pre-trained
weights and 0 where it was re-initialised, so ``value_j`` is what keeping it is worth in points. For permutations
``x_j`` is minus the number of places the layer was moved, so ``value_j`` is what moving it by one place costs. Hence

- ``progressive``: the value of layer ``j`` is exactly score(first j + 1 kept) - score(first j kept);
- ``localized``: with windows of one layer and no inverse, exactly what re-initialising the layer loses; with wider
  windows, what a window loses is shared out so that all windows are explained as well as can be, and the inverse runs
  count as much;
- ``layerwise``, which trains nothing: what the layer adds to the score of the layer below it, with the pooling of the
  model (mean, unless that is cls or max).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distilface.probing.config import ProbeConfig
from distilface.probing.results import interval


@dataclass(frozen=True)
class RankedLayer:
    """What a layer is worth, in points, with the 95 % interval over seeds (None with one seed)."""

    layer: int
    value: float
    low: float | None
    high: float | None


def rank(config: ProbeConfig, rows: Sequence[dict[str, Any]], layers: int, pooling: str) -> list[RankedLayer]:
    """The layers from most to least worth keeping; of equal ones the lower first.

    Args:
        rows: of `distilface.probing.results.tidy`.
        pooling: the model's.
    """
    values = _gains(rows, layers, pooling) if config.probe == "layerwise" else _values_by_seed(config, rows, layers)
    ranked = [RankedLayer(layer, *interval(column)) for layer, column in enumerate(values.T.tolist())]
    return sorted(ranked, key=lambda item: -item.value)


def additive_values(design: ArrayLike, scores: ArrayLike) -> NDArray[np.float64]:
    """The values ``[layers]`` of the additive model; ``design`` ``[settings, layers]``, ``scores`` ``[settings]``."""
    x, y = np.asarray(design, dtype=np.float64), np.asarray(scores, dtype=np.float64)
    values: NDArray[np.float64] = np.linalg.lstsq(x - x.mean(0), y - y.mean(), rcond=None)[0]
    return values.round(10)  # so that equal layers tie


def _values_by_seed(config: ProbeConfig, rows: Sequence[dict[str, Any]], layers: int) -> NDArray[np.float64]:
    """``[seeds, layers]``; a setting's score is its mean over the sizes, each of which has the same settings."""
    scores: dict[int, dict[tuple[float, ...], list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["metric"] == config.metric:
            scores[row["seed"]][_design(row, layers)].append(row["score"])
    return np.array([additive_values(list(found), [np.mean(items) for items in found.values()])
                     for found in scores.values()])


def _design(row: dict[str, Any], layers: int) -> tuple[float, ...]:
    if row["order"] is not None:
        places = {int(layer): place for place, layer in enumerate(row["order"].split())}
        return tuple(-abs(places[layer] - layer) for layer in range(layers))
    lost = set(map(int, row["reinitialised"].split()))
    return tuple(0.0 if layer in lost else 1.0 for layer in range(layers))


def _gains(rows: Sequence[dict[str, Any]], layers: int, pooling: str) -> NDArray[np.float64]:
    """``[1, layers]``; an undefined score, that of vectors which are all the same, counts as 0."""
    kind = pooling.partition("_")[0]
    wanted = kind if kind in ("cls", "max") else "mean"
    scores = {row["layer"]: row["score"] or 0.0 for row in rows if row["pooling"] == wanted}
    return np.array([[scores[layer + 1] - scores[layer] for layer in range(layers)]])
