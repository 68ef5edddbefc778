"""The scaling recipe: what it takes from a report, its table, and what streams texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import benchmarks.common
import benchmarks.tables
from benchmarks.scaling import of_models, of_one_model, streamed
from distilface.benchmarking import summary
from tests.synthetic_report import report, subject


def test_rows_by_length_batch_and_threads() -> None:
    rates = tuple(summary.throughput(batch, 100, [100 / rate], threads) for batch, threads, rate in (
        (256, None, 800), (1024, None, 700), (256, 1, 400), (1024, 1, 500)))
    rows = of_one_model(report(subject(throughput=rates)))
    assert [row["value"] for row in rows if row["axis"] == "length"] == [8, 14, 16, 32, 64, 128, 256]
    assert [(row["value"], row["sentences_per_second"]) for row in rows if row["axis"] == "batch"] == [
        (256, 800), (1024, 700)]
    # Of each number of threads the better batch size; the report's own number is 2.
    assert [(row["value"], row["sentences_per_second"]) for row in rows if row["axis"] == "threads"] == [
        (1, 500), (2, 800)]


def test_a_row_a_model() -> None:
    small, large = of_models(report(subject("a", size=20_000_000), subject("b", size=90_400_000)), "layers", [1, 6])
    assert (small["value"], small["megabytes"], large["megabytes"]) == (1, 20.0, 90.4)
    assert large["peak_megabytes"] == pytest.approx(120 + 1.2 * 90.4)


def test_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (benchmarks.common, benchmarks.tables):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    assert benchmarks.tables.scaling() == ""
    rows = [{"axis": "length", "model": "fp32", "value": value, "p50_ms": value / 8} for value in (8, 256)]
    rows += [{"axis": "texts", "model": "random", "value": value, "sentences_per_second": 1234.5,
              "peak_megabytes": 99.6} for value in (1000, 1_000_000)]
    (tmp_path / "scaling.json").write_text(json.dumps({"rows": rows, "command": "made so"}), encoding="utf-8")
    table = benchmarks.tables.scaling().splitlines()
    assert table[2:] == ["| tokens of a text | fp32 | p50 at batch 1, ms | 8: 1.00, 256: 32.00 |",
                         "| texts, streamed | random | sentences/s | 1,000: 1,234, 1,000,000: 1,234 |",
                         "| texts, streamed | random | peak memory, MB | 1,000: 100, 1,000,000: 100 |", "",
                         "Made by `made so`."]


def test_texts_are_streamed_once(tiny_bundle: Path, tmp_path: Path) -> None:
    row = streamed(tmp_path, tiny_bundle, 40)
    assert row["value"] == 40 and row["sentences_per_second"] > 0
    assert 20 < row["peak_megabytes"] < 2000
    assert not (tmp_path / "vectors.npy").exists()
    assert streamed(tmp_path, tiny_bundle, 40) == row  # kept
