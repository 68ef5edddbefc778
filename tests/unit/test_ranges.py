"""Streaming histograms against numpy, and the ranges that are read from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distilface.quantization.ranges import (
    BINS,
    PERCENTILES,
    RANGES,
    ChannelHistograms,
    least_entropy,
    least_error,
    minmax,
    percentile,
)

Array = NDArray[Any]


def _histograms(values: Array, chunks: int = 7) -> ChannelHistograms:
    histograms = ChannelHistograms(values.shape[1])
    for chunk in np.array_split(values.astype(np.float32), chunks):
        histograms.update(chunk)
    return histograms


def _growing() -> Array:
    """4,000 x 6 values whose spread grows along the stream and differs by channel."""
    random = np.random.default_rng(0)
    return (random.normal(size=(4000, 6)) * np.geomspace(0.01, 30, 6) * np.linspace(0.1, 3, 4000)[:, None]).astype(
        np.float32)


def test_counts_are_those_of_numpy_however_the_stream_is_cut() -> None:
    values = _growing()
    histograms = _histograms(values)
    assert (histograms.counts.sum(axis=1) == len(values)).all()
    np.testing.assert_array_equal(histograms.low, values.min(axis=0))
    np.testing.assert_array_equal(histograms.high, values.max(axis=0))
    for channel in range(6):
        width = float(histograms.width[channel])
        largest = float(np.abs(values[:, channel]).max())
        assert largest <= width < 2 * largest and np.log2(width) == int(np.log2(width))
        expected, _ = np.histogram(values[:, channel], bins=BINS, range=(-width, width))
        # Doubling moves bins in pairs and never a value across an edge; only values right on an edge may differ.
        assert np.abs(histograms.counts[channel] - expected).sum() <= 4
    np.testing.assert_array_equal(_histograms(values, 100).counts, histograms.counts)


def test_memory_does_not_grow() -> None:
    histograms = ChannelHistograms(4)
    size = histograms.counts.nbytes
    for scale in np.geomspace(1e-4, 1e4, 50):
        histograms.update(np.full((100, 4), scale, dtype=np.float32))
    assert histograms.counts.nbytes == size and histograms.counts.sum() == 50 * 100 * 4


def test_zeros_alone_are_counted() -> None:
    histograms = _histograms(np.zeros((10, 2)), 2)
    assert histograms.counts.sum() == 20
    for method in RANGES.values():
        assert all(abs(end) < 1e-5 for end in method(histograms.tensor()))


@pytest.mark.parametrize("percent", PERCENTILES)
def test_percentiles_are_those_of_numpy(percent: float) -> None:
    values = _growing()
    expected = np.percentile(values, [(100 - percent) / 2, 100 - (100 - percent) / 2])
    found = percentile(_histograms(values).tensor(), percent)
    np.testing.assert_allclose(found, expected, atol=2 * float(np.abs(values).max()) / BINS * 2)


def test_smoothing_divides_channels_after_the_fact() -> None:
    values, factors = _growing(), np.geomspace(0.02, 50, 6).astype(np.float32)
    found, expected = _histograms(values).tensor(factors), _histograms(values / factors).tensor()
    assert minmax(found) == pytest.approx(minmax(expected), rel=1e-5)
    step = found.centres[1] - found.centres[0]
    for percent in (90.0, 99.9):
        width = float(np.abs(values / factors).max()) * 2 / BINS
        assert percentile(found, percent) == pytest.approx(percentile(expected, percent), abs=width + 2 * step)


def _error(values: Array, low: float, high: float) -> float:
    steps = (high - low) / 255
    zero = np.rint(-low / steps)
    return float(np.square((np.clip(np.rint(values / steps) + zero, 0, 255) - zero) * steps - values).mean())


def test_least_error_is_near_the_best_of_a_fine_search() -> None:
    """By hand: one of 200,000 normal values lies at 8. Whole, steps of 12.4 / 255 cost 2.0e-4 a value; cut at 6, steps
    of 10.4 / 255 cost 1.4e-4 and the cut 2^2 / 200,000 = 2e-5."""
    values = np.random.default_rng(0).normal(size=(2000, 100)).astype(np.float32)
    values[0, 0] = 8
    low, high = least_error(_histograms(values).tensor())
    best = min(_error(values, float(values.min()) * a, 8.0 * b)
               for a in np.linspace(0.4, 1, 7) for b in np.linspace(0.3, 1, 15))
    assert _error(values, low, high) < 1.1 * best
    assert _error(values, low, high) < 0.9 * _error(values, float(values.min()), float(values.max()))


def test_least_entropy_keeps_an_even_spread_whole_and_cuts_off_a_far_value() -> None:
    even = np.random.default_rng(0).uniform(-1, 1, size=(20_000, 4)).astype(np.float32)
    low, high = least_entropy(_histograms(even).tensor())
    assert low == pytest.approx(-1, abs=0.05) and high == pytest.approx(1, abs=0.05)
    even[0, 0] = 20
    low, high = least_entropy(_histograms(even).tensor())
    assert high < 5 and low == pytest.approx(-1, abs=0.05)


@pytest.mark.parametrize("name", RANGES)
def test_every_range_lies_within_what_was_seen(name: str) -> None:
    values = np.abs(_growing())
    low, high = RANGES[name](_histograms(values).tensor())
    assert 0 <= low <= 0.1 and low < high <= float(values.max())
