"""The model card: scores that were measured are in its table and in the metadata that hubs read."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from distilface.artifact import Bundle
from distilface.cli import run
from distilface.errors import UserError
from distilface.modelcard import record_scores
from distilface.verification import verify


def metadata(folder: Path) -> dict[str, object]:
    return dict(yaml.safe_load((folder / "README.md").read_text(encoding="utf-8").split("---\n")[1]))


def test_recorded_scores_are_in_the_table_and_in_the_model_index(bundle_copy: Path) -> None:
    assert "model-index" not in metadata(bundle_copy)
    record_scores(Bundle.open(bundle_copy), "fp32", {"STS12": 70.0, "avg7": 78.9})
    record_scores(Bundle.open(bundle_copy), "int8", {"STS12": 69.5})
    record_scores(Bundle.open(bundle_copy), "fp32", {"STS12": 71.25})
    assert Bundle.open(bundle_copy).manifest.scores == {"fp32": {"STS12": 71.25, "avg7": 78.9},
                                                        "int8-static": {"STS12": 69.5}}
    card = (bundle_copy / "README.md").read_text(encoding="utf-8")
    assert "| batch-invariant | STS12 | avg7 |" in card and "| 71.25 | 78.90 |" in card
    found = pytest.importorskip("huggingface_hub").ModelCard(card).data.eval_results
    assert [(item.dataset_name, item.metric_name, item.metric_value) for item in found] == [
        ("STS12", "fp32 STS12", 71.25), ("avg7", "fp32 avg7", 78.9), ("STS12", "int8-static STS12", 69.5)]
    assert all(check.passed for check in verify(bundle_copy, "fp32"))


def test_an_altered_file_gets_no_clean_record(bundle_copy: Path) -> None:
    (bundle_copy / "config.json").write_text("{}", encoding="utf-8")
    record_scores(Bundle.open(bundle_copy), "fp32", {"STS12": 70.0})
    assert not verify(bundle_copy, "fp32")[0].passed


def test_an_unknown_variant(bundle_copy: Path) -> None:
    with pytest.raises(UserError, match="no variant 'fp8'"):
        record_scores(Bundle.open(bundle_copy), "fp8", {"STS12": 70.0})


@pytest.mark.parametrize(("words", "expected"), [
    (["--groups", "g.tsv"], "--record keeps STS scores"),
    (["--data", ".", "--aggregation", "mean"], "got 'mean'"),
])
def test_what_can_not_be_recorded(words: list[str], expected: str, bundle_copy: Path,
                                  capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["evaluate", str(bundle_copy), "--record", *words]) == 2
    assert expected in capsys.readouterr().err
