"""Many files into a folder of shards: every row once, in order, whatever stops the work in between."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distilface.cli import run
from distilface.encoding import encode_folder, encode_to
from distilface.encoding.folder import ShardEncoder
from distilface.errors import GateError, UserError
from distilface.precision import Scales, scales_beside
from distilface.runtime import Encoder
from distilface.search import search
from distilface.shards import Shard, ShardSet

parquet = pytest.importorskip("pyarrow.parquet")
arrow = pytest.importorskip("pyarrow")

TEXTS = [f"light number {number} in room {number % 7}" for number in range(45)]
SHARDS = ["00000-00000", "00000-00001", "00001-00000", "00002-00000", "00002-00001"]


@pytest.fixture(scope="module")
def encoder(tiny_bundle: Path) -> Encoder:
    return Encoder.load(tiny_bundle, threads=1)


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    """20 + 5 + 20 rows with a text and an id, in three formats."""
    paths = [tmp_path / "a.parquet", tmp_path / "b.jsonl", tmp_path / "c.csv.gz"]
    parquet.write_table(arrow.table({"id": list(range(20)), "text": TEXTS[:20], "other": [0.5] * 20}), paths[0],
                        row_group_size=7)
    paths[1].write_text("".join(json.dumps({"id": number, "text": TEXTS[number]}) + "\n" for number in range(20, 25)),
                        encoding="utf-8")
    with gzip.open(paths[2], "wt", encoding="utf-8") as file:
        file.write("text,id\n" + "".join(f"{TEXTS[number]},{number}\n" for number in range(25, 45)))
    return paths


def folder_of(encoder: Encoder, inputs: Sequence[Path], out: Path, **options: Any) -> Any:
    return encode_folder(encoder, inputs, out, **{"column": "text", "shard_rows": 12, **options})


def assert_all_once(out: Path, inputs: Sequence[Path], expected: np.ndarray[Any, Any], ids: bool = False) -> None:
    tables = [parquet.read_table(out / f"{name}.parquet") for name in SHARDS]
    table = arrow.concat_tables(tables).to_pydict()
    assert table["text"] == TEXTS
    assert table["source"] == [str(inputs[0])] * 20 + [str(inputs[1])] * 5 + [str(inputs[2])] * 20
    assert table["row"] == [*range(20), *range(5), *range(20)]
    assert table.get("id") == ([str(number) for number in range(45)] if ids else None)
    np.testing.assert_allclose(np.array(table["vector"], dtype=expected.dtype), expected, atol=1e-6)


def test_every_row_of_every_input(encoder: Encoder, inputs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "vectors"
    seen: list[tuple[str, int, int]] = []
    result = folder_of(encoder, inputs, out, id_column="id", progress=lambda *step: seen.append(step))
    assert (result.rows, result.shards, result.encoded) == (45, 5, 5)
    assert_all_once(out, inputs, encoder.encode(TEXTS), ids=True)
    assert seen[-1] == ("encoding", 45, 45)
    assert [step for step in seen if step[0] == "reading inputs"] == [("reading inputs", i, 3) for i in range(3)]
    again = folder_of(encoder, inputs, out, id_column="id")
    assert (again.rows, again.encoded) == (45, 0)


def test_npy_shards_and_their_rows(encoder: Encoder, inputs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "vectors"
    folder_of(encoder, inputs, out, format="npy", id_column="id")
    array = np.concatenate([np.load(out / f"{name}.npy", allow_pickle=False) for name in SHARDS])
    np.testing.assert_allclose(array, encoder.encode(TEXTS), atol=1e-6)
    rows = [json.loads(line) for name in SHARDS for line in (out / f"{name}.rows.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == TEXTS
    assert rows[21] == {"source": str(inputs[1]), "row": 1, "id": "21", "text": TEXTS[21]}


class Stopped(BaseException):
    """Stands for a kill in the middle of a shard."""


@pytest.mark.parametrize("after", [0, 1, 3, 4])
def test_a_run_that_was_stopped_goes_on(encoder: Encoder, inputs: list[Path], tmp_path: Path, after: int,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "vectors"
    made: list[str] = []
    genuine = ShardEncoder.encode

    def stopping(self: ShardEncoder, shard: Shard, done: Any = None) -> Any:
        if len(made) == after:
            (out / f".{shard.name}.parquet.x.partial").write_bytes(b"half")  # what a kill leaves
            (out / f"{shard.name}.parquet").write_bytes(b"whole, but its record was not written")
            raise Stopped
        made.append(shard.name)
        return genuine(self, shard, done)

    monkeypatch.setattr(ShardEncoder, "encode", stopping)
    with pytest.raises(Stopped):
        folder_of(encoder, inputs, out)
    monkeypatch.setattr(ShardEncoder, "encode", genuine)
    shards = ShardSet.open(out)
    assert [shard.name for shard in shards.missing()] == SHARDS[after:]
    with pytest.raises(UserError, match=f"not finished: {5 - after} of 5 shards"):
        search(np.ones((1, 32), np.float32), out)
    kept = {name: (out / f"{name}.parquet").stat().st_mtime_ns for name in made}
    assert folder_of(encoder, inputs, out).encoded == 5 - after
    assert_all_once(out, inputs, encoder.encode(TEXTS))
    assert {name: (out / f"{name}.parquet").stat().st_mtime_ns for name in made} == kept
    assert not list(out.glob(".*"))


def test_a_shard_that_was_lost_is_made_again(encoder: Encoder, inputs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "vectors"
    folder_of(encoder, inputs, out)
    (out / f"{SHARDS[1]}.parquet").unlink()
    (out / f"{SHARDS[3]}.parquet").write_bytes(b"cut short")
    assert folder_of(encoder, inputs, out).encoded == 2
    assert_all_once(out, inputs, encoder.encode(TEXTS))


@pytest.mark.parametrize(("changed", "expected"), [
    ({"shard_rows": 13}, "begun with shard_rows 12, and now it is 13"),
    ({"id_column": "id"}, "id_column None, and now it is 'id'"),
    ({"precision": "binary"}, "precision 'float32', and now it is 'binary'"),
    ({"truncate_dim": 8}, "truncate_dim None, and now it is 8"),
    ({"format": "npy"}, "format 'parquet', and now it is 'npy'"),
])
def test_other_settings_are_refused_by_name(encoder: Encoder, inputs: list[Path], tmp_path: Path,
                                            changed: dict[str, Any], expected: str) -> None:
    out = tmp_path / "vectors"
    folder_of(encoder, inputs, out)
    before = sorted(path.name for path in out.iterdir())
    with pytest.raises(UserError, match=expected):
        folder_of(encoder, inputs, out, **changed)
    assert sorted(path.name for path in out.iterdir()) == before
    assert folder_of(encoder, inputs, out, overwrite=True, **changed).encoded > 0


@pytest.mark.parametrize(("content", "expected"), [
    ("{", "not valid JSON.*--overwrite"),
    ('{"kind": "vectors", "format_version": 2}', "'.*vectors' have format version 2; this distilface reads up to 1"),
    ('{"kind": "vectors", "format_version": 1}', "is damaged at dim: .*; encode again"),
], ids=["cut", "newer", "incomplete"])
def test_a_damaged_plan_is_refused_and_can_be_begun_again(encoder: Encoder, inputs: list[Path], tmp_path: Path,
                                                          content: str, expected: str) -> None:
    out = tmp_path / "vectors"
    folder_of(encoder, inputs, out)
    (out / "distilface.json").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=expected):
        folder_of(encoder, inputs, out)
    folder_of(encoder, inputs, out, overwrite=True)
    assert_all_once(out, inputs, encoder.encode(TEXTS))


def test_another_graph_or_other_inputs_are_refused(encoder: Encoder, inputs: list[Path], tmp_path: Path,
                                                   tiny_bundle: Path) -> None:
    out = tmp_path / "vectors"
    folder_of(encoder, inputs, out)
    with pytest.raises(UserError, match="graph_sha256"):
        folder_of(Encoder.load(tiny_bundle, "int8", threads=1), inputs, out)
    with pytest.raises(UserError, match="inputs '3 files', and now it is '2 files'"):
        folder_of(encoder, inputs[:2], out)
    inputs[1].write_text(inputs[1].read_text().replace("room", "hall"), encoding="utf-8")
    with pytest.raises(UserError, match=r"b\.jsonl' with other content"):
        folder_of(encoder, inputs, out)


def test_int8_shards_have_their_scales(encoder: Encoder, inputs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "vectors"
    folder_of(encoder, inputs, out, precision="int8", truncate_dim=16)
    vectors = encoder.encode(TEXTS, truncate_dim=16)
    scales = Scales.fit(vectors)
    assert_all_once(out, inputs, scales.encode(vectors))
    (out / f"{SHARDS[2]}.json").unlink()
    assert folder_of(encoder, inputs, out, precision="int8", truncate_dim=16).encoded == 1
    found = search(vectors, out, 1)
    assert (found.indices[:, 0] == np.arange(45)).mean() > 0.9
    with pytest.raises(UserError, match="scales"):
        folder_of(encoder, inputs, out, precision="int8", truncate_dim=16, scales=Scales.fit(vectors * 2))
    with pytest.raises(UserError, match="holds its own scales"):
        search(vectors, out, 1, scales=scales)


@pytest.mark.parametrize("format", ["npy", "parquet"])
def test_a_folder_is_searched_over_all_shards(encoder: Encoder, inputs: list[Path], tmp_path: Path,
                                              format: str) -> None:
    out = tmp_path / "vectors"
    folder_of(encoder, inputs, out, format=format, precision="binary")
    vectors = encoder.encode(TEXTS)
    expected = search(vectors, encoder.encode(TEXTS, precision="binary"), 4)
    np.testing.assert_array_equal(encoder.search(TEXTS, out, 4).indices, expected.indices)


def test_int8_in_one_file_has_its_scales_beside(encoder: Encoder, tmp_path: Path) -> None:
    for name in ("v.npy", "v.parquet", "v.jsonl"):
        encode_to(encoder, iter(TEXTS), tmp_path / name, precision="int8")
        scales = Scales.load(scales_beside(tmp_path / name))
        np.testing.assert_allclose(scales.high, encoder.encode(TEXTS).max(axis=0), atol=1e-6)
    expected = encoder.encode(TEXTS, precision="int8", scales=scales)
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), expected)
    lines = (tmp_path / "v.jsonl").read_text().splitlines()
    assert json.loads(lines[3])["vector"] == expected[3].tolist()
    assert (search(encoder.encode(TEXTS), tmp_path / "v.parquet", 1).indices[:, 0] == np.arange(45)).mean() > 0.9


def test_one_warning_counts_what_was_cut(encoder: Encoder, tmp_path: Path, caplog: pytest.LogCaptureFixture,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distilface.encoding.single.BLOCK", 5)
    (tmp_path / "in.txt").write_text("light " * 70 + "\n" + "a\n" * 20 + "light " * 70 + "\n", encoding="utf-8")
    encode_folder(encoder, [tmp_path / "in.txt"], tmp_path / "out", shard_rows=9)
    assert [record.getMessage() for record in caplog.records] == [
        "2 of 22 texts are longer than 64 tokens and were cut"]


def test_an_input_that_shrinks_in_the_middle(encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.txt").write_text("light\n" * 9, encoding="utf-8")
    genuine = ShardSet.begin.__func__  # type: ignore[attr-defined]

    def shrinking(cls: type[ShardSet], *arguments: Any) -> ShardSet:
        (tmp_path / "in.txt").write_text("light\n" * 5, encoding="utf-8")
        return genuine(cls, *arguments)  # type: ignore[no-any-return]

    monkeypatch.setattr(ShardSet, "begin", classmethod(shrinking))
    with pytest.raises(GateError, match="fewer rows than when this run began"):
        encode_folder(encoder, [tmp_path / "in.txt"], tmp_path / "out", shard_rows=4)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "00000-00000.json", "00000-00000.parquet", "distilface.json"]


# ----------------------------------------------------------------- the command


@pytest.mark.parametrize(("words", "expected"), [
    (["a.txt", "b.txt"], "2 inputs go into a folder of shards, and --out is '-'"),
    (["a.txt", "b.txt", "--out", "v.npy"], "2 inputs go into a folder of shards, and --out is 'v.npy'"),
    (["a.txt", "--out", "v.npy", "--shard-rows", "3"], "--shard-rows belongs to a folder"),
    (["a.txt", "--out", "v.npy", "--engine", "ray"], "--engine belongs to a folder"),
    (["a.txt", "--out", "v.npy", "--id-column", "id"], "--id-column belongs to a folder"),
    (["a.txt", "--out", "v/", "--actors", "2"], "belongs to engine 'ray'"),
    (["a.txt", "--out", "v/", "--engine", "spark"], "'spark'; allowed: local, ray"),
    (["a.txt", "--out", "v/", "--format", "jsonl"], "can't be 'jsonl'; allowed: parquet, npy"),
    (["a.txt", "--out", "v/", "--shard-rows", "0"], "shard_rows is 0"),
    (["a.txt", "./a.txt", "--out", "v"], "named twice"),
    (["a.txt", "nowhere.txt", "--out", "v"], "'nowhere.txt' does not exist (of 2 inputs)"),
    (["a.txt", ".", "--out", "v"], "is a folder; name the files in it"),
    (["-", "--out", "v/"], "standard input can't be resumed"),
    (["good.jsonl", "bad.jsonl", "--column", "text", "--out", "v"], "bad.jsonl, line 3 has no column 'text'"),
    (["a.txt", "--out", "v/", "--precision", "int4"], "'int4'; allowed: float32, int8, binary"),
    (["a.txt", "--out", "v/", "--truncate-dim", "33"], "truncate_dim is 33; allowed: 1 to 32"),
    (["a.txt", "--out", "v.npy", "--scales", "nowhere.json"], "'nowhere.json' can't be read"),
    (["a.txt", "--precision", "int8"], "needs scales"),
    (["pairs.tsv", "--column", "2", "--out", "v.npy"], "--no-header"),
    (["a.txt", "--out", "foreign/"], "exists and is not empty"),
    (["a.txt", "--out", "foreign/", "--overwrite"], "files that distilface did not write"),
    (["a.txt", "--out", "./"], "not empty"),
    (["a.txt", "--backend", "tensorflow"], "'tensorflow'; allowed: onnxruntime, openvino, auto"),
    (["a.txt", "--backend", "openvino", "--provider", "cuda"], "only cpu"),
])
def test_encode_mistakes_leave_nothing(words: list[str], expected: str, tiny_bundle: Path, tmp_path: Path,
                                       monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"{name}\nlight\n", encoding="utf-8")
    (tmp_path / "good.jsonl").write_text('{"text": "a"}\n', encoding="utf-8")
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n{"other": "a"}\n', encoding="utf-8")
    (tmp_path / "pairs.tsv").write_text("1\tlight\n2\tmusic\n", encoding="utf-8")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.txt").write_text("mine", encoding="utf-8")
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    code = run(["encode", str(tiny_bundle), *words, "--threads", "1"])
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert code == 2
    assert expected in error
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before


def test_a_headerless_table_by_position(tiny_bundle: Path, encoder: Encoder, tmp_path: Path,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pairs.tsv").write_text("7\tlight\n8\tmusic\n", encoding="utf-8")
    assert run(["encode", str(tiny_bundle), "pairs.tsv", "--column", "2", "--no-header", "--out", "v.npy"]) == 0
    np.testing.assert_allclose(np.load("v.npy"), encoder.encode(["light", "music"]), atol=1e-6)
    assert run(["encode", str(tiny_bundle), "pairs.tsv", "--column", "2", "--id-column", "1", "--no-header", "--out",
                "v/"]) == 0
    assert parquet.read_table("v/00000-00000.parquet").to_pydict()["id"] == ["7", "8"]


def test_a_full_disk_in_the_middle_is_one_line_and_the_run_goes_on(
        tiny_bundle: Path, encoder: Encoder, inputs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    words = ["encode", str(tiny_bundle), *map(str, inputs), "--column", "text", "--shard-rows", "12", "--threads", "1",
             "--out", str(tmp_path / "v")]
    calls: list[int] = []
    genuine = Encoder.encode_reporting

    def filling(self: Encoder, *arguments: Any, **options: Any) -> Any:
        calls.append(0)
        if len(calls) == 4:
            raise OSError(28, "No space left on device", "v")
        return genuine(self, *arguments, **options)

    monkeypatch.setattr(Encoder, "encode_reporting", filling)
    assert run(words) == 2
    assert capsys.readouterr().err.strip().splitlines()[-1] == (
        "distilface: error: No space left on device (v); make room or write elsewhere, and run it again")
    assert not list((tmp_path / "v").glob(".*"))
    monkeypatch.setattr(Encoder, "encode_reporting", genuine)
    assert run(words) == 0
    assert "45 vectors of 32 dimensions in 5 shards, 3 of them made now" in capsys.readouterr().out
    assert_all_once(tmp_path / "v", inputs, encoder.encode(TEXTS))
