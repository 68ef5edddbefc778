"""Side-by-side measurement of anything that encodes: size, start-up, memory, latency, throughput, quality.

The names are loaded on first use: a worker process imports this package too, and must not carry what it does not need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distilface.lazy import loader

if TYPE_CHECKING:
    from distilface.benchmarking.config import BenchConfig
    from distilface.benchmarking.results import BenchReport
    from distilface.benchmarking.runner import bench
    from distilface.benchmarking.subjects import Subject, find_subjects

__all__ = ["BenchConfig", "BenchReport", "Subject", "bench", "find_subjects"]

_HOME = {
    "BenchConfig": "distilface.benchmarking.config",
    "BenchReport": "distilface.benchmarking.results",
    "bench": "distilface.benchmarking.runner",
    "Subject": "distilface.benchmarking.subjects",
    "find_subjects": "distilface.benchmarking.subjects",
}

__getattr__ = loader(__name__, _HOME)
