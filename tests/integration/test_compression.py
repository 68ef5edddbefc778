"""`compress` on a tiny model: a whole search, its resumption, the commands it gives, a student."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from distilface.artifact import Bundle
from distilface.cli import run
from distilface.compression import Budget, compress
from distilface.compression.space import GraphParts
from distilface.errors import GateError, UserError
from distilface.runtime import Encoder
from distilface.smarthome import graded_pairs, utterances
from tests.tiny import tiny_checkpoint

pytestmark = pytest.mark.integration
EVERYTHING = Budget(size=10**9)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, str]:
    """A checkpoint of 4 layers, calibration text and scored dev pairs."""
    folder = tmp_path_factory.mktemp("files")
    text, pairs = folder / "text.txt", folder / "dev.tsv"
    text.write_text("\n".join(item.text for item in utterances("train")), encoding="utf-8")
    rows = [f"{pair.sentence1}\t{pair.sentence2}\t{pair.score}" for pair in graded_pairs("dev")]
    pairs.write_text("\n".join(["sentence1\tsentence2\tscore", *rows]), encoding="utf-8")
    return str(tiny_checkpoint(folder / "model", layers=4)), str(text), str(pairs)


@pytest.fixture(scope="module")
def searched(files: tuple[str, str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished search over w8 and static, without limits that bind."""
    model, text, pairs = files
    out = tmp_path_factory.mktemp("search") / "out"
    found = compress(model, out, EVERYTHING, pairs, text, modes=("static", "w8"))
    assert found.bundle == out / "best"
    return out


def test_the_best_is_a_bundle_that_was_measured(searched: Path) -> None:
    bundle = Bundle.open(searched / "best")
    (variant,) = bundle.variant_names
    assert Encoder.load(searched / "best").variant == variant
    points = [json.loads(file.read_text()) for file in (searched / "points").glob("*.json")]
    chosen = max(points, key=lambda point: (point["dev"], -point["size"]))
    assert (searched / "best" / "onnx" / "model.onnx").stat().st_size == chosen["size"]
    assert {point["variant"] for point in points} == {"fp32", "int8-static", "w8"}
    static = next(point for point in points if point["variant"] == "int8-static")
    assert (static["integer_matmuls"], static["matmuls"]) == (24, 24)
    assert (searched / "front.png").read_bytes()[:4] == b"\x89PNG"
    assert "## Pareto front" in (searched / "search.md").read_text(encoding="utf-8")


def test_what_was_measured_is_not_measured_again(searched: Path, files: tuple[str, str, str]) -> None:
    """With another budget the search goes on from there: a doctored point shows that it was read, not made."""
    model, text, pairs = files
    file = next((searched / "points").glob("*w8-int8.json"))
    values = json.loads(file.read_text())
    file.write_text(json.dumps({**values, "dev": 99.0}))
    try:
        found = compress(model, searched, Budget(drop=100.0, prefer="quality"), pairs, text, modes=("static", "w8"))
        assert found.best.dev == 99.0
    finally:
        file.write_text(json.dumps(values))


def test_the_commands_make_the_same_graph(searched: Path, files: tuple[str, str, str], tmp_path: Path,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    point = json.loads(next((searched / "points").glob("*static-int8.json")).read_text())
    for command in point["commands"]:
        assert run(shlex.split(command)[1:]) == 0
    made = tmp_path / point["slug"] / "onnx" / "model.onnx"
    kept = searched / "work" / point["base"] / "graphs" / point["slug"] / "onnx" / "model.onnx"
    assert made.read_bytes() == kept.read_bytes()


def test_nothing_fits(searched: Path, files: tuple[str, str, str]) -> None:
    model, text, pairs = files
    with pytest.raises(GateError, match=r"in the way: size\. Nearest: .*MB.*over by"):
        compress(model, searched, Budget(size=1000, drop=50), pairs, text, modes=("w8",))
    assert "Nothing keeps the budget" in (searched / "search.md").read_text(encoding="utf-8")
    assert (searched / "best").is_dir()  # of the search before


def test_another_search_in_the_same_folder(searched: Path, files: tuple[str, str, str], tmp_path: Path) -> None:
    model, _, pairs = files
    other = tmp_path / "other.txt"
    other.write_text("\n".join(item.text for item in utterances("test")), encoding="utf-8")
    with pytest.raises(UserError, match="another calibration"):
        compress(model, searched, EVERYTHING, pairs, other)
    with pytest.raises(UserError, match="is a bundle"):
        compress(searched / "best", tmp_path / "out", EVERYTHING, pairs, other)
    with pytest.raises(UserError, match="unknown mode 'w2'"):
        compress(model, tmp_path / "out", EVERYTHING, pairs, other, modes=("w2",))


@pytest.mark.parametrize("which", ["calibration", "vocabulary"])
@pytest.mark.parametrize("content", [None, ""])
def test_a_file_that_can_not_be_read_leaves_no_folder(files: tuple[str, str, str], tmp_path: Path, which: str,
                                                      content: str | None) -> None:
    model, text, pairs = files
    file = tmp_path / "bad.txt"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    given = {"calibration": text} | {which: str(file)}
    with pytest.raises(UserError, match=r"bad\.txt"):
        compress(model, tmp_path / "out", EVERYTHING, pairs, **given)
    assert not (tmp_path / "out").exists()


def test_a_student_is_taught_and_compressed(files: tuple[str, str, str], tmp_path: Path) -> None:
    model, text, pairs = files
    found = compress(model, tmp_path / "out", EVERYTHING, pairs, text, modes=("w8",), minutes=0.05)
    students = [point for point in found.points if point.layers < 4]
    assert {point.layers for point in students} == {3, 2}  # two thirds and a half of 4
    assert all("distilface distill --config" in point.commands[1] for point in students)
    taught = tmp_path / "out" / "work" / students[0].base
    assert json.loads((taught / "student" / "distill_log.json").read_text())


def test_predicted_sizes_are_those_of_the_files(minilm: Path, tmp_path: Path) -> None:
    from distilface.exporter import export
    from distilface.quantization import quantize

    bundle = export(minilm, tmp_path / "bundle")
    parts = GraphParts.of(bundle.graph("fp32"), 6)
    for mode, tables in (("dynamic", "int8"), ("w8", "int4"), ("w4", "int4")):
        made = quantize(bundle.folder, mode, embeddings=tables)  # type: ignore[arg-type]
        assert parts.predicted(mode, tables, parts.rows) == pytest.approx(made.variant.size, rel=0.005)  # type: ignore[arg-type]
