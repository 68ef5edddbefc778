"""How a consumer's answer is judged, and what is said of those that are not there."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from distilface.artifact import GoldenText
from distilface.cli import app
from distilface.consumers import CONSUMERS, Outcome, judge, require_consumers, run
from distilface.consumers import child as python_child
from distilface.consumers.registry import consumers_named
from distilface.errors import GateError, UserError

FOLDER = Path(python_child.__file__).parent
GOLDEN = [GoldenText(text="short", ids=[1, 5, 2], vector=[1.0, 0.0]),
          GoldenText(text="long", ids=[1, 5, 6, 2], vector=[0.0, 1.0])]
FASTEMBED, TRANSFORMERS_JS = (next(item for item in CONSUMERS if item.function == name)
                              for name in ("fastembed_first_output", "transformers_js_first_output"))


def judged(answer: dict[str, Any], floor: float = 0.99, consumer: Any = FASTEMBED) -> Outcome:
    return judge(consumer, "fp32", "1.0", {"ids": None} | answer, GOLDEN, limit=4, floor=floor)


def test_right_vectors_are_ok_and_the_worst_cosine_is_told() -> None:
    off = [np.sin(0.1), np.cos(0.1)]
    outcome = judged({"vectors": [[1, 0], off], "ids": [[1, 5, 2], [1, 5, 6, 2]]})
    assert (outcome.status, outcome.version) == ("ok", "1.0")
    assert outcome.cosine == pytest.approx(np.cos(0.1), abs=1e-6)
    assert judged({"vectors": [[1, 0], off]}, floor=0.999).status == "failed"


@pytest.mark.parametrize(("answer", "words"), [
    ({"vectors": [[1, 0], [0, 1]], "ids": [[1, 5, 2], [1, 5, 6, 6]]}, "other ids for 'long'"),
    ({"vectors": [[0, 1], [1, 0]]}, "worst text 'short'"),
    ({"vectors": [[2, 0], [0, 1]]}, "unit length"),
    ({"vectors": [[1, 0, 0], [0, 1, 0]]}, r"shape \(2, 3\)"),
    ({"vectors": [[1, 0]]}, r"shape \(1, 2\)"),
    ({"vectors": [[float("nan"), 0], [0, 1]]}, "floor"),
    ({"vectors": [[1, 0], [0, 1], [1, 0], [1, 0]]}, "worst text 'long'"),  # right the first time, wrong the second
])
def test_wrong_answers_fail(answer: dict[str, Any], words: str) -> None:
    outcome = judged(answer)
    assert outcome.status == "failed"
    assert re.search(words, outcome.detail), outcome.detail


def test_a_consumer_that_cuts_the_end_off_is_judged_by_the_rest_and_the_difference_is_told() -> None:
    answer = {"vectors": [[1, 0], [0.6, 0.8]], "ids": [[1, 5, 2], [1, 5, 6, 7]]}
    outcome = judged(answer, consumer=TRANSFORMERS_JS)
    assert (outcome.status, outcome.cosine) == ("ok", 1.0)
    assert "cosine 0.80000" in outcome.detail
    assert judged(answer).status == "failed"
    assert judged(answer | {"ids": [[1, 5, 2], [1, 6, 6, 7]]}, consumer=TRANSFORMERS_JS).status == "failed"


def test_every_function_of_the_registry_is_in_its_child() -> None:
    script = (FOLDER / "child.cjs").read_text(encoding="utf-8")
    for consumer in CONSUMERS:
        if consumer.runtime == "python":
            assert consumer.function in python_child.CONSUMERS
        else:
            assert f"\n  {consumer.function}:" in script


def test_the_child_starts_without_anything_installed(tmp_path: Path) -> None:
    """An environment of a consumer holds neither distilface nor what distilface needs."""
    answer = run([sys.executable, "-S", str(FOLDER / "child.py")], "probe", {"distributions": ["fastembed"]}, tmp_path)
    assert answer == {"versions": {"fastembed": None}}


def test_a_child_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(GateError, match="KeyError"):
        run([sys.executable, str(FOLDER / "child.py")], "probe", {}, tmp_path)


def test_lines_and_the_exit() -> None:
    outcomes = [Outcome("light-embed", "", "not installed", detail="pip install light-embed"),
                Outcome("fastembed", "int8-static", "ok", "0.9", 0.98)]
    assert [item.line for item in outcomes] == ["not installed  light-embed: pip install light-embed",
                                                "ok  fastembed 0.9, int8-static: worst cosine 0.9800000"]
    require_consumers("bundle", outcomes)
    with pytest.raises(GateError, match=r"1 of 3 .*openvino"):
        require_consumers("bundle", [*outcomes, Outcome("openvino", "fp32", "failed", "1", detail="no")])


def test_a_name_nobody_has() -> None:
    assert [item.function for item in consumers_named(["OpenVINO"])] == ["openvino"]
    with pytest.raises(UserError, match=r"'tensorflow'; known: .*fastembed"):
        consumers_named(["tensorflow"])


def test_a_child_runs_in_a_folder_named_relatively(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = tmp_path / "child.py"
    child.write_text("import shutil, sys\nshutil.copy(sys.argv[2], sys.argv[3])\n")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path)
    assert run([sys.executable, str(child)], "echo", {"text": "on"}, Path("work")) == {"text": "on"}


def test_flags_of_consumers_without_consumers_are_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["verify", str(tmp_path), "--consumer-python", "python"])
    assert isinstance(result.exception, UserError)
    assert "--consumer-python belongs to --consumers" in str(result.exception)


def test_lock_files_name_no_registry_but_the_public_one() -> None:
    root = Path(__file__).parents[2] / "export"
    for name in ("web", "node"):
        packages = json.loads((root / name / "package-lock.json").read_text(encoding="utf-8"))["packages"]
        sources = [item["resolved"] for item in packages.values() if "resolved" in item]
        assert all(source.startswith("https://registry.npmjs.org/") for source in sources)
        wanted = json.loads((root / name / "package.json").read_text(encoding="utf-8"))
        for package, version in {**wanted["dependencies"], **wanted.get("devDependencies", {})}.items():
            assert packages[f"node_modules/{package}"]["version"] == version
            assert packages[f"node_modules/{package}"]["integrity"].startswith("sha512-")
