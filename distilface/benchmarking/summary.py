"""From raw samples to medians, percentiles and gains over the baseline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distilface.benchmarking.results import Gain, Latency, Spread, Throughput


def percentile(values: Sequence[float], q: float) -> float:
    """Percentile ``q`` in [0, 100], linear between neighbouring samples (Hyndman & Fan 1996, type 7)."""
    return _rounded(float(np.percentile(np.asarray(values, dtype=np.float64), q)))


def spread(values: Sequence[float]) -> Spread:
    """Median, smallest and largest of ``values``."""
    return Spread(median=percentile(values, 50), low=_rounded(min(values)), high=_rounded(max(values)))


def gain(ours: Sequence[float], baseline: Sequence[float], smaller_is_better: bool) -> Gain:
    """How many times better than the baseline, round by round, so that a disturbance of one round hits both sides."""
    pairs = list(zip(ours, baseline, strict=True))
    ratios = [theirs / mine if smaller_is_better else mine / theirs for mine, theirs in pairs]
    return Gain(**spread(ratios).model_dump())


def ratio(baseline: float | None, ours: float | None) -> float | None:
    """``baseline / ours`` for values where smaller is better; None where one is unknown."""
    return baseline / ours if baseline and ours else None


def latency(tokens: int, own_tokens: float | None, rounds: Sequence[Sequence[float]]) -> Latency:
    """Summary of the calls of all ``rounds``, in seconds, as milliseconds."""
    calls = [1000 * second for one in rounds for second in one]
    return Latency(
        tokens=tokens, own_tokens=own_tokens, samples=len(calls),
        p50=percentile(calls, 50), p90=percentile(calls, 90), p99=percentile(calls, 99),
        q1=percentile(calls, 25), q3=percentile(calls, 75),
        round_p50=tuple(percentile([1000 * second for second in one], 50) for one in rounds),
    )


def throughput(batch_tokens: int | None, texts: int, seconds: Sequence[float], threads: int | None = None,
               joules: Sequence[float] = ()) -> Throughput:
    """Sentences a second of each round, from the ``seconds`` (and ``joules``) each took for all ``texts``."""
    rates = tuple(_rounded(texts / second) for second in seconds)
    energy = spread([1000 * value / texts for value in joules]) if joules else None
    return Throughput(batch_tokens=batch_tokens, threads=threads, texts=texts, sentences_per_second=spread(rates),
                      rounds=rates, joules=energy)


def _rounded(value: float) -> float:
    """Six significant digits: more than any clock gives, and a report that people can read."""
    return float(f"{value:.6g}")
