"""Smaller checkpoints: layers, FFN units, BERT as DistilBERT, all of it in one call, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional

from distilface.cli import run as command_line
from distilface.encoder import SentenceEncoder
from distilface.errors import GateError, UserError
from distilface.shrinking import shrink
from distilface.shrinking.distilbert import to_distilbert
from distilface.shrinking.ffn import prune_ffn, unit_stats
from distilface.shrinking.layers import choose_layers, evenly_spaced, read_ranking
from tests.tiny import ARCHITECTURES, CORPUS, tiny_checkpoint

TEXTS = [*CORPUS, "", "😀", "zebra 42", "light " * 80]


def _refused(model: Path, out: Path, **arguments: Any) -> str:
    with pytest.raises(UserError) as caught:
        shrink(model, out, **arguments)
    assert "\n" not in str(caught.value)
    assert not out.exists() and not list(out.parent.glob(f".{out.name}*"))
    return str(caught.value)


def _write(file: Path, text: str) -> Path:
    file.write_text(text, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("bert") / "model", "bert", layers=4)


@pytest.fixture(scope="module")
def distilbert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("distilbert") / "model", "distilbert", layers=4)


# ----------------------------------------------------------------- which layers


@pytest.mark.parametrize(("total", "count", "kept"), [
    (6, 3, (1, 3, 5)), (12, 6, (1, 3, 5, 7, 9, 11)), (6, 4, (0, 2, 3, 5)), (6, 1, (5,)), (6, 6, (0, 1, 2, 3, 4, 5)),
    (7, 2, (2, 6))])
def test_evenly_spaced_layers_end_with_the_last(total: int, count: int, kept: tuple[int, ...]) -> None:
    assert evenly_spaced(total, count) == kept


def test_given_layers_are_kept_in_their_order_in_the_model() -> None:
    assert choose_layers(6, keep=[5, 1, 3]) == (1, 3, 5)


@pytest.mark.parametrize(("name", "content"), [
    ("r.json", "[3, 0, 2, 1]"), ("r.json", '[{"layer": 3, "x": 1}, {"layer": 0}, {"layer": 2}, {"layer": 1}]'),
    ("r.csv", "score,layer\n9,3\n8,0\n7,2\n6,1\n"), ("r.tsv", "layer\tscore\n3\t9\n0\t8\n2\t7\n1\t6\n"),
    ("r.jsonl", '{"layer": 3}\n{"layer": 0}\n{"layer": 2}\n{"layer": 1}\n')])
def test_a_ranking_is_read_from_a_list_or_a_table(tmp_path: Path, name: str, content: str) -> None:
    file = _write(tmp_path / name, content)
    assert read_ranking(file) == [3, 0, 2, 1]
    assert choose_layers(4, count=2, ranking=file) == (0, 3)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"keep": []}, "names no layer"), ({"keep": [0, 4]}, "layer 4; the encoder has layers 0 to 3"),
    ({"keep": [-1]}, "layer -1"), ({"keep": [1, 2, 1]}, "layer 1 more than once"),
    ({"count": 0}, "layers=0 is out of range"), ({"count": 5}, "keep 1 to 4"),
    ({"keep": [1], "count": 1}, "drop layers"), ({"ranking": "r.json"}, "say how many")])
def test_wrong_choices_of_layers_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        choose_layers(4, **arguments)


@pytest.mark.parametrize(("content", "message"), [
    ("[1]", "names 1 layers"), ("[1, 1]", "more than once"), ("[9, 1]", "layer 9"), ('["a"]', "'a'"), ("{", "JSON"),
    ("[]", "no layer"), ("[true, 1]", "True")])
def test_a_wrong_ranking_is_refused(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        choose_layers(4, count=2, ranking=_write(tmp_path / "r.json", content))


# ----------------------------------------------------------------- dropping them


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kept_layers_run_one_after_the_other(tmp_path: Path, architecture: str) -> None:
    """The reference is the original with an identity in place of each dropped layer."""
    model = tiny_checkpoint(tmp_path / "model", architecture, layers=4)
    result = shrink(model, tmp_path / "small", keep_layers=[0, 3])
    assert result.layers == (0, 3)
    reference = SentenceEncoder.load(model)
    layers = (reference.backbone.transformer if architecture == "distilbert" else reference.backbone.encoder).layer
    passing = (lambda hidden, *_, **__: (hidden,)) if architecture == "mpnet" else (lambda hidden, *_, **__: hidden)
    if transformers.__version__.startswith("4."):
        passing = lambda hidden, *_, **__: (hidden,)  # noqa: E731
    for index in (1, 2):
        layers[index].forward = passing
    small = SentenceEncoder.load(tmp_path / "small")
    assert small.num_layers == 2
    np.testing.assert_array_equal(small.encode(TEXTS), reference.encode(TEXTS))


def test_pooling_head_and_limit_stay(distilbert: Path, tmp_path: Path) -> None:
    trained = SentenceEncoder.load(distilbert, "mean_last2", max_seq_length=20, head="kept")
    (tmp_path / "trained").mkdir()
    trained.save(tmp_path / "trained")
    shrink(tmp_path / "trained", tmp_path / "small", layers=2)
    small = SentenceEncoder.load(tmp_path / "small")
    assert (small.pooling, small.max_seq_length, small.head_mode) == ("mean_last2", 20, "kept")
    assert small.head is not None and trained.head is not None
    assert torch.equal(small.head.linear.weight, trained.head.linear.weight)


def test_a_pooling_that_reads_more_layers_than_are_left_is_refused(distilbert: Path, tmp_path: Path) -> None:
    assert "reads 4 layers" in _refused(distilbert, tmp_path / "out", layers=1, pooling="mean_last4")


# ----------------------------------------------------------------- FFN units


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_dead_ffn_units_go_first_and_take_nothing_with_them(tmp_path: Path, architecture: str) -> None:
    encoder = SentenceEncoder.load(tiny_checkpoint(tmp_path / "model", architecture, layers=2))
    names = ("lin1", "lin2") if architecture == "distilbert" else ("intermediate.dense", "output.dense")
    alive = sorted(np.random.default_rng(1).permutation(128)[:40].tolist())
    dead = sorted(set(range(128)) - set(alive))
    first = {}
    with torch.no_grad():
        for name, module in encoder.backbone.named_modules():
            if name.endswith(names[1]) and module.weight.shape == (32, 128):
                module.weight[:, dead] = 0
            if name.endswith(names[0]):
                first[name] = module.weight[alive].clone()
    before = encoder.encode(TEXTS)
    (tmp_path / "dead").mkdir()
    encoder.save(tmp_path / "dead")
    shrink(tmp_path / "dead", tmp_path / "small", ffn=40)
    small = SentenceEncoder.load(tmp_path / "small")
    np.testing.assert_allclose(small.encode(TEXTS), before, atol=1e-6)
    assert len(first) == 2
    for name, weight in first.items():
        assert torch.equal(small.backbone.get_submodule(name).weight, weight)
    plain = transformers.AutoModel.from_pretrained(tmp_path / "small")
    assert {tuple(t.shape) for n, t in plain.named_parameters() if n.endswith(f"{names[0]}.weight")} == {(40, 32)}


def test_unit_statistics_leave_padding_out(distilbert: Path) -> None:
    """Mean and variance of GELU(lin1 x) written down for each text alone, where nothing is padded."""
    encoder = SentenceEncoder.load(distilbert)
    values: list[torch.Tensor] = []
    ffn = encoder.backbone.transformer.layer[1].ffn
    hook = ffn.register_forward_pre_hook(
        lambda module, inputs: values.append(functional.gelu(module.lin1(inputs[0]))[0].double()))
    for text in TEXTS:
        encoder.encode([text])
    hook.remove()
    stats = unit_stats(encoder, TEXTS)[1]
    tokens = torch.cat(values)
    assert stats.tokens == len(tokens)
    torch.testing.assert_close(stats.mean, tokens.mean(dim=0), atol=1e-6, rtol=0)
    torch.testing.assert_close(stats.variance, tokens.var(dim=0, correction=0), atol=1e-6, rtol=1e-5)


def test_with_texts_constant_units_go_and_their_output_stays(distilbert: Path) -> None:
    """A unit with a zero row in lin1 always puts out GELU(bias): large weights, no information."""
    encoder = SentenceEncoder.load(distilbert)
    with torch.no_grad():
        for layer in encoder.backbone.transformer.layer:
            layer.ffn.lin1.weight[64:] = 0
            layer.ffn.lin1.bias[64:] = 2
            layer.ffn.lin2.weight[:, 64:] *= 10
    before = encoder.encode(TEXTS)
    prune_ffn(encoder, 64, TEXTS)
    np.testing.assert_allclose(encoder.encode(TEXTS), before, atol=5e-6)


def test_calibrated_pruning_hurts_less(distilbert: Path, tmp_path: Path) -> None:
    before = SentenceEncoder.load(distilbert).encode(CORPUS)
    texts = _write(tmp_path / "texts.txt", "\n".join(CORPUS))
    magnitude = shrink(distilbert, tmp_path / "a", ffn=96)
    calibrated = shrink(distilbert, tmp_path / "b", ffn=96, calibration=texts)
    assert (magnitude.importance, calibrated.importance) == ("weight magnitude", "activation variance")
    errors = [float(((SentenceEncoder.load(tmp_path / name).encode(CORPUS) - before) ** 2).sum()) for name in "ab"]
    assert 0 < errors[1] < errors[0]


# ----------------------------------------------------------------- BERT as DistilBERT


@pytest.mark.parametrize("pooling", ["cls", "mean_all", "max_last"])
def test_bert_becomes_distilbert_with_the_same_vectors(bert: Path, tmp_path: Path, pooling: str) -> None:
    result = shrink(bert, tmp_path / "small", to_distilbert=True, pooling=pooling)
    small, original = SentenceEncoder.load(tmp_path / "small"), SentenceEncoder.load(bert, pooling)
    np.testing.assert_allclose(small.encode(TEXTS), original.encode(TEXTS), atol=2e-6)
    assert result.conversion_difference is not None and result.conversion_difference <= 2e-6
    assert result.architecture == "distilbert"
    assert type(small.backbone).__name__ == "DistilBertModel" and small.pooling == pooling
    pooler = 32 * 32 + 32
    assert result.parameters_before - result.parameters_after == 2 * 32 + pooler  # token types, BERT's own pooler


def test_other_libraries_feed_the_converted_model_no_token_types(bert: Path, tmp_path: Path) -> None:
    shrink(bert, tmp_path / "small", to_distilbert=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "small")
    assert set(tokenizer("Hello, World!")) == {"input_ids", "attention_mask"}


@pytest.mark.parametrize(("key", "value", "message"), [
    ("position_embedding_type", "relative_key", "position_embedding_type 'relative_key'"),
    ("layer_norm_eps", 1e-5, "layer_norm_eps 1e-05"), ("is_decoder", True, "decoder")])
def test_what_distilbert_cannot_express_is_refused_by_name(bert: Path, key: str, value: Any, message: str) -> None:
    backbone = SentenceEncoder.load(bert).backbone
    setattr(backbone.config, key, value)
    with pytest.raises(UserError, match=message):
        to_distilbert(backbone)


def test_only_bert_is_converted(distilbert: Path, tmp_path: Path) -> None:
    assert "'distilbert'" in _refused(distilbert, tmp_path / "out", to_distilbert=True)


# ----------------------------------------------------------------- the call


def test_all_of_it_composes_in_one_call(bert: Path, tmp_path: Path) -> None:
    """The steps one by one, in the documented order, give the same weights as one call."""
    texts = _write(tmp_path / "texts.txt", "\n".join(CORPUS[:5]))
    steps: list[str] = []
    result = shrink(bert, tmp_path / "once", layers=2, ffn=50, calibration=texts, vocabulary=texts, coverage=100,
                    to_distilbert=True, progress=steps.append)
    shrink(bert, tmp_path / "1", layers=2)
    shrink(tmp_path / "1", tmp_path / "2", ffn=50, calibration=texts)
    shrink(tmp_path / "2", tmp_path / "3", vocabulary=texts, coverage=100)
    shrink(tmp_path / "3", tmp_path / "4", to_distilbert=True)
    once, chain = (SentenceEncoder.load(tmp_path / name) for name in ("once", "4"))
    for (name, tensor), other in zip(once.backbone.state_dict().items(), chain.backbone.state_dict().values(),
                                     strict=True):
        assert torch.equal(tensor, other), name
    assert once.tokenizer.backend.to_str() == chain.tokenizer.backend.to_str()
    assert len(steps) == 6
    record = json.loads((tmp_path / "once" / "shrink.json").read_text(encoding="utf-8"))
    assert (record["layers"], record["ffn"], record["architecture"]) == ([1, 3], 50, "distilbert")
    assert record["vocabulary"]["covered"] == 100 and record["vocabulary"]["tokens"] > 20
    stored = transformers.AutoModel.from_pretrained(tmp_path / "once")
    assert record["parameters_after"] == sum(tensor.numel() for tensor in stored.parameters())
    assert record["bytes_after"] == 4 * result.parameters_after < record["bytes_before"]


@pytest.mark.parametrize(("arguments", "message"), [
    ({}, "nothing to shrink"), ({"heads": 4}, "keep 1 to 3"), ({"heads": 0}, "keep 1 to 3"),
    ({"ffn": 0}, "keep 1 to 127"),
    ({"ffn": 128}, "keep 1 to 127"), ({"calibration": "x.txt", "layers": 1}, "give ffn or heads too"),
    ({"check_texts": "x.txt", "layers": 1}, "give vocabulary too"), ({"coverage": 90.0, "layers": 1}, "coverage=90"),
    ({"vocabulary": "missing.txt"}, "missing.txt"), ({"ffn": 9, "calibration": "missing.txt"}, "missing.txt"),
    ({"keep_layers": [7]}, "layer 7")])
def test_bad_requests_are_refused(distilbert: Path, tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        shrink(distilbert, tmp_path / "out", **arguments)
    assert not list(tmp_path.iterdir())


def test_blank_calibration_is_refused(distilbert: Path, tmp_path: Path) -> None:
    assert "holds no text" in _refused(distilbert, tmp_path / "out", ffn=9,
                                       calibration=_write(tmp_path / "blank.txt", "\n \n"))


def test_weights_that_are_not_finite_fail_and_leave_nothing(distilbert: Path, tmp_path: Path) -> None:
    encoder = SentenceEncoder.load(distilbert)
    with torch.no_grad():
        encoder.backbone.transformer.layer[3].ffn.lin1.weight[0, 0] = float("nan")
    (tmp_path / "nan").mkdir()
    encoder.save(tmp_path / "nan")
    with pytest.raises(GateError, match="not finite"):
        shrink(tmp_path / "nan", tmp_path / "out", layers=2)
    assert [path.name for path in tmp_path.iterdir()] == ["nan"]


def test_an_output_that_exists_is_kept_without_overwrite(distilbert: Path, tmp_path: Path) -> None:
    _write(tmp_path / "note.txt", "mine")
    with pytest.raises(UserError, match="not empty"):
        shrink(distilbert, tmp_path, layers=1)
    with pytest.raises(UserError, match="did not write"):  # --overwrite is for our own outputs
        shrink(distilbert, tmp_path, layers=1, overwrite=True)
    assert (tmp_path / "note.txt").read_text() == "mine"
    shrink(distilbert, tmp_path / "out", layers=2)
    shrink(distilbert, tmp_path / "out", layers=1, overwrite=True)
    assert SentenceEncoder.load(tmp_path / "out").num_layers == 1


def test_the_command(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = _write(tmp_path / "texts.txt", "\n".join(CORPUS))
    assert command_line(["shrink", str(bert), "--out", str(tmp_path / "out"), "--keep-layers", "1,3", "--ffn", "64",
                         "--calibration", str(texts), "--vocabulary", str(texts), "--coverage", "90",
                         "--check-texts", str(texts), "--check-floor", "80", "--to-distilbert"]) == 0
    printed = capsys.readouterr().out
    assert "layers 1,3" in printed and "64 FFN units" in printed and "DistilBERT" in printed and "pieces" in printed
    small = SentenceEncoder.load(tmp_path / "out")
    assert (small.num_layers, small.backbone.config.model_type) == (2, "distilbert")


@pytest.mark.parametrize(("flags", "message"), [
    (["--keep-layers", "1,x"], "1,x"), (["--keep-layers", ""], "numbers"), (["--heads", "4"], "heads=4"),
    ([], "nothing to shrink")])
def test_the_command_refuses_in_one_line(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                         flags: list[str], message: str) -> None:
    assert command_line(["shrink", str(bert), "--out", str(tmp_path / "out"), *flags]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("distilface: error: ") and message in last
