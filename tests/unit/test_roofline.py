"""The products a model needs, counted by hand, and what fraction of the limit a pass reaches."""

from __future__ import annotations

from pathlib import Path

import pytest

from distilface.artifact import Bundle
from distilface.benchmarking.config import BenchConfig
from distilface.benchmarking.results import Roofline
from distilface.benchmarking.roofline import Work, measure_peaks, roofline, work_of
from distilface.report.markdown import to_markdown
from distilface.report.page import to_html
from tests.synthetic_report import report, subject


def test_multiply_adds_by_hand(tiny_bundle: Path) -> None:
    """Two layers, 32 wide, FFN 128: 4 x 32 x 32 + 2 x 32 x 128 weights each; attention 2 x 32 a pair of tokens each."""
    work = work_of(Bundle.open(tiny_bundle).graph("fp32"), layers=2, hidden_size=32)
    assert work == Work(linear=2 * (4 * 32 * 32 + 2 * 32 * 128), quadratic=2 * 2 * 32)
    assert work.of([10, 3]) == 13 * 24576 + (100 + 9) * 128


@pytest.mark.parametrize(("kind", "precision", "peak"), [
    ("float32", "fp32", 50.0), ("weight-only", "fp32", 50.0), ("float16", "fp32", 50.0),
    ("int8-static", "int8", 200.0)])
def test_the_fraction_by_hand(kind: str, precision: str, peak: float) -> None:
    """Two texts of 10 tokens, 10^9 multiply-adds a token, in a quarter of a second: 80 x 10^9 a second."""
    found = roofline(kind, Work(10**9, 0), [10, 10], 0.25, {"fp32": 50.0, "int8": 200.0})
    assert found == Roofline(precision=precision, needed=10_000, reached=80, peak=peak, fraction=80 / peak)


def test_peaks_are_measured() -> None:
    peaks = measure_peaks(threads=1)
    assert {"fp32", "int8"} <= set(peaks) <= {"fp32", "int8", "bf16"}
    assert all(0.1 < peak < 1e5 for peak in peaks.values())


def test_only_a_processor_has_a_roofline_here() -> None:
    with pytest.raises(ValueError, match="target is cuda"):
        BenchConfig(target="cuda", roofline=True)


def test_the_report_shows_it() -> None:
    found = Roofline(precision="int8", needed=500, reached=90, peak=180, fraction=0.5)
    made = report(subject(), subject("minilm:int8-static", "int8-static", 2.0, 22_900_000, 0.06, 0.99, roofline=found),
                  peaks={"fp32": 60.0, "int8": 180.0})
    row = "| minilm:int8-static | int8 | 500 | 90.0 | 180 | 50% |"
    assert row in to_markdown(made) and "large products reach fp32 60.0, int8 180" in to_markdown(made)
    assert "Roofline" in to_html(made)
    assert "Roofline" not in to_markdown(report())
