"""JavaScript consumers: the browser app in a real Chromium, ONNX Runtime in Node, the Node sample."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from distilface.consumers import check_consumers
from distilface.runtime import Encoder
from distilface.smarthome import utterances

pytestmark = pytest.mark.integration

EXPORT = Path(__file__).parents[2] / "export"
TEXTS = [item.text for item in utterances("train")][:60]
QUERIES = ["turn the light on", "is it cold outside", "play music", TEXTS[7]]
UNREACHABLE = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "ENETUNREACH")


def installed(name: str, folder: Path) -> Path:
    """A copy of ``export/NAME`` with its packages, exactly those of the lock file."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("Node.js with npm is not installed")
    shutil.copytree(EXPORT / name, folder, ignore=shutil.ignore_patterns("node_modules", "dist"))
    done = subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder, capture_output=True,
                          text=True, check=False, timeout=600)
    if done.returncode != 0 and any(code in done.stderr for code in UNREACHABLE):
        pytest.skip("the npm registry can't be reached")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed("web", tmp_path_factory.mktemp("web") / "web")


def test_onnxruntime_web_gives_the_golden_vectors(web: Path, full_bundle: Path) -> None:
    outcomes = check_consumers(full_bundle, node_folder=web, names=["onnxruntime-web"])
    assert len(outcomes) == 7
    assert all(item.status == "ok" for item in outcomes), [item.line for item in outcomes]


def test_the_page_in_chromium(web: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("Chromium is not installed")
    build = subprocess.run(["npm", "run", "build"], cwd=web, capture_output=True, text=True, check=False, timeout=300)
    assert build.returncode == 0, build.stderr
    assert sorted(item.name for item in (web / "dist").iterdir()) == ["app.js", "index.html", "style.css"]
    encoder = Encoder.load(tiny_bundle)
    scores = encoder.encode(QUERIES) @ encoder.encode(TEXTS).T
    nearest = [[{"line": int(line), "score": float(row[line])} for line in np.argsort(-row)[:5]] for row in scores]
    (tmp_path / "reference.json").write_text(
        json.dumps({"texts": TEXTS, "queries": QUERIES, "nearest": nearest}), encoding="utf-8")
    environment = os.environ | {"BUNDLE": str(tiny_bundle), "REFERENCE": str(tmp_path / "reference.json"),
                                "CHROMIUM": chromium}
    done = subprocess.run(["npm", "test"], cwd=web, env=environment, capture_output=True, text=True, check=False,
                          timeout=600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "# pass 11" in done.stdout and "# skipped 0" in done.stdout


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed("node", tmp_path_factory.mktemp("node") / "node")


def test_onnxruntime_node_gives_the_golden_vectors(node: Path, full_bundle: Path) -> None:
    outcomes = check_consumers(full_bundle, node_folder=node, names=["onnxruntime-node"])
    assert len(outcomes) == 7
    assert all(item.status == "ok" for item in outcomes), [item.line for item in outcomes]


def test_the_node_sample_finds_what_distilface_finds(node: Path, tiny_bundle: Path, tmp_path: Path) -> None:
    assert len((node / "search.mjs").read_text(encoding="utf-8").splitlines()) <= 40
    (tmp_path / "lines.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    done = subprocess.run(["node", "search.mjs", str(tiny_bundle), str(tmp_path / "lines.txt"), QUERIES[0], "fp32"],
                          cwd=node, capture_output=True, text=True, check=True)
    encoder = Encoder.load(tiny_bundle)
    scores = (encoder.encode(TEXTS) @ encoder.encode(QUERIES[:1]).T)[:, 0]
    expected = [TEXTS[line] for line in np.argsort(-scores)[:5]]
    found = [line.split(" ", 1) for line in done.stdout.splitlines()]
    assert [text for _, text in found] == expected
    np.testing.assert_allclose([float(score) for score, _ in found], np.sort(scores)[::-1][:5], atol=1e-3)
    wrong = subprocess.run(["node", "search.mjs", str(tiny_bundle), str(tmp_path / "lines.txt"), "x", "int4"], cwd=node,
                           capture_output=True, text=True, check=False)
    assert wrong.returncode == 1 and "no variant int4; the bundle has fp32" in wrong.stderr
