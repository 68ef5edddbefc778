"""Readers: every format gives the same texts, and every mistake gives one line that says where and what next."""

from __future__ import annotations

import gzip
import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from distilface.data import (
    DataSource,
    Pair,
    ScoredPair,
    Triplet,
    iter_texts,
    read_groups,
    read_pairs,
    read_scored_pairs,
    read_sentences,
    read_triplets,
)
from distilface.data import hub as hub_module
from distilface.errors import UserError

TEXTS = ["She said \"no", "Kantō, 台北 😀", "a\u2028b\x0cc", "plain"]


def write(path: Path, content: str | bytes, zipped: bool = False) -> Path:
    data = content.encode("utf-8") if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if zipped else data)
    return path


def message(call: Callable[[], object]) -> str:
    """The one line of the UserError that ``call`` ends with."""
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("name", ["s.txt", "s.tsv", "s.csv", "s.jsonl"])
def test_same_sentences_from_every_text_format(tmp_path: Path, name: str, zipped: bool) -> None:
    content = {
        "s.txt": "\n".join(TEXTS),
        "s.tsv": "id\ttext\n" + "\n".join(f"{i}\t{text}" for i, text in enumerate(TEXTS)),
        "s.csv": "id,text\n" + "\n".join(f'{i},"{text.replace(chr(34), 2 * chr(34))}"' for i, text in enumerate(TEXTS)),
        "s.jsonl": "\n".join(json.dumps({"id": i, "text": text}) for i, text in enumerate(TEXTS)),
    }[name]
    path = write(tmp_path / (name + ".gz" * zipped), content, zipped)
    columns = None if name == "s.txt" else ("text",)
    assert read_sentences(DataSource(path=str(path), columns=columns)) == TEXTS


def test_parquet_columns_and_lists(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "t.parquet"
    groups = [["a", "b"], ["c", "d", "e"], ["f"], ["g", "h"]]
    parquet.write_table(arrow.table({"id": [1, 2, 3, 4], "text": TEXTS, "group": groups}), path)
    assert read_sentences(DataSource(path=str(path), columns=("text",))) == TEXTS
    assert read_groups(DataSource(path=str(path), columns=("group",))) == [["a", "b"], ["c", "d", "e"], ["g", "h"]]
    renamed = write(tmp_path / "no_suffix", path.read_bytes())
    assert list(iter_texts(renamed, "text")) == TEXTS
    assert message(lambda: read_sentences(DataSource(path=str(path), columns=("txt",)))).endswith(
        "has no column 'txt'; it has 'id', 'text', 'group'")
    assert "row 1: expected text, got int" in message(
        lambda: read_sentences(DataSource(path=str(path), columns=("id",))))


def test_damaged_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = write(tmp_path / "t.parquet", b"PAR1 nothing of the kind")
    assert f"{path} is not a readable Parquet file" in message(lambda: read_sentences(path))
    assert "gunzip it first" in message(lambda: read_sentences(write(tmp_path / "u.parquet.gz", b"x", zipped=True)))
    assert "is empty" in message(lambda: read_sentences(write(tmp_path / "v.parquet", b"")))


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    path = write(tmp_path / "t.parquet", b"PAR1")
    assert "distilface[parquet]" in message(lambda: read_sentences(path))


def test_first_bytes_decide_gzip(tmp_path: Path) -> None:
    assert read_sentences(write(tmp_path / "zipped.txt", "one\ntwo\n", zipped=True)) == ["one", "two"]
    assert read_sentences(write(tmp_path / "plain.txt.gz", "one\ntwo\n")) == ["one", "two"]


def test_windows_line_ends_and_byte_order_mark(tmp_path: Path) -> None:
    assert read_sentences(write(tmp_path / "s.txt", b"\xef\xbb\xbfone\r\n\r\n  two \r\n")) == ["one", "two"]
    path = write(tmp_path / "s.tsv", b"\xef\xbb\xbftext\tid\r\none\t1\r\n")
    assert read_sentences(DataSource(path=str(path), columns=("text",))) == ["one"]
    assert list(iter_texts(path, "id")) == ["1"]


def test_pairs_triplets_and_groups_without_header(tmp_path: Path) -> None:
    triplets = write(tmp_path / "t.tsv.gz", 'a "\tb\tc\n\nd\te\t"f\n', zipped=True)
    assert read_triplets(triplets) == [Triplet('a "', "b", "c"), Triplet("d", "e", '"f')]
    assert read_pairs(DataSource(path=str(triplets), header=False, columns=("3", "1"))) == [
        Pair("c", 'a "'), Pair('"f', "d")]
    groups = write(tmp_path / "g.tsv", "a\tb\nc\td\te \t f\n")
    assert read_groups(groups) == [["a", "b"], ["c", "d", "e", "f"]]


def test_columns_asked_for_come_in_the_order_asked(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", 'positive,x,anchor\n"b, with comma",1,a\n"two\nlines",2,c\n')
    source = DataSource(path=str(path), columns=("anchor", "positive"))
    assert read_pairs(source) == [Pair("a", "b, with comma"), Pair("c", "two\nlines")]


def test_csv_has_a_header_unless_told(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", "sent0,sent1\na,b\n")
    assert read_pairs(path) == [Pair("a", "b")]
    assert read_pairs(DataSource(path=str(path), header=False)) == [Pair("sent0", "sent1"), Pair("a", "b")]


def test_tsv_header_can_be_skipped_without_naming_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "p.tsv", "sent0\tsent1\na\tb\n")
    assert read_pairs(DataSource(path=str(path), header=True)) == [Pair("a", "b")]


def test_jsonl_arrays_and_strings(tmp_path: Path) -> None:
    assert read_groups(write(tmp_path / "g.jsonl", '["a", "b"]\n{"k": ["c", "d"]}\n')) == [["a", "b"], ["c", "d"]]
    assert read_sentences(write(tmp_path / "s.jsonl", '"a"\n{"only": "b"}\n')) == ["a", "b"]


def test_scored_pairs(tmp_path: Path) -> None:
    path = write(tmp_path / "s.tsv", "score\tsentence2\tsentence1\n4.5\tb\ta\n\td\tc\n0\tf\te\n")
    source = DataSource(path=str(path), columns=("sentence1", "sentence2", "score"))
    assert read_scored_pairs(source) == [ScoredPair("a", "b", 4.5), ScoredPair("e", "f", 0.0)]
    for bad in ("high", "nan", "inf"):
        write(path, f"sentence1\tsentence2\tscore\na\tb\t1\na\tb\t{bad}\n")
        assert f"line 3: expected a number as score, got '{bad}'" in message(lambda: read_scored_pairs(source))
    path = write(tmp_path / "s.jsonl", '{"sentence1": "a", "sentence2": "b", "score": true}')
    assert "expected a number as score" in message(lambda: read_scored_pairs(path))


def test_incomplete_rows_are_dropped_with_one_counted_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "g.tsv", "a\tb\nalone\n\nc\t \nd\te\n")
    with caplog.at_level(logging.WARNING):
        assert read_groups(path) == [["a", "b"], ["d", "e"]]
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: dropped 2 incomplete groups, the first at line 2"]
    assert "holds no complete group: all 2 lines" in message(lambda: read_groups(write(path, "a\nb\n")))
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert read_pairs(write(path, "a\tb\n\tc\n")) == [Pair("a", "b")]
    assert "dropped 1 incomplete pair, the first at line 2" in caplog.text


@pytest.mark.parametrize(("name", "content", "columns", "reader", "expected"), [
    ("a.tsv", "a\tb\nc\n", None, read_pairs, "line 2: 1 column where 2 needed"),
    ("a.tsv", "a\tb\tc\n", None, read_pairs, "line 1: 3 columns where 2 needed"),
    ("a.tsv", "x\ty\nc\td\n\ne\n", ("x",), read_sentences, "line 4: 1 column where the header has 2"),
    ("a.csv", 'x,y\n"two\nlines",b\n"c"\n', ("x",), read_sentences, "line 4: 1 column where the header has 2"),
    ("a.csv", 'x\nok\n"never closed\nmore\n', ("x",), read_sentences, "line 3: not valid CSV"),
    ("a.tsv", "x\ty\nc\td\n", ("z",), read_sentences, "has no column 'z'; it has 'x', 'y'"),
    ("a.csv", "x,y\nc,d\n", None, read_sentences, "has 2 columns ('x', 'y'); name the 1 to read with columns"),
    ("a.jsonl", '{"x": "a"}\n{"y": "b"}\n', ("x",), read_sentences, "line 2 has no column 'x'; it has 'y'"),
    ("a.jsonl", '{"x": "a"}\n{"x": \n', ("x",), read_sentences, "line 2: not valid JSON"),
    ("a.jsonl", '{"x": "a"}\n[1]\n', ("x",), read_sentences, "line 2: expected a JSON object with x, got '[1]'"),
    ("a.jsonl", '{"x": "a"}\n{"x": 3}\n', ("x",), read_sentences, "line 2: expected text, got int '3'"),
    ("a.jsonl", '{"x": "a", "y": "b"}\n', None, read_sentences, "has 2 columns ('x', 'y'); name the 1"),
    ("a.txt", "a\n", ("x",), read_sentences, "plain text, which has no columns (x asked for)"),
    ("a.txt", "a\n", None, read_pairs, "plain text, which has one column; 2 needed here"),
    ("a.tsv", "x\ty\n", ("x",), read_pairs, "columns=x names 1 column; 2 needed here"),
    ("a.txt", "", None, read_sentences, "is empty"),
    ("a.txt", "\n \n", None, read_sentences, "holds no sentence: every line is blank"),
    ("a.txt", b"fine\nna\xefve\n", None, read_sentences, "line 2: byte 0xef at offset 7 is not UTF-8"),
    ("a.tsv.gz", b"\x1f\x8b\x08\x00broken", None, read_sentences, "damaged gzip"),
    ("a.tsv", "\n", ("x",), read_sentences, "holds no header line"),
])
def test_what_is_wrong_with_a_file(tmp_path: Path, name: str, content: str | bytes, columns: tuple[str, ...] | None,
                                   reader: Callable[[DataSource], object], expected: str) -> None:
    path = write(tmp_path / name, content)
    found = message(lambda: reader(DataSource(path=str(path), columns=columns)))
    assert str(path) in found or "columns=" in found
    assert expected in found


@pytest.mark.parametrize(("fields", "expected"), [
    ({"header": False, "columns": ("x",)}, "without a header, columns are positions counted from 1"),
    ({"header": False, "columns": ("0",)}, "without a header, columns are positions counted from 1"),
    ({"header": False, "columns": ("3",)}, "has 2 columns; column 3 asked for"),
    ({"split": "train"}, "is a local file, but split is set"),
    ({"format": "jsonl", "header": True}, "header=True belongs to TSV and CSV"),
])
def test_contradictions(tmp_path: Path, fields: dict[str, object], expected: str) -> None:
    path = write(tmp_path / "a.tsv", "a\tb\n")
    assert expected in message(lambda: read_sentences(DataSource.model_validate({"path": str(path), **fields})))


def test_truncated_gzip(tmp_path: Path) -> None:
    whole = gzip.compress("\n".join(f"line {i}" for i in range(5000)).encode())
    assert "damaged gzip" in message(lambda: read_sentences(write(tmp_path / "a.gz", whole[: len(whole) // 2])))


def test_missing_directory_and_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no such file" in message(lambda: read_sentences(tmp_path / "absent.txt"))
    assert "is a directory; name one file" in message(lambda: read_sentences(tmp_path))
    path = write(tmp_path / "a.txt", "a\n")
    if os.name == "posix" and os.geteuid() != 0:
        path.chmod(0)
    else:  # the superuser reads everything, so the refusal is played
        def refuse(*_args: object, **_kwargs: object) -> None:
            raise PermissionError(13, "Permission denied")
        monkeypatch.setattr(Path, "open", refuse)
    assert message(lambda: read_sentences(path)) == f"can't read {path}: Permission denied"


def test_long_field(tmp_path: Path) -> None:
    text = "word " * 100_000
    path = write(tmp_path / "a.csv", f"text\n{text}\n")
    assert read_sentences(DataSource(path=str(path), columns=("text",))) == [text.strip()]


class TestHub:
    """Ids against mistyped paths; nothing here touches the network."""

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[object, ...]]:
        datasets = pytest.importorskip("datasets")
        calls: list[tuple[object, ...]] = []

        def load_dataset(name: str, config: str | None, *, data_files: str | None, split: str) -> object:
            calls.append((name, config, data_files, split))
            return datasets.Dataset.from_dict({"a": ["x", "y"], "b": ["p", "q"]})

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        monkeypatch.setattr(hub_module.socket, "getaddrinfo", lambda *_: [])
        monkeypatch.chdir(tmp_path)
        return calls

    def test_ids_are_loaded(self, asked: list[tuple[object, ...]]) -> None:
        assert read_pairs("owner/name") == [Pair("x", "p"), Pair("y", "q")]
        source = DataSource(path="glue", config="stsb", split="validation", data_files="f.txt", columns=("b",))
        assert read_sentences(source) == ["p", "q"]
        assert asked == [("owner/name", None, None, "train"), ("glue", "stsb", "f.txt", "validation")]
        assert "owner/name has no column 'c'" in message(
            lambda: read_sentences(DataSource(path="owner/name", columns=("c",))))

    @pytest.mark.parametrize("path", ["./owner/name", "owner/name/file", "owner/name.txt", "owner/n.jsonl.gz", "name"])
    def test_paths_are_not_fetched(self, asked: list[tuple[object, ...]], path: str) -> None:
        assert "no such file" in message(lambda: read_sentences(path))
        assert asked == []

    def test_an_id_under_an_existing_folder_is_a_mistyped_path(self, asked: list[tuple[object, ...]]) -> None:
        Path("owner").mkdir()
        assert "no such file: 'owner/name'" in message(lambda: read_sentences("owner/name"))
        assert "set split" in message(lambda: read_sentences("owner/name"))
        assert asked == []
        assert read_pairs(DataSource(path="owner/name", split="train")) == [Pair("x", "p"), Pair("y", "q")]

    def test_offline_says_what_to_do(self, asked: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
        def offline(*_args: object, **_kwargs: object) -> None:
            raise ConnectionError("Couldn't reach 'owner/name' on the Hub\nat all")
        monkeypatch.setattr("datasets.load_dataset", offline)
        found = message(lambda: read_sentences("owner/name"))
        assert found.startswith("'owner/name' is neither a file here nor a data set that can be fetched")
        assert "pass the local file" in found

    def test_unknown_split_is_one_line(self, asked: list[tuple[object, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
        def unknown(*_args: object, **_kwargs: object) -> None:
            raise ValueError('Unknown split "dev".\nShould be one of train.')
        monkeypatch.setattr("datasets.load_dataset", unknown)
        found = message(lambda: read_sentences(DataSource(path="owner/name", split="dev")))
        assert found.endswith('can\'t be read with split=dev: Unknown split "dev".')

    def test_an_unresolved_host_is_offline_mode_until_done(self, monkeypatch: pytest.MonkeyPatch) -> None:
        constants = pytest.importorskip("huggingface_hub.constants")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(hub_module.urllib.request, "getproxies", dict)

        def unresolved(*_args: object) -> None:
            raise OSError("Name or service not known")
        monkeypatch.setattr(hub_module.socket, "getaddrinfo", unresolved)
        with hub_module.fail_fast_offline():
            assert constants.HF_HUB_OFFLINE is True
        assert constants.HF_HUB_OFFLINE is False


def test_source_from_yaml_values() -> None:
    assert DataSource.model_validate("a.txt") == DataSource(path="a.txt")
    assert DataSource.model_validate({"path": "a.tsv", "columns": "text"}).columns == ("text",)
    assert DataSource.model_validate({"path": "a.tsv", "columns": [1, 3]}).columns == ("1", "3")
    with pytest.raises(ValidationError, match="colums"):
        DataSource.model_validate({"path": "a.tsv", "colums": ["x"]})


class TestIterTexts:
    def test_keeps_every_row(self, tmp_path: Path) -> None:
        assert list(iter_texts(write(tmp_path / "a.txt", " a \n\nb"))) == [" a ", "", "b"]
        assert list(iter_texts(write(tmp_path / "a.tsv", "text\n a \n\nb\n"), "text")) == [" a ", "", "b"]
        assert list(iter_texts(write(tmp_path / "b.tsv", "1\ta\n2\t\n"), "2", header=False)) == ["a", ""]
        assert list(iter_texts(write(tmp_path / "a.jsonl", '{"t": null}\n{"t": "b"}\n'), "t")) == ["", "b"]

    def test_streams(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.txt", b"good\nb\xffd\n")
        texts = iter_texts(path)
        assert next(texts) == "good"
        assert "line 2" in message(lambda: next(texts))

    @pytest.mark.parametrize("zipped", [False, True])
    def test_standard_input(self, monkeypatch: pytest.MonkeyPatch, zipped: bool) -> None:
        data = b"a\n\xe5\x8f\xb0\n"
        stream = io.BufferedReader(io.BytesIO(gzip.compress(data) if zipped else data))  # type: ignore[arg-type]
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream))
        assert list(iter_texts("-")) == ["a", "台"]

    def test_standard_input_as_jsonl_and_empty(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def feed(data: bytes) -> None:
            stream = io.BufferedReader(io.BytesIO(data))  # type: ignore[arg-type]
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream))
        feed(b'{"t": "a"}\n')
        assert list(iter_texts("-", "t", format="jsonl")) == ["a"]
        feed(b"")
        assert message(lambda: list(iter_texts("-"))) == "standard input is empty"


def test_import_is_light() -> None:
    code = ("import sys, distilface.data, distilface.evaluation; "
            "print([m for m in ('torch', 'transformers', 'scipy', 'datasets', 'pyarrow') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.shared
def test_shared_training_text(shared_data: Path) -> None:
    groups = read_groups(shared_data / "caption_groups.tsv.gz")
    assert len(groups) == 28_995
    assert {len(group) for group in groups} == {2, 3, 4, 5}
    triplets = read_triplets(shared_data / "nli_triplets.tsv.gz")
    assert len(triplets) == 5_715
    assert triplets[0].negative == "The men are fighting outside a deli ."
    assert len(read_sentences(shared_data / "sentences.txt.gz")) == 400_000
