"""Activation ranges from streaming histograms: minimum and maximum, percentiles, least squared error, least entropy.

A histogram is kept for each channel, so that smoothing, which scales channels, can be applied afterwards. Its width
doubles when a value falls outside it, by adding neighbouring bins in pairs: memory never grows with what was seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Counts = NDArray[np.int64]

BINS = 256
"""Bins of a channel, spread evenly over ``[-width, width]``."""
FINE_BINS = 2048
"""Bins of a whole tensor, over its own range."""
LEVELS = 256
PERCENTILES = (99.9, 99.99, 99.999)
FRACTIONS = tuple(np.round(np.geomspace(1.0, 0.05, 24), 4).tolist())
"""Shares of the full range that the error and entropy searches try at each end."""


class ChannelHistograms:
    """Counts of ``[tokens, channels]`` values, channel by channel.

    Attributes:
        low, high: exact extremes, ``[channels]``.
        width: the bins of a channel cover ``[-width, width]``, ``[channels]``, powers of two.
    """

    def __init__(self, channels: int) -> None:
        self.low = np.full(channels, np.inf, dtype=np.float32)
        self.high = np.full(channels, -np.inf, dtype=np.float32)
        self.width = np.full(channels, 2.0**-20, dtype=np.float32)
        self.counts = np.zeros((channels, BINS), dtype=np.int32)

    def update(self, values: Array) -> None:
        """Count ``[n, channels]`` finite values."""
        self.low = np.minimum(self.low, values.min(axis=0))
        self.high = np.maximum(self.high, values.max(axis=0))
        self._widen(np.maximum(np.abs(self.low), np.abs(self.high)))
        bins = ((values / self.width + 1) * (BINS / 2)).astype(np.int32)
        np.clip(bins, 0, BINS - 1, out=bins)
        bins += np.arange(values.shape[1], dtype=np.int32) * BINS
        counts = np.bincount(bins.reshape(-1), minlength=self.counts.size)
        self.counts += counts.reshape(self.counts.shape).astype(np.int32)

    def _widen(self, largest: Array) -> None:
        narrow = self.width < largest
        empty = narrow & (self.counts.sum(axis=1) == 0)
        self.width[empty] = 2 ** np.ceil(np.log2(largest[empty]))
        while (narrow := self.width < largest).any():
            pairs = self.counts[narrow].reshape(-1, BINS // 2, 2).sum(axis=2)
            self.counts[narrow] = np.pad(pairs, ((0, 0), (BINS // 4, BINS // 4)))
            self.width[narrow] *= 2

    def tensor(self, factors: Array | None = None) -> Histogram:
        """The histogram of all channels together, each divided by its factor."""
        scale = np.ones(len(self.low), dtype=np.float32) if factors is None else 1 / factors
        low, high = float((self.low * scale).min()), float((self.high * scale).max())
        edges = np.linspace(low, max(high, low + 1e-6), FINE_BINS + 1)
        unit = (np.arange(BINS) + 0.5) * (2 / BINS) - 1
        used = self.counts > 0
        centres = (unit[None, :] * (self.width * scale)[:, None])[used]
        counts, _ = np.histogram(np.clip(centres, edges[0], edges[-1]), edges, weights=self.counts[used])
        return Histogram(low, high, (edges[:-1] + edges[1:]) / 2, counts.astype(np.int64))


@dataclass(frozen=True)
class Histogram:
    """One tensor: exact extremes, bin centres (ascending) and counts."""

    low: float
    high: float
    centres: NDArray[np.float64]
    counts: Counts


def minmax(histogram: Histogram) -> tuple[float, float]:
    """Everything that was seen."""
    return histogram.low, histogram.high


def percentile(histogram: Histogram, percent: float) -> tuple[float, float]:
    """The range that holds ``percent`` of all values, as much cut off below as above."""
    share = np.cumsum(histogram.counts) / max(1, histogram.counts.sum())
    tail = (100 - percent) / 200
    first, last = np.searchsorted(share, tail, side="right"), np.searchsorted(share, 1 - tail, side="left")
    ends = np.minimum([first, last], len(share) - 1)
    return float(histogram.centres[ends[0]]), float(histogram.centres[ends[1]])


def least_error(histogram: Histogram) -> tuple[float, float]:
    """The range with the least mean squared error: steps of ``d`` cost ``d^2 / 12`` inside, clipping the rest."""
    values, counts = histogram.centres, histogram.counts

    def cost(low: float, high: float) -> float:
        beyond = np.maximum(values - high, 0) + np.minimum(values - low, 0)
        inside = counts[beyond == 0].sum()
        return float((counts * beyond**2).sum() + inside * ((high - low) / (LEVELS - 1)) ** 2 / 12)

    return _search(histogram, cost)


def least_entropy(histogram: Histogram) -> tuple[float, float]:
    """The range whose 256 levels lose least of the distribution (Kullback-Leibler divergence; Migacz, GTC 2017)."""
    values, counts = histogram.centres, histogram.counts.astype(np.float64)

    def cost(low: float, high: float) -> float:
        level = np.clip(np.rint((values - low) / max(high - low, 1e-12) * (LEVELS - 1)), 0, LEVELS - 1).astype(int)
        inside = (values >= low) & (values <= high)
        if not counts[inside].any():
            return float("inf")
        wanted = np.where(inside, counts, 0)
        first, last = np.flatnonzero(inside)[[0, -1]]
        wanted[first] += counts[:first].sum()
        wanted[last] += counts[last + 1 :].sum()
        # A level spreads its count evenly over the bins that hold something.
        held = inside & (counts > 0)
        total = np.bincount(level[held], weights=counts[held], minlength=LEVELS)
        members = np.bincount(level[held], minlength=LEVELS)
        kept = np.where(held, total[level] / np.maximum(members[level], 1), 0)
        p, q = wanted / wanted.sum(), kept / kept.sum()
        both = (p > 0) & (q > 0)
        return float((p[both] * np.log(p[both] / q[both])).sum() + 50 * p[(p > 0) & (q == 0)].sum())

    return _search(histogram, cost)


def _search(histogram: Histogram, cost: Callable[[float, float], float]) -> tuple[float, float]:
    """Shrink both ends together, then each alone, to the least cost."""
    low, high = min(histogram.low, 0.0), max(histogram.high, 0.0)
    best = min(((share, share) for share in FRACTIONS), key=lambda ends: cost(low * ends[0], high * ends[1]))
    best = min(((share, best[1]) for share in FRACTIONS), key=lambda ends: cost(low * ends[0], high * ends[1]))
    best = min(((best[0], share) for share in FRACTIONS), key=lambda ends: cost(low * ends[0], high * ends[1]))
    return low * best[0], high * best[1]


RANGES: dict[str, Callable[[Histogram], tuple[float, float]]] = {
    "minmax": minmax, "mse": least_error, "entropy": least_entropy,
    **{f"percentile{percent:g}": partial(percentile, percent=percent) for percent in PERCENTILES},
}
"""Every way to a range, by name."""
SEARCH = "search"
RANGE_METHODS = (SEARCH, *RANGES)
"""What `choice.choose` takes: ``search`` tries all of them and more, and keeps the one of least output error."""
