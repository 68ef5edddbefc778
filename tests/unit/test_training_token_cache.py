"""Token ids are kept by content, read back as they were, and made again when the file is not whole."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distilface.config import load_config
from distilface.tokenizer import Tokenizer
from distilface.training import token_cache
from distilface.training.config import SourceConfig
from distilface.training.token_cache import entry, load_data
from tests.tiny import tiny_tokenizer


@pytest.fixture()
def tokenizer(tmp_path: Path) -> Tokenizer:
    (tmp_path / "tokenizer").mkdir()
    tiny_tokenizer(tmp_path / "tokenizer")
    return Tokenizer.load(tmp_path / "tokenizer", 12)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DISTILFACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokens"


@pytest.fixture()
def sources(tmp_path: Path) -> list[SourceConfig]:
    """Sentences, groups of which one is dropped, and scored pairs; the first sentence is in all of them."""
    (tmp_path / "text.txt").write_text("turn on the light\nplay music\nturn on the lamp\n")
    (tmp_path / "groups.tsv").write_text("turn on the light\tlight on\tlamp on\nalone\nmusic\tsongs\n")
    (tmp_path / "scored.tsv").write_text("turn on the light\tlamp on\t4.5\nplay music\tlight\t0\n")
    return [SourceConfig(path=str(tmp_path / "text.txt")),
            SourceConfig(path=str(tmp_path / "groups.tsv"), kind="groups"),
            SourceConfig(path=str(tmp_path / "scored.tsv"), kind="scored")]


def assert_equal(first: Any, second: Any) -> None:
    (rows, examples), (other_rows, other_examples) = first, second
    assert (rows.lengths == other_rows.lengths).all() and rows.texts == other_rows.texts
    for name, array in rows.batch([4, 0, 2]).items():
        assert (array == other_rows.batch([4, 0, 2])[name]).all()
    for one, other in zip(examples, other_examples, strict=True):
        assert (one.name, one.kind, one.sha256) == (other.name, other.kind, other.sha256)
        np.testing.assert_array_equal(one.texts, other.texts)
        assert (one.scores is None) == (other.scores is None)
        if one.scores is not None:
            np.testing.assert_array_equal(one.scores, other.scores)


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on nothing may be tokenised."""
    monkeypatch.setattr(token_cache, "load_examples", lambda *_: pytest.fail("read and tokenised again"))


@pytest.mark.parametrize("keep_texts", [False, True])
def test_a_second_run_reads_what_the_first_wrote(sources: list[SourceConfig], tokenizer: Tokenizer, cache: Path,
                                                 monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
                                                 keep_texts: bool) -> None:
    first = load_data(sources, tokenizer, keep_texts)
    assert "dropped 1 incomplete group" in caplog.text
    caplog.clear()
    forbid(monkeypatch)
    second = load_data(sources, tokenizer, keep_texts)
    assert_equal(first, second)
    assert not second[0].ids.flags.owndata and not second[0].ids.flags.writeable  # mapped, not copied
    assert "dropped 1 incomplete group" in caplog.text  # what the user should know does not depend on the cache
    assert second[0].texts is None or second[0].texts[0] == "turn on the light"
    assert len(list(cache.iterdir())) == 1


def test_an_entry_belongs_to_content_and_settings(sources: list[SourceConfig], tokenizer: Tokenizer,
                                                  tmp_path: Path) -> None:
    text = tmp_path / "text.txt"

    def name(tokenizer: Tokenizer = tokenizer, keep_texts: bool = False, path: Path = text, **settings: Any) -> Path:
        found = entry([SourceConfig(path=str(path), **settings)], tokenizer, keep_texts)
        assert found is not None
        return found

    shutil.copy(text, tmp_path / "moved.txt")
    assert name(path=tmp_path / "moved.txt") == name()
    other_folder = tmp_path / "bytes"
    other_folder.mkdir()
    tiny_tokenizer(other_folder, "roberta")
    shutil.copy(text, tmp_path / "text.csv")
    names = [name(), name(keep_texts=True), name(limit=2), name(kind="pairs"), name(columns=["1"], header=False),
             name(tokenizer.with_limit(11)), name(Tokenizer.load(other_folder, 12)), name(path=tmp_path / "text.csv"),
             name(Tokenizer.load(tmp_path / "tokenizer", 12, special_tokens="escape"))]
    with text.open("a") as file:
        file.write("more\n")
    assert len({*names, name()}) == len(names) + 1


@pytest.mark.parametrize("damage", ["half", "empty", "garbage", "tail"])
def test_a_damaged_file_is_made_again(sources: list[SourceConfig], tokenizer: Tokenizer, cache: Path,
                                      caplog: pytest.LogCaptureFixture, damage: str) -> None:
    first = load_data(sources, tokenizer, True)
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    file.write_bytes({"half": whole[: len(whole) // 2], "empty": b"", "garbage": bytes(len(whole)),
                      "tail": whole[:-1]}[damage])
    assert_equal(load_data(sources, tokenizer, True), first)
    assert "damaged or incomplete" in caplog.text
    assert file.read_bytes() == whole


def test_an_interrupted_run_leaves_no_file(sources: list[SourceConfig], tokenizer: Tokenizer, cache: Path,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow

    with monkeypatch.context() as patch:
        patch.setattr(pyarrow.ipc, "new_file", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            load_data(sources, tokenizer)
    assert list(cache.iterdir()) == []
    load_data(sources, tokenizer)
    assert len(list(cache.iterdir())) == 1


def test_of_many_processes_one_writes(sources: list[SourceConfig], tokenizer: Tokenizer, cache: Path,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    other = load_data(sources, tokenizer)
    assert not cache.exists()
    monkeypatch.setenv("RANK", "0")
    load_data(sources, tokenizer)
    monkeypatch.setenv("RANK", "1")
    forbid(monkeypatch)
    assert_equal(load_data(sources, tokenizer), other)


def test_it_can_be_turned_off_and_is_not_needed(sources: list[SourceConfig], tokenizer: Tokenizer, cache: Path,
                                                tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                caplog: pytest.LogCaptureFixture) -> None:
    from distilface.training import TrainConfig

    assert load_config(TrainConfig, sets=["model.name=m", "data.path=t"]).train.token_cache
    load_data(sources, tokenizer, cached=False)
    assert not cache.exists()
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("DISTILFACE_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        assert len(load_data(sources, tokenizer)[1][0]) == 3
    assert "can't be kept" in caplog.text and "token_cache=false" in caplog.text


def test_what_is_no_file_is_not_cached(sources: list[SourceConfig], tokenizer: Tokenizer) -> None:
    assert entry([*sources, SourceConfig(path="-")], tokenizer, False) is None
    assert entry([SourceConfig(path="some/dataset", split="train", columns=["a"])], tokenizer, False) is None
