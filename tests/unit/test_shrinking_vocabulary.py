"""Trimmed vocabularies: what stays, that texts keep their ids and vectors, and that nothing becomes unknown."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from distilface.encoder import SentenceEncoder
from distilface.errors import UserError
from distilface.shrinking import shrink
from distilface.shrinking.pieces import Pieces
from distilface.shrinking.vocabulary import choose_pieces
from distilface.smarthome import utterances
from tests.tiny import ARCHITECTURES, CORPUS, tiny_checkpoint

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def _write(file: Path, *lines: str) -> Path:
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def _wordpiece(words: list[str]) -> FastTokenizer:
    tokenizer = FastTokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([special for special in SPECIALS if special in words])
    return tokenizer


def _counts(backend: FastTokenizer, *texts: str) -> Any:
    ids = [index for text in texts for index in backend.encode(text, add_special_tokens=False).ids]
    return np.bincount(ids, minlength=backend.get_vocab_size())


def _train(kind: str, texts: list[str]) -> FastTokenizer:
    """A trained tokenizer of each kind with about 600 pieces."""
    if kind == "WordPiece":
        tokenizer = FastTokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer: Any = trainers.WordPieceTrainer(vocab_size=600, special_tokens=SPECIALS, show_progress=False)
    elif kind == "BPE":
        tokenizer = FastTokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(vocab_size=800, special_tokens=SPECIALS, show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    else:
        tokenizer = FastTokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=600, special_tokens=SPECIALS, unk_token="[UNK]",
                                          show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    ids = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ids)
    return tokenizer


def _checkpoint(folder: Path, architecture: str, tokenizer: FastTokenizer) -> Path:
    tiny_checkpoint(folder, architecture, layers=2)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=64, cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]",
        unk_token="[UNK]", mask_token="[MASK]").save_pretrained(folder)
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    values |= {"vocab_size": tokenizer.get_vocab_size() + 5, "pad_token_id": tokenizer.token_to_id("[PAD]")}
    config = transformers.AutoConfig.for_model(**values)
    torch.manual_seed(0)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    return folder


# ----------------------------------------------------------------- which pieces stay


def test_coverage_keeps_the_most_frequent_pieces_by_hand() -> None:
    """10 tokens: light 5, lamp 3, fan 1, x 1. x is a single character and stays, light makes 60 %, lamp 90 %."""
    letters = list("lightampfnx")
    words = [*SPECIALS, *letters, *(f"##{c}" for c in letters), "fan", "lamp", "light", "gift", "path"]
    backend = _wordpiece(words)
    pieces = Pieces.of(backend)
    assert pieces.basic == {*SPECIALS, *letters, *(f"##{c}" for c in letters)} and pieces.unspelled == 0
    counts = _counts(backend, "light " * 5 + "lamp " * 3 + "fan x")
    for coverage, kept in ((10, set()), (59, {"light"}), (60, {"light"}), (60.5, {"light", "lamp"}),
                           (90, {"light", "lamp"}), (100, {"light", "lamp", "fan"})):
        assert choose_pieces(pieces, counts, coverage) - pieces.basic == kept


def test_a_removed_word_falls_back_to_smaller_pieces_and_ids_close_up() -> None:
    letters = list("abl")
    words = ["[PAD]", "lab", "[UNK]", *letters, *(f"##{c}" for c in letters), "##ll", "ball", "all"]
    backend = _wordpiece(words)
    pieces = Pieces.of(backend)
    trimmed, mapping = pieces.rebuild(pieces.basic | {"##ll"})
    assert "lab" not in trimmed.get_vocab()
    assert trimmed.token_to_id("[UNK]") == 1 and mapping[2] == 1 and mapping[3] == 2
    assert trimmed.encode("ball all").tokens == ["b", "##a", "##ll", "a", "##ll"]


def test_a_piece_that_cannot_be_spelled_stays() -> None:
    """##é is no piece: without "café" the word would be unknown."""
    words = ["[UNK]", *"caf", "##a", "##f", "café", "caf"]
    pieces = Pieces.of(_wordpiece(words))
    assert "café" in pieces.basic and "caf" not in pieces.basic and pieces.unspelled == 1


def test_a_bpe_token_stays_with_the_merges_that_lead_to_it() -> None:
    vocab = {piece: i for i, piece in enumerate(["a", "b", "c", "ab", "bc", "abc", "ca"])}
    backend = FastTokenizer(models.BPE(vocab, [("a", "b"), ("b", "c"), ("ab", "c"), ("c", "a")]))
    pieces = Pieces.of(backend)
    assert pieces.basic == {"a", "b", "c"} and pieces.closure("abc") == {"abc", "ab", "a", "b", "c"}
    kept = choose_pieces(pieces, _counts(backend, "abc"), 100)
    assert kept == {"a", "b", "c", "ab", "abc"}
    trimmed, _ = pieces.rebuild(kept)
    assert trimmed.encode("abc").tokens == ["abc"] and trimmed.encode("caabbc").tokens == ["c", "a", "ab", "b", "c"]


def test_unigram_keeps_its_lowest_score_because_unknowns_are_priced_by_it() -> None:
    vocab = [("<unk>", 0.0), ("a", -1.0), ("b", -2.0), ("ab", -1.5), ("bb", -9.0), ("éa", -3.0), ("aba", -3.5)]
    pieces = Pieces.of(FastTokenizer(models.Unigram(vocab, 0, False)))
    assert pieces.basic == {"<unk>", "a", "b", "bb", "éa"} and pieces.unspelled == 1
    trimmed, mapping = pieces.rebuild(pieces.basic)
    assert trimmed.encode("aba").tokens == ["a", "b", "a"] and mapping == {0: 0, 1: 1, 2: 2, 4: 3, 5: 4}


@pytest.mark.parametrize("kind", ["WordPiece", "Unigram", "BPE"])
def test_nothing_becomes_unknown_and_whole_texts_keep_their_tokens(kind: str) -> None:
    """Random words over the alphabet, in and out of the corpus, at several coverages."""
    texts = [item.text for item in utterances()]
    backend = _train(kind, texts)
    pieces = Pieces.of(backend)
    assert pieces.unspelled == 0
    counts = _counts(backend, *texts[:40])
    source = random.Random(0)
    words = ["".join(source.choices("abcdefghijklmnoprstuwy", k=source.randint(1, 9))) for _ in range(300)]
    probes = [*texts, *CORPUS, *(" ".join(source.choices(words, k=4)) for _ in range(300)), "naïve ☃ Ωmega 😀"]
    for coverage in (1, 50, 90, 100):
        trimmed, mapping = pieces.rebuild(choose_pieces(pieces, counts, coverage))
        assert len(mapping) < len(pieces.ids)
        same = 0
        for text in probes:
            old, new = backend.encode(text), trimmed.encode(text)
            assert new.tokens.count("[UNK]") == old.tokens.count("[UNK]"), text
            if all(index in mapping for index in old.ids):
                same += 1
                assert new.tokens == old.tokens
                assert new.ids == [mapping[index] for index in old.ids]
        assert same >= (1 if coverage < 100 else 40)


def test_a_vocabulary_of_whole_words_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="WordLevel"):
        Pieces.of(FastTokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, "[UNK]")))


@pytest.mark.parametrize("processor", [
    processors.BertProcessing(("[SEP]", 4), ("[CLS]", 3)),
    processors.RobertaProcessing(("[SEP]", 4), ("[CLS]", 3)),
    processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 3), ("[SEP]", 4)])])])
def test_ids_in_every_post_processor_are_renumbered(processor: Any) -> None:
    backend = _wordpiece(["[PAD]", "[UNK]", "word", "[CLS]", "[SEP]", "a", "##a", *"word", *(f"##{c}" for c in "word")])
    backend.post_processor = processor
    pieces = Pieces.of(backend)
    trimmed, _ = pieces.rebuild(pieces.basic)
    assert trimmed.encode("a").ids == [2, 4, 3] and trimmed.encode("a").tokens == ["[CLS]", "a", "[SEP]"]


# ----------------------------------------------------------------- the checkpoint


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rows_of_the_table_are_the_same_bits_and_so_are_vectors(tmp_path: Path, architecture: str) -> None:
    kind = {"roberta": "BPE", "xlm-roberta": "Unigram"}.get(architecture, "WordPiece")
    texts = [item.text for item in utterances()]
    model = _checkpoint(tmp_path / "model", architecture, _train(kind, texts))
    corpus = _write(tmp_path / "corpus.txt", *texts[:60])
    result = shrink(model, tmp_path / "small", vocabulary=corpus, coverage=100)
    old, new = SentenceEncoder.load(model), SentenceEncoder.load(tmp_path / "small")
    np.testing.assert_array_equal(new.encode(texts[:60]), old.encode(texts[:60]))
    assert np.isfinite(new.encode(texts)).all()
    big, small = (encoder.backbone.get_input_embeddings().weight for encoder in (old, new))
    vocab, whole = new.tokenizer.backend.get_vocab(), old.tokenizer.backend.get_vocab()
    for piece, index in vocab.items():
        assert torch.equal(small[index], big[whole[piece]])
    report = result.vocabulary
    assert report is not None
    assert (report.covered, report.texts_unchanged, report.unspelled) == (100, 100, 0)
    assert report.size_after == len(vocab) == len(small) == new.backbone.config.vocab_size < report.size_before
    assert report.bytes_saved == (len(big) - len(small)) * 32 * 4
    assert new.backbone.config.pad_token_id == vocab["[PAD]"] == new.tokenizer.pad_token_id


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_transformers_reads_the_same_ids(tmp_path: Path, architecture: str) -> None:
    kind = {"roberta": "BPE", "xlm-roberta": "Unigram"}.get(architecture, "WordPiece")
    texts = [item.text for item in utterances()]
    model = _checkpoint(tmp_path / "model", architecture, _train(kind, texts))
    shrink(model, tmp_path / "small", vocabulary=_write(tmp_path / "corpus.txt", *texts[:60]), coverage=90)
    ours = SentenceEncoder.load(tmp_path / "small").tokenizer
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "small")
    assert theirs(texts[:80], truncation=True)["input_ids"] == ours.encode_batch(texts[:80])
    assert theirs.pad_token_id == ours.pad_token_id and len(theirs) == ours.backend.get_vocab_size()
    if kind == "WordPiece":
        words = (tmp_path / "small" / "vocab.txt").read_text(encoding="utf-8").splitlines()
        assert {word: index for index, word in enumerate(words)} == ours.backend.get_vocab()


def test_the_padding_id_does_not_move_where_positions_are_counted_from_it(tmp_path: Path) -> None:
    """In RoBERTa position ids start at padding id + 1; pieces below the padding id stay although nothing needs them."""
    words = ["unneeded", "needless", *SPECIALS, *"abdelnsu", *(f"##{c}" for c in "abdelnsu"), "sand"]
    backend = _wordpiece(words)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 4), ("[SEP]", 5)])
    model = _checkpoint(tmp_path / "model", "roberta", backend)
    shrink(model, tmp_path / "small", vocabulary=_write(tmp_path / "corpus.txt", "sand bad"), coverage=100)
    old, new = SentenceEncoder.load(model), SentenceEncoder.load(tmp_path / "small")
    assert old.backbone.config.pad_token_id == new.backbone.config.pad_token_id == 2
    np.testing.assert_array_equal(new.encode(["sand bad", "a"]), old.encode(["sand bad", "a"]))


def test_ids_in_config_and_settings_are_renumbered(tmp_path: Path) -> None:
    words = ["zeal", "[PAD]", "zone", *SPECIALS[1:], *"aelnoz", *(f"##{c}" for c in "aelnoz")]
    backend = _wordpiece(words)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 4), ("[SEP]", 5)])
    model = _checkpoint(tmp_path / "model", "bert", backend)
    file = model / "tokenizer_config.json"
    values = json.loads(file.read_text(encoding="utf-8"))
    values["added_tokens_decoder"] = {"4": {"content": "[CLS]", "special": True}, "1": {"content": "[PAD]"},
                                      "5": {"content": "[SEP]", "special": True}}
    file.write_text(json.dumps(values), encoding="utf-8")
    shrink(model, tmp_path / "small", vocabulary=_write(tmp_path / "corpus.txt", "zone"), coverage=100)
    written = json.loads((tmp_path / "small" / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert {index: token["content"] for index, token in written["added_tokens_decoder"].items()} == {
        "0": "[PAD]", "3": "[CLS]", "4": "[SEP]"}
    old, new = SentenceEncoder.load(model), SentenceEncoder.load(tmp_path / "small")
    assert (old.tokenizer.pad_token_id, old.backbone.config.pad_token_id) == (1, 1)
    assert (new.tokenizer.pad_token_id, new.backbone.config.pad_token_id) == (0, 0)
    np.testing.assert_array_equal(new.encode(["zone", "zone zone"]), old.encode(["zone", "zone zone"]))


# ----------------------------------------------------------------- what is refused


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("model") / "distilbert", layers=1)


@pytest.mark.parametrize("coverage", [0, -1, 100.1, float("nan")])
def test_coverage_is_a_percentage(model: Path, tmp_path: Path, coverage: float) -> None:
    with pytest.raises(UserError, match=r"coverage=.*above 0 and up to 100"):
        shrink(model, tmp_path / "out", vocabulary=_write(tmp_path / "c.txt", *CORPUS), coverage=coverage)


@pytest.mark.parametrize(("lines", "message"), [
    (["", " "], "holds no token"), (["台北の天気", "今日は雨"], "does not know its script")])
def test_a_corpus_that_says_nothing_is_refused(model: Path, tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        shrink(model, tmp_path / "out", vocabulary=_write(tmp_path / "c.txt", *lines))
    assert not (tmp_path / "out").exists()


def test_a_corpus_without_the_targets_script_is_refused(tmp_path: Path) -> None:
    """Trimmed on English, the Greek words of the vocabulary fall apart: 0 of 4 known tokens stay."""
    greek = ["φως", "κουζινα"]
    letters = sorted(set("lightkcen" + "".join(greek)))
    words = [*SPECIALS, *letters, *(f"##{c}" for c in letters), "light", "kitchen", *greek]
    backend = _wordpiece(words)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    model = _checkpoint(tmp_path / "model", "bert", backend)
    english = _write(tmp_path / "english.txt", "light kitchen", "light")
    target = _write(tmp_path / "greek.txt", "φως κουζινα φως 台 φως")
    with pytest.raises(UserError, match=r"covers 0\.0 %.*floor: 95 %.*lacks 'φως', 'κουζινα'"):
        shrink(model, tmp_path / "out", vocabulary=english, check_texts=target)
    assert not (tmp_path / "out").exists()
    both = _write(tmp_path / "both.txt", "light kitchen φως κουζινα")
    report = shrink(model, tmp_path / "out", vocabulary=both, coverage=100, check_texts=target).vocabulary
    assert report is not None and report.check_covered == 100
    with pytest.raises(UserError, match="knows no token of the check texts"):
        shrink(model, tmp_path / "no", vocabulary=english, check_texts=_write(tmp_path / "zh.txt", "台北 天気"))


def test_a_tokenizer_with_more_ids_than_the_table_has_rows_is_refused(model: Path, tmp_path: Path) -> None:
    encoder = SentenceEncoder.load(model)
    encoder.tokenizer.backend.add_tokens(["thermostat"])
    (tmp_path / "model").mkdir()
    encoder.save(tmp_path / "model")
    with pytest.raises(UserError, match="do not belong together"):
        shrink(tmp_path / "model", tmp_path / "out", vocabulary=_write(tmp_path / "c.txt", *CORPUS))


def test_pieces_that_cannot_be_spelled_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    words = [*SPECIALS, *"caf", "##a", "##f", "##c", "café", "caf"]
    backend = _wordpiece(words)
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    model = _checkpoint(tmp_path / "model", "bert", backend)
    report = shrink(model, tmp_path / "out", vocabulary=_write(tmp_path / "c.txt", "a caf"), coverage=50).vocabulary
    assert report is not None and report.unspelled == 1
    assert "1 pieces were kept" in caplog.text
    assert SentenceEncoder.load(tmp_path / "out").tokenizer.backend.encode("café").tokens[1:-1] == ["café"]
