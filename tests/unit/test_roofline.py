"""The products a model needs, counted by hand, and what fraction of the limit a pass reaches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distilface.artifact import MANIFEST, Bundle
from distilface.benchmarking.config import BenchConfig
from distilface.benchmarking.results import Roofline
from distilface.benchmarking.roofline import Work, measure_peaks, roofline, with_rooflines, work_of
from distilface.benchmarking.subjects import Subject
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
    ("int8-static", "int8", 200.0), ("bfloat16", "bf16", 100.0)])
def test_the_fraction_by_hand(kind: str, precision: str, peak: float) -> None:
    """Two texts of 10 tokens, 10^9 multiply-adds a token, in a quarter of a second: 80 x 10^9 a second."""
    found = roofline(kind, Work(10**9, 0), [10, 10], 0.25, {"fp32": 50.0, "int8": 200.0, "bf16": 100.0})
    assert found == Roofline(precision=precision, needed=10_000, reached=80, peak=peak, fraction=80 / peak)


def test_peaks_are_measured() -> None:
    peaks = measure_peaks(threads=1)
    assert {"fp32", "int8"} <= set(peaks) <= {"fp32", "int8", "bf16"}
    assert all(0.1 < peak < 1e5 for peak in peaks.values())


def test_only_a_processor_has_a_roofline_here() -> None:
    with pytest.raises(ValueError, match="target is cuda"):
        BenchConfig(target="cuda", roofline=True)


def test_why_there_is_none(bundle_copy: Path) -> None:
    """A checkpoint, a bundle without fp32, a precision without a peak; beside what shares a bundle's weights."""
    found = with_rooflines(
        [Subject(name="fp32", model="b", folder=bundle_copy, variant="fp32", kind="float32"),
         Subject(name="torch", model="c", folder=bundle_copy, backend="torch", kind="float32"),
         Subject(name="peer", model="p", folder=None, backend="factory", kind="int8-dynamic", reference="fp32"),
         Subject(name="bf16", model="p", folder=None, backend="factory", kind="bfloat16", reference="fp32")],
        [subject(name) for name in ("fp32", "torch", "peer", "bf16")], [10, 10], {"fp32": 50.0, "int8": 200.0}, None)
    assert [item.roofline.precision if item.roofline else None for item in found] == ["fp32", None, "int8", None]
    assert found[1].notes[-1] == "no roofline: products are counted in the graph of a bundle, and this is none"
    assert found[3].notes[-1] == "no roofline: no bf16 product could be measured here"
    assert found[0].notes == ()
    (over,) = with_rooflines([Subject(name="fp32", model="b", folder=bundle_copy, variant="fp32", kind="float32")],
                             [subject("fp32")], [10, 10], {"fp32": 1e-9}, None)
    assert "which so was measured too low" in over.notes[-1]
    cut = json.loads((bundle_copy / MANIFEST).read_text(encoding="utf-8"))
    del cut["variants"]["fp32"]
    (bundle_copy / MANIFEST).write_text(json.dumps(cut), encoding="utf-8")
    (alone,) = with_rooflines([Subject(name="int8", model="b", folder=bundle_copy, variant="int8-static")],
                              [subject("int8")], [10], {"fp32": 50.0}, None)
    assert alone.roofline is None
    assert alone.notes[-1] == "no roofline: its bundle has no fp32 graph in which to count the products"


def test_the_report_shows_it() -> None:
    found = Roofline(precision="int8", needed=500, reached=90, peak=180, fraction=0.5)
    made = report(subject(), subject("minilm:int8-static", "int8-static", 2.0, 22_900_000, 0.06, 0.99, roofline=found),
                  peaks={"fp32": 60.0, "int8": 180.0})
    row = "| minilm:int8-static | int8 | 500 | 90.0 | 180 | 50% |"
    assert row in to_markdown(made) and "large products reach fp32 60.0, int8 180" in to_markdown(made)
    assert "Roofline" in to_html(made)
    assert "Roofline" not in to_markdown(report())
