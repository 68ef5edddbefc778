"""The recipe against sentence-transformers' trainer: how runs become ratios."""

from __future__ import annotations

from typing import Any

import pytest

import benchmarks.tables
from benchmarks.training_speed import summary


def test_ratios_are_of_medians_within_one_precision_and_to_the_peers_fp32() -> None:
    speeds = {("sentence-transformers", "fp32"): (10, 30, 20), ("distilface", "fp32"): (50, 44, 10),
              ("sentence-transformers", "bf16"): (40, 40, 50), ("distilface", "bf16"): (100, 80, 120)}
    runs = [{"side": side, "precision": precision, "sentences_per_second": speed, "dev_before": 50, "dev_after": 60 + i,
             "prepare_seconds": 1} for (side, precision), values in speeds.items() for i, speed in enumerate(values)]
    found = {(row["side"], row["precision"]): (row["sentences_per_second"], row["to_peer"], row["to_peer_fp32"])
             for row in summary(runs)}
    assert found == {("sentence-transformers", "fp32"): (20, 1, 1), ("distilface", "fp32"): (44, 2.2, 2.2),
                     ("sentence-transformers", "bf16"): (40, 1, 2), ("distilface", "bf16"): (100, 2.5, 5)}
    assert summary(runs)[0]["dev_after"] == 61


def test_table(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"side": "distilface", "precision": "fp32", "sentences_per_second": 81.26, "to_peer": 2.055,
           "to_peer_fp32": 2.055, "dev_before": 68.3, "dev_after": 71.25}
    result: dict[str, Any] = {
        "command": "python -m benchmarks.training_speed", "steps": 60, "rounds": 3, "rows": [row],
        "machine": {"cpu": "Some CPU", "cores_usable": 2, "instruction_sets": ["avx2"],
                    "libraries": {"torch": "2.13.0", "sentence-transformers": "6.2.0"}}}
    monkeypatch.setattr(benchmarks.tables, "read_result", lambda name: result)
    table = benchmarks.tables.training_speed()
    assert "| distilface | fp32 | 81.3 | **2.06x** | 2.06x | 68.30 -> 71.25 |" in table
    assert "Some CPU, 2 cores, avx2" in table and "60 steps, medians of 3" in table
