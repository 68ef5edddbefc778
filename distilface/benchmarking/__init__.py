"""Side-by-side measurement of anything that encodes: size, start-up, memory, latency, throughput, quality.

The names are loaded on first use: a worker process imports this package too, and must not carry what it does not need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distilface.benchmarking.config import BenchConfig
    from distilface.benchmarking.results import BenchReport
    from distilface.benchmarking.runner import bench
    from distilface.benchmarking.subjects import Subject, find_subjects

__all__ = ["BenchConfig", "BenchReport", "Subject", "bench", "find_subjects"]

_HOME = {"BenchConfig": "config", "BenchReport": "results", "bench": "runner", "Subject": "subjects",
         "find_subjects": "subjects"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'distilface.benchmarking' has no attribute {name!r}")
    return getattr(import_module(f"distilface.benchmarking.{_HOME[name]}"), name)
