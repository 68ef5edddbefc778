"""Text to ids: golden ids, one length limit, no fixed padding, and texts that hold what they should not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from tokenizers import Tokenizer as FastTokenizer

from distilface.errors import UserError
from distilface.tokenizer import Tokenizer, check_texts, declared_length
from tests.tiny import ARCHITECTURES, tiny_tokenizer

GOLDEN_IDS = {
    "The capital of France is Paris.": [101, 1996, 3007, 1997, 2605, 2003, 3000, 1012, 102],
    "Kantō": [101, 26044, 2080, 102],
    "cost $5 + 3 = 8 °C © 😀": [101, 3465, 1002, 1019, 1009, 1017, 1027, 1022, 6362, 1075, 100, 102],
    "台北‧08月20日": [101, 100, 1781, 100, 5511, 1872, 2322, 1864, 102],
    "": [101, 102], "   ": [101, 102], "\x00": [101, 102], "\u200b": [101, 102],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer(path, max_length=16)
    return path


def _json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("text", GOLDEN_IDS)
def test_golden_ids(minilm: Path, text: str) -> None:
    assert Tokenizer.load(minilm).encode_batch([text]) == [GOLDEN_IDS[text]]


def test_golden_ids_beside_each_other_and_after_a_save(minilm: Path, tmp_path: Path) -> None:
    Tokenizer.load(minilm).save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.encode_batch(list(GOLDEN_IDS)) == list(GOLDEN_IDS.values())
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert [theirs(text)["input_ids"] for text in GOLDEN_IDS] == list(GOLDEN_IDS.values())


def test_a_special_token_in_the_text_is_parsed_by_default_and_escaped_on_request(minilm: Path) -> None:
    words = {word: index for index, word in enumerate((minilm / "vocab.txt").read_text(encoding="utf-8").split("\n"))}
    before, after = [words["this"], words["is"]], [words["a"], words["test"]]
    text = ["this is[SEP]a test"]
    assert Tokenizer.load(minilm).encode_batch(text) == [[101, *before, 102, *after, 102]]
    (escaped,) = Tokenizer.load(minilm, special_tokens="escape").encode_batch(text)
    assert escaped.count(102) == 1
    spelled = [words["["], words["sep"], words["]"]]
    assert escaped == [101, *before, *spelled, *after, 102]


def test_the_package_with_three_limits_and_a_fixed_padding_gets_one_and_none(minilm: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(minilm)
    assert tokenizer.max_seq_length == 256  # not 128 (tokenizer.json), not 512 (tokenizer_config.json)
    assert len(tokenizer.encode_batch(["short"])[0]) == 3
    tokenizer.save(tmp_path)
    saved = _json(tmp_path / "tokenizer.json")
    assert (saved["truncation"]["max_length"], saved["padding"]) == (256, None)
    assert _json(tmp_path / "tokenizer_config.json")["model_max_length"] == 256
    assert len(tokenizer.encode_batch(["word " * 1000])[0]) == 256


def test_the_limit_counts_special_tokens_and_keeps_the_last(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    long = "light " * 40
    cut, short, full = tokenizer.encode_batch([long, "light", "light " * 14])
    light = tokenizer.backend.token_to_id("light")
    cls, sep = tokenizer.backend.token_to_id("[CLS]"), tokenizer.backend.token_to_id("[SEP]")
    assert cut == full == [cls, *[light] * 14, sep]
    assert short == [cls, light, sep]


def test_texts_over_the_limit_are_reported(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    texts = ["light", "light " * 15, "light " * 14, "light " * 1000]
    rows, cut = tokenizer.encode_reporting(texts)
    assert cut == [1, 3]
    assert rows == tokenizer.encode_batch(texts)


def test_a_hundred_thousand_words(folder: Path) -> None:
    rows, cut = Tokenizer.load(folder).encode_reporting(["word " * 100_000])
    assert (len(rows[0]), cut) == (16, [0])


def test_another_limit_keeps_the_rest(folder: Path) -> None:
    shorter = Tokenizer.load(folder, special_tokens="escape").with_limit(4)
    assert shorter.max_seq_length == 4
    (row,) = shorter.encode_batch(["[SEP] light light light"])
    assert len(row) == 4 and row.count(shorter.backend.token_to_id("[SEP]")) == 1


@pytest.mark.parametrize("limit", [2, 1, 0, -5])
def test_a_limit_without_room_for_text_is_refused(folder: Path, limit: int) -> None:
    with pytest.raises(UserError, match=f"max_seq_length {limit}"):
        Tokenizer.load(folder, limit)


def test_the_backend_handed_in_stays_as_it_was(folder: Path) -> None:
    backend = FastTokenizer.from_file(str(folder / "tokenizer.json"))
    backend.enable_padding(length=32)
    backend.enable_truncation(7)
    before = backend.to_str()
    tokenizer = Tokenizer(backend, 16)
    assert len(tokenizer.encode_batch(["light"])[0]) == 3
    assert backend.to_str() == before


def test_pad_by_hand(folder: Path) -> None:
    tokenizer = Tokenizer(FastTokenizer.from_file(str(folder / "tokenizer.json")), 16, pad_token_id=9)
    feed = tokenizer.pad([[2, 3], [4, 5, 6], [7]])
    assert feed["input_ids"].tolist() == [[2, 3, 9], [4, 5, 6], [7, 9, 9]]
    assert feed["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1], [1, 0, 0]]
    assert {array.dtype for array in feed.values()} == {np.dtype(np.int64)}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_padding_id_is_the_models(tmp_path: Path, architecture: str) -> None:
    tiny_tokenizer(tmp_path, architecture)
    expected = 0 if architecture in ("distilbert", "bert") else 1
    assert Tokenizer.load(tmp_path).pad_token_id == expected


def test_the_padding_id_falls_back_on_the_models_configuration(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "tokenizer.json", tmp_path)
    (tmp_path / "config.json").write_text('{"pad_token_id": 3, "max_position_embeddings": 8}', encoding="utf-8")
    assert Tokenizer.load(tmp_path).pad_token_id == 3


# ----------------------------------------------------------------- texts


def test_lone_surrogates_become_the_replacement_character() -> None:
    texts = ["half \ud83d an emoji", "\ude00", "\ud83d\ude00", "whole 😀", "plain", ""]
    checked = check_texts(texts)
    assert checked == ["half \ufffd an emoji", "\ufffd", "😀", "whole 😀", "plain", ""]
    assert all(text.encode("utf-8") is not None for text in checked)


@pytest.mark.parametrize(("texts", "index", "kind"), [
    ([None], 0, "NoneType"), (["a", "b", 3], 2, "int"), (["a", b"bytes"], 1, "bytes"), ([["a"]], 0, "list")])
def test_an_item_that_is_no_text_is_named_by_its_index(texts: list[Any], index: int, kind: str) -> None:
    with pytest.raises(TypeError, match=f"index {index} is {kind}"):
        check_texts(texts)


@pytest.mark.parametrize("text", ["one string", b"bytes"])
def test_a_bare_string_is_refused(text: Any) -> None:
    with pytest.raises(TypeError, match="list of texts"):
        check_texts(text)


def test_any_iterable_of_texts_will_do() -> None:
    assert check_texts(word for word in ("a", "b")) == ["a", "b"]
    assert check_texts([]) == []


# ----------------------------------------------------------------- limits that files declare


def _declare(folder: Path, **files: Any) -> Path:
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    return folder


@pytest.mark.parametrize(("files", "expected"), [
    ({"sentence_bert_config": {"max_seq_length": 256}, "tokenizer": {"truncation": {"max_length": 128}},
      "tokenizer_config": {"model_max_length": 512}, "config": {"max_position_embeddings": 512}}, 256),
    ({"tokenizer": {"truncation": {"max_length": 128}}, "tokenizer_config": {"model_max_length": 512}}, 128),
    ({"tokenizer": {"truncation": None}, "tokenizer_config": {"model_max_length": 512}}, 512),
    ({"tokenizer_config": {"model_max_length": int(1e30)}, "config": {"max_position_embeddings": 40}}, 40),
    ({"config": {"model_type": "roberta", "max_position_embeddings": 514}}, 512),
    ({"config": {"model_type": "mpnet", "max_position_embeddings": 514}}, 512),
    ({"config": {"model_type": "xlm-roberta", "max_position_embeddings": 514}}, 512),
    ({"tokenizer_config": {"model_max_length": int(1e30)}}, None),
    ({"sentence_bert_config": {"max_seq_length": None}, "config": {"max_position_embeddings": 64}}, 64),
    ({}, None),
])
def test_declared_length(tmp_path: Path, files: dict[str, Any], expected: int | None) -> None:
    assert declared_length(_declare(tmp_path, **files)) == expected


def test_no_limit_anywhere_is_an_error(folder: Path, tmp_path: Path) -> None:
    backend = FastTokenizer.from_file(str(folder / "tokenizer.json"))
    backend.no_truncation()
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match="names no length limit"):
        Tokenizer.load(tmp_path)
    assert Tokenizer.load(tmp_path, 12).max_seq_length == 12


@pytest.mark.parametrize("content", [None, "{", '{"model": 1}'])
def test_a_missing_or_damaged_tokenizer_is_one_line(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=r"tokenizer\.json") as caught:
        Tokenizer.load(tmp_path, 8)
    assert "\n" not in str(caught.value)


def test_a_damaged_settings_file_is_one_line(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "tokenizer_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match=r"tokenizer_config\.json.* is not valid JSON"):
        Tokenizer.load(tmp_path, 8)


# ----------------------------------------------------------------- saving


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_saved_tokenizer_gives_the_same_ids_here_and_in_transformers(tmp_path: Path, architecture: str) -> None:
    source, saved = tmp_path / "source", tmp_path / "saved"
    saved.mkdir()
    tiny_tokenizer(source, architecture)
    Tokenizer.load(source, 12).save(saved)
    texts = ["turn on the light", "", "Kantō 😀", "play music " * 20]
    expected = Tokenizer.load(source, 12).encode_batch(texts)
    assert Tokenizer.load(saved).encode_batch(texts) == expected
    theirs = transformers.AutoTokenizer.from_pretrained(saved)
    assert theirs.model_max_length == 12
    assert theirs(texts, truncation=True)["input_ids"] == expected
    assert theirs.pad_token_id == Tokenizer.load(saved).pad_token_id


def test_a_save_names_one_limit_everywhere_and_drops_what_would_pad_or_mislead(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "source")
    settings = _json(folder / "tokenizer_config.json") | {
        "max_length": 128, "pad_to_multiple_of": 8, "padding": "max_length", "truncation": True, "stride": 3,
        "name_or_path": "/home/somebody/model", "tokenizer_class": "TokenizersBackend"}
    _declare(tmp_path / "source", tokenizer_config=settings)
    saved = tmp_path / "saved"
    saved.mkdir()
    Tokenizer.load(tmp_path / "source", 10).save(saved)
    written = _json(saved / "tokenizer_config.json")
    assert written["model_max_length"] == 10
    assert not written.keys() & {"max_length", "pad_to_multiple_of", "padding", "truncation", "stride", "name_or_path"}
    assert written["tokenizer_class"] == "PreTrainedTokenizerFast"  # the class transformers 4 and 5 both know
    tokenizer = _json(saved / "tokenizer.json")
    assert (tokenizer["truncation"]["max_length"], tokenizer["padding"]) == (10, None)
    assert declared_length(saved) == 10
    assert _json(saved / "special_tokens_map.json") == {
        "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}


def test_vocab_txt_lists_the_words_by_id(folder: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    tokenizer.save(tmp_path)
    words = (tmp_path / "vocab.txt").read_text(encoding="utf-8").splitlines()
    assert words[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert [tokenizer.backend.token_to_id(word) for word in words] == list(range(len(words)))


def test_a_byte_tokenizer_has_no_vocab_txt(tmp_path: Path) -> None:
    tiny_tokenizer(tmp_path / "source", "roberta")
    (tmp_path / "saved").mkdir()
    Tokenizer.load(tmp_path / "source").save(tmp_path / "saved")
    assert not (tmp_path / "saved" / "vocab.txt").exists()


def test_escaping_belongs_to_the_reader_and_is_not_saved(folder: Path, tmp_path: Path) -> None:
    escaping = Tokenizer.load(folder, special_tokens="escape")
    before = escaping.encode_batch(["[SEP]"])
    escaping.save(tmp_path)
    assert escaping.encode_batch(["[SEP]"]) == before
    (parsed,) = Tokenizer.load(tmp_path).encode_batch(["[SEP]"])
    assert parsed.count(escaping.backend.token_to_id("[SEP]")) == 2


def test_an_encoder_without_token_types_says_so(tmp_path: Path) -> None:
    """transformers 4 gives a tokenizer of no particular model token types, and DistilBERT refuses them."""
    tiny_tokenizer(tmp_path)
    Tokenizer.load(tmp_path).save(tmp_path, token_types=False)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    assert sorted(loaded(["turn on the light"])) == ["attention_mask", "input_ids"]
