"""`bench --target web`: a real bundle in a real browser."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from distilface.artifact import Bundle
from distilface.benchmarking import BenchConfig, bench, find_subjects
from distilface.benchmarking.browser import BROWSERS, Page, WebEncoder, find_packages
from distilface.errors import GateError
from distilface.parity import FP32_FLOOR, cosines
from tests.integration.test_consumers_js import installed

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def npm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not any(map(shutil.which, BROWSERS)):
        pytest.skip("Chromium is not installed")
    return installed("web", tmp_path_factory.mktemp("npm") / "web")


def test_the_browser_gives_the_golden_ids_and_vectors(npm: Path, tiny_bundle: Path) -> None:
    bundle = Bundle.open(tiny_bundle)
    golden = bundle.golden()
    page = Page(bundle.folder, find_packages(npm))
    try:
        encoder = WebEncoder(page, bundle, "fp32", 1, None)
        expected = np.array([item.vector for item in golden], dtype=np.float32)
        texts = [item.text for item in golden]
        assert cosines(encoder.encode(texts, batch_tokens=64), expected).min() >= FP32_FLOOR
        assert cosines(encoder.embed_batch([item.ids for item in golden]), expected).min() >= FP32_FLOOR
        assert len(encoder.latency(texts=texts, samples=7, turn_seconds=9, warmup=1, fewest=5)["seconds"]) == 7
        with pytest.raises(GateError, match="WebAssembly failed on 'rows'"):
            encoder.embed_batch([[10**6]])  # no such id
    finally:
        page.close()
    assert page._process.poll() is not None


def test_a_report_of_the_browser(npm: Path, tiny_bundle: Path) -> None:
    config = BenchConfig(target="web", npm_folder=npm, rounds=1, load_repeats=1, lengths=(16,), text_count=16,
                         latency_samples=5, settle_seconds=0)
    report = bench(find_subjects(tiny_bundle), config)
    assert (report.target, report.threads) == ("web", 1)
    for result in report.subjects:
        assert result.size_bytes and result.latency_at(16).p90 >= result.latency_at(16).p50 > 0
        assert result.load_ms.median > 0 and result.best_throughput.sentences_per_second.median > 0
        assert result.cosine is not None and result.cosine.reference.endswith("fp32 outside the browser")
        assert result.cosine.minimum >= (FP32_FLOOR if result.kind == "float32" else 0.9)
        assert result.peak_rss_bytes is None and "not measured in a browser" in " ".join(result.notes)
