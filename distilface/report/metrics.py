"""The numbers that comparisons and rules speak of, by one short name each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from distilface.benchmarking.results import BenchReport, SubjectResult
from distilface.report.text import MEGABYTE

Unit = Literal["MB", "ms", "/s", "points", "cosine"]


@dataclass(frozen=True)
class Metric:
    """One number of a subject, in ``unit``; ``is_time`` numbers can't be compared between machines."""

    name: str
    label: str
    unit: Unit
    value: Callable[[BenchReport, SubjectResult, int | None], float | None]
    smaller_is_better: bool = True
    is_time: bool = False
    takes_tokens: bool = False
    needs: str = ""


def _megabytes(size: int | None) -> float | None:
    return None if size is None else size / MEGABYTE


def _latency(quantile: str) -> Callable[[BenchReport, SubjectResult, int | None], float | None]:
    def value(report: BenchReport, result: SubjectResult, tokens: int | None) -> float | None:
        wanted = report.short_tokens if tokens is None else tokens
        return next((float(getattr(row, quantile)) for row in result.latency if row.tokens == wanted), None)

    return value


def _drop(report: BenchReport, result: SubjectResult, tokens: int | None) -> float | None:
    return None if result.sts is None or result.sts.change is None else -result.sts.change


_ALL = (
    Metric("size", "size on disk", "MB", lambda report, r, n: _megabytes(r.size_bytes)),
    Metric("zip", "size, zipped", "MB", lambda report, r, n: _megabytes(r.zip_bytes)),
    Metric("rss", "peak memory", "MB", lambda report, r, n: _megabytes(r.peak_rss_bytes)),
    Metric("load", "load time", "ms", lambda report, r, n: r.load_ms.median, is_time=True),
    Metric("first", "first vector", "ms", lambda report, r, n: r.first_vector_ms.median, is_time=True),
    *(Metric(name, f"{name} at batch 1", "ms", _latency(name), is_time=True, takes_tokens=True,
             needs="that length (--set lengths=[N])") for name in ("p50", "p90", "p99")),
    Metric("throughput", "throughput", "/s", lambda report, r, n: r.best_throughput.sentences_per_second.median,
           smaller_is_better=False, is_time=True),
    Metric("cosine", "mean cosine to fp32", "cosine", lambda report, r, n: r.cosine.mean if r.cosine else None,
           smaller_is_better=False, needs="a bundle with its fp32 variant"),
    Metric("min_cosine", "lowest cosine to fp32", "cosine", lambda report, r, n: r.cosine.minimum if r.cosine else None,
           smaller_is_better=False, needs="a bundle with its fp32 variant"),
    Metric("batch", "batch dependence", "cosine", lambda report, r, n: r.batch_dependence, smaller_is_better=False),
    Metric("spearman", "Spearman", "points", lambda report, r, n: r.sts.average if r.sts else None,
           smaller_is_better=False, needs="--sts FOLDER"),
    Metric("recall", "recall@1", "points", lambda report, r, n: r.retrieval.recall1 if r.retrieval else None,
           smaller_is_better=False, needs="--groups FILE"),
    Metric("drop", "Spearman lost to the baseline", "points", _drop, needs="--sts FOLDER and an fp32 subject"),
)
METRICS = {metric.name: metric for metric in _ALL}
