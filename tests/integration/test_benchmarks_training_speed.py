"""Both sides of the training-speed recipe train a tiny model on tiny data."""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

import pytest

from benchmarks import training_speed
from tests.tiny import CORPUS, tiny_checkpoint

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("side", list(training_speed.SIDES))
def test_each_side_trains_and_is_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: str) -> None:
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("datasets")
    monkeypatch.setattr(training_speed, "BATCH", 8)
    monkeypatch.setattr(training_speed, "RATE", 1e-2)
    model = tiny_checkpoint(tmp_path / "model", layers=2)
    lines = [f"{CORPUS[index % 10]} {index}" for index in range(40)]
    (tmp_path / "sentences.txt.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    dev = tmp_path / "senteval" / "STS" / "STSBenchmark" / "sts-dev.csv"
    dev.parent.mkdir(parents=True)
    rows = [f"genre\tfile\tyear\t{index}\t{index % 5}\t{CORPUS[index % 10]}\t{CORPUS[index * index % 10]} now"
            for index in range(12)]
    dev.write_text("\n".join(rows) + "\n")
    arguments = argparse.Namespace(run=side, model=str(model), steps=4, precision="fp32", seed=1)
    found = training_speed._run(arguments, tmp_path)
    assert found["sentences_per_second"] > 0 and -100 <= found["dev_after"] <= 100
    assert found["dev_before"] != found["dev_after"]
