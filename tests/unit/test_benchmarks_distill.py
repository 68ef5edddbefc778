"""The distillation recipe: what training text is left beside the held-out captions, and its table."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import benchmarks.common
import benchmarks.tables
from benchmarks.distill import RUNS, configured, mix, parser
from benchmarks.held_out import HeldOut
from benchmarks.train_mlm import spared
from distilface.errors import UserError


@pytest.fixture
def data(tmp_path: Path) -> Path:
    files = {
        "caption_groups.tsv.gz": ["A dog runs.\tA dog is running.", "A man sings.\tTwo boys!",
                                  "A cat.\tThe cat sleeps.", "Two boys\tBoys on a hill"],
        "nli_triplets.tsv.gz": ["two BOYS.\tThere are boys.\tNobody.", "A cat.\tAn animal.\tA dog."],
        "sentences.txt.gz": ["Money is tight.", "boys on a hill.", "", "Rain fell.", "Never read."],
    }
    for name, lines in files.items():
        (tmp_path / name).write_bytes(gzip.compress("\n".join(lines).encode()))
    return tmp_path


def test_no_training_row_holds_a_held_out_caption(data: Path, tmp_path: Path) -> None:
    held = HeldOut(data, groups=1)
    assert held.groups == [["Two boys", "Boys on a hill"]]
    assert held.training == [["A dog runs.", "A dog is running."], ["A cat.", "The cat sleeps."]]
    (tmp_path / "work").mkdir()
    rows = {name: spared(data, name, held, tmp_path / "work").read_text().splitlines() for name in (
        "caption_groups.tsv.gz", "nli_triplets.tsv.gz", "sentences.txt.gz")}
    assert rows == {"caption_groups.tsv.gz": ["A dog runs.\tA dog is running.", "A cat.\tThe cat sleeps."],
                    "nli_triplets.tsv.gz": ["A cat.\tAn animal.\tA dog."],
                    "sentences.txt.gz": ["Money is tight.", "Rain fell.", "Never read."]}
    mixed = mix(data, held, sentences=4, captions=3)
    assert sorted(mixed) == ["A cat.", "A dog is running.", "A dog runs.", "Money is tight.", "Rain fell."]
    assert mix(data, held, sentences=4, captions=3) == mixed


@pytest.mark.parametrize("run", list(RUNS))
def test_every_recipe_is_a_configuration(run: str, tmp_path: Path) -> None:
    given = ["--data", str(tmp_path), "--models", str(tmp_path), "--run", run, "--steps", "20", "--set",
             "loss.similarity=0.5", *(["--teacher", "v.npy"] if run == "mpnet" else [])]
    config = configured(parser().parse_args(given), RUNS[run], tmp_path, tmp_path / "text.txt")
    assert (config.train.max_steps, config.eval.every_steps, config.loss.similarity) == (20, 2, 0.5)
    assert (config.teacher.vectors == "v.npy") is (run == "mpnet")
    if run in ("mlm", "mpnet"):
        with pytest.raises(UserError, match=f"run {run} needs --"):
            configured(parser().parse_args(["--data", "d", "--run", run]), RUNS[run], tmp_path, tmp_path / "text.txt")


def test_the_table_shows_start_student_and_teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (benchmarks.common, benchmarks.tables):
        monkeypatch.setattr(module, "RESULTS", tmp_path)
    assert len(benchmarks.tables.distillation().splitlines()) == 2

    def scores(avg7: float) -> dict[str, Any]:
        return {"avg7": avg7, "recall@1": avg7 / 2, "recall@10": avg7 + 1}

    result = {"command": "the command", "layers": 2, "parameters": 15_300_000, "steps": 40, "minutes": 3.4,
              "scores": {"start": scores(60), "student": scores(70), "teacher": scores(80)}}
    (tmp_path / "distill_layers2.json").write_text(json.dumps(result))
    lines = benchmarks.tables.distillation().splitlines()
    assert lines[2] == ("| layers2 | 2 | 15.3 M | 60.00 -> **70.00** (80.00) | 30.00 -> **35.00** (40.00) | "
                        "61.00 -> **71.00** (81.00) | - | - | - | 40 | 3 |")
    result["scores"] |= {"int8-static": scores(69.5)}
    result["int8-static"] = {"size": 15_640_000, "times_as_fast": 2.804}
    (tmp_path / "distill_layers2.json").write_text(json.dumps(result))
    assert "(81.00) | 69.50 | 15.6 | 2.80x | 40 | 3 |" in benchmarks.tables.distillation()
    assert "`the command`" in lines[-1]
