"""One group's choice, by measured error: how strongly to smooth its activations, and the range of its 256 levels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distilface.calibration import ActivationStats
from distilface.isa import FULL_RANGE
from distilface.quantization.ranges import LEVELS, RANGES, SEARCH, Histogram, minmax
from distilface.quantization.smoothing import smoothing_factors
from distilface.quantization.weights import symmetric_int8

Array = NDArray[np.float32]

SMOOTHING = (0.5, 0.65, 0.8, 0.9)
"""Strengths that are tried beside none."""
WORTH_A_MULTIPLICATION = 0.5
"""Smoothing that can't be folded must cut the error to this fraction; to less where the product has few outputs, beside
which the multiplication weighs more."""
CLIPPING = (0.85, 0.7, 0.55, 0.4, 0.3, 0.2)
"""Fractions of the largest value, and for the first half of the least, that are tried beside the methods' ranges."""
HEADROOM = 1.2
"""Range of attention's output, in what was seen. Attention averages values; where it is focused, as on short texts of
function words, the output reaches far beyond what it does on usual sentences. Coarser steps cost next to nothing."""
SEARCH_TOKENS = 512
SKETCH = 128
"""The search compares errors of outputs projected on this many random directions (Johnson and Lindenstrauss, 1984)."""


@dataclass(frozen=True)
class Choice:
    """What the search decided for one group.

    Attributes:
        smoothing: strength of SmoothQuant; 0 is none.
        low, high: the range that UINT8 covers, after smoothing.
        factors: activations are divided by it, ``[K]``; None without smoothing.
        gains: weight rows are multiplied by it, ``[K]``; 1 in channels that the range does not cut.
        error: relative squared error of the outputs, ``|Y - Y'|^2 / |Y|^2``.
    """

    smoothing: float
    low: float
    high: float
    factors: Array | None
    gains: Array
    error: float

    @property
    def scale(self) -> float:
        return affine_uint8(self.low, self.high)[0]

    @property
    def zero_point(self) -> int:
        return affine_uint8(self.low, self.high)[1]

    def smooth(self, values: Array) -> Array:
        """Activations as they are quantized."""
        return values if self.factors is None else values / self.factors

    def sharpen(self, weights: Array) -> Array:
        """Weights to match `smooth`."""
        return weights if self.factors is None else weights * self.factors[:, None]

    def seen(self, sample: Array) -> Array:
        """Activations as the kernel reads them."""
        return fake_quantize(self.smooth(sample), self.scale, self.zero_point)


def choose(stats: ActivationStats, weights: Array, attention: bool, limit: int = FULL_RANGE,
           ranges: str = SEARCH) -> Choice:
    """Search smoothing and range for one group.

    Args:
        weights: the group's weights side by side, ``[K, N]``.
        attention: the activation is attention's output. Smoothing folds into the value weights, at no cost, and the
            search leaves `HEADROOM`.
        ranges: one of `RANGE_METHODS`; ``search`` takes the one of least error.
    """
    sample = stats.sample[:: max(1, len(stats.sample) // SEARCH_TOKENS)]
    sketch = _sketch(weights.shape[1])
    wanted = sample @ _project(weights, sketch)
    power = float(np.square(wanted, dtype=np.float64).sum()) or 1.0
    extreme = np.maximum(np.abs(stats.low), np.abs(stats.high))

    def attempts(smoothing: float) -> tuple[Histogram, Callable[[tuple[float, float]], Choice]]:
        factors = smoothing_factors(extreme, weights, smoothing) if smoothing else None
        smooth = sample if factors is None else sample / factors
        scaled = weights if factors is None else weights * factors[:, None]
        highest, lowest = smooth.max(axis=0), smooth.min(axis=0)

        def attempt(ends: tuple[float, float]) -> Choice:
            step, zero_point = affine_uint8(*ends)
            seen = fake_quantize(smooth, step, zero_point)
            cut = (highest > ends[1] + step) | (lowest < ends[0] - step)
            gains = np.ones(len(weights), dtype=np.float32)
            power_seen = np.square(seen[:, cut]).sum(axis=0).clip(min=1e-9)
            gains[cut] = (smooth[:, cut] * seen[:, cut]).sum(axis=0) / power_seen
            integers, scale = symmetric_int8(scaled * gains[:, None], axis=0, limit=limit)
            found = seen @ _project(integers.astype(np.float32) * scale, sketch)
            error = float(np.square(found - wanted, dtype=np.float64).sum()) / power
            return Choice(smoothing, *ends, factors, gains, error)

        return stats.histograms.tensor(factors), attempt

    def best(histogram: Histogram, attempt: Callable[[tuple[float, float]], Choice]) -> Choice:
        if ranges != SEARCH:
            return attempt(RANGES[ranges](histogram))
        if attention:
            return attempt((histogram.low * HEADROOM, histogram.high * HEADROOM))
        found = min(map(attempt, {method(histogram) for method in RANGES.values()}), key=_error)
        found = min([found, *(attempt((found.low, histogram.high * share)) for share in CLIPPING)], key=_error)
        lows = CLIPPING[: len(CLIPPING) // 2]
        return min([found, *(attempt((histogram.low * share, found.high)) for share in lows)], key=_error)

    # The strength is chosen at the full range, which it shapes; clipping only trims it.
    strengths = [attempts(value) for value in SMOOTHING]
    strongest = min(strengths, key=lambda item: item[1](minmax(item[0])).error)
    plain, smoothed = best(*attempts(0.0)), best(*strongest)
    inputs, outputs = weights.shape
    allowed = 1.0 if attention else WORTH_A_MULTIPLICATION * min(1.0, outputs / inputs)
    return smoothed if smoothed.error < plain.error * allowed else plain


def _sketch(outputs: int) -> Array | None:
    if outputs <= SKETCH:
        return None
    signs = np.random.default_rng(0).integers(0, 2, (outputs, SKETCH)) * 2 - 1
    return (signs / np.sqrt(SKETCH)).astype(np.float32)


def _project(weights: Array, sketch: Array | None) -> Array:
    return weights if sketch is None else weights @ sketch


def _error(choice: Choice) -> float:
    return choice.error


def affine_uint8(low: float, high: float) -> tuple[float, int]:
    """Scale and zero point of ``[low, high]`` on 0..255, with zero exactly representable."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = float(np.float32((high - low) / (LEVELS - 1))) or 1.0
    return scale, int(np.clip(np.rint(-low / scale), 0, LEVELS - 1))


def fake_quantize(values: Array, scale: float, zero_point: int) -> Array:
    """Values as they come back from UINT8."""
    steps = np.clip(np.rint(values / np.float32(scale)) + zero_point, 0, LEVELS - 1)
    return ((steps - zero_point) * np.float32(scale)).astype(np.float32)
