"""One variant in a folder of its own, the ORT format, and the tokenizer inside the graph."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from tokenizers import Tokenizer as FastTokenizer
from typer.testing import CliRunner

from distilface.artifact import Bundle
from distilface.cli import app
from distilface.delivery import deliver
from distilface.errors import GateError, UserError
from distilface.exporter import export
from distilface.parity import cosines
from distilface.runtime import Encoder
from distilface.textgraph import write_text_graph
from distilface.tokenizer import Tokenizer
from distilface.verification import verify
from tests.tiny import tiny_checkpoint

pytestmark = pytest.mark.integration


def test_one_variant_becomes_the_main_graph_of_a_whole_bundle(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = deliver(tiny_bundle, tmp_path / "served", "int8")
    source = Bundle.open(tiny_bundle)
    assert bundle.variant_names == ["int8-static"]
    assert [file.name for file in (bundle.folder / "onnx").iterdir()] == ["model.onnx"]
    assert bundle.graph("int8").read_bytes() == source.graph("int8-static").read_bytes()
    assert [check for check in verify(bundle.folder) if not check.passed] == []
    for name in ("config.json", "tokenizer.json", "1_Pooling/config.json", "sentence_bert_config.json"):
        assert (bundle.folder / name).read_bytes() == (tiny_bundle / name).read_bytes()
    assert "onnx/model_int8.onnx" not in (bundle.folder / "README.md").read_text(encoding="utf-8")


def test_what_delivery_refuses(tiny_bundle: Path, bundle_copy: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="it has fp32, int8-"):
        deliver(tiny_bundle, tmp_path / "out", "fp16x")
    with pytest.raises(UserError, match="overlap"):
        deliver(bundle_copy, bundle_copy / "inside", "int8")
    (bundle_copy / "onnx" / "model.onnx").write_bytes(b"altered")
    with pytest.raises(GateError, match="was altered"):
        deliver(bundle_copy, tmp_path / "out", "fp32")
    assert not (tmp_path / "out").exists()


def test_an_altered_file_gets_no_clean_record(bundle_copy: Path, tmp_path: Path) -> None:
    (bundle_copy / "README.md").write_text("mine", encoding="utf-8")  # the card is made anew in any case
    deliver(bundle_copy, tmp_path / "out", "fp32")
    config = bundle_copy / "config.json"
    config.write_text(config.read_text(encoding="utf-8") + " ", encoding="utf-8")
    with pytest.raises(GateError, match=r"config\.json' was altered"):
        deliver(bundle_copy, tmp_path / "other", "fp32")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(("arguments", "words"), [
    (["--variant", "int8", "--pooling", "cls"], "--pooling changes a graph when it is made"),
    (["--variant", "int4"], "no variant 'int4'"),
])
def test_flags_that_do_not_fit_a_bundle(tiny_bundle: Path, tmp_path: Path, arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, ["export", str(tiny_bundle), "--out", str(tmp_path / "out"), *arguments])
    assert isinstance(result.exception, UserError)
    assert words in str(result.exception)


def test_a_variant_of_a_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["export", str(checkpoint), "--out", str(tmp_path / "out"), "--variant", "int8"])
    assert "is none; export it first" in str(result.exception)


@pytest.mark.parametrize("variant", ["fp32", "int8-static", "int8-dynamic"])
def test_ort_format(tiny_bundle: Path, tmp_path: Path, variant: str) -> None:
    bundle = deliver(tiny_bundle, tmp_path / "app", variant, ort_format=True)
    form, = bundle.manifest.forms
    assert (form.kind, form.file) == ("ort", "onnx/model.ort")
    assert (bundle.folder / form.file).read_bytes()[4:8] == b"ORTM"
    session = ort.InferenceSession(str(bundle.folder / form.file), providers=["CPUExecutionProvider"])
    assert [item.name for item in session.get_outputs()] == ["last_hidden_state", "sentence_embedding"]
    checks = {check.name: check for check in verify(bundle.folder)}
    assert all(check.passed for check in checks.values()) and f"{variant}: ORT format" in checks
    operators = (bundle.folder / str(form.required_operators)).read_text(encoding="utf-8")
    assert all(len(line.split(";")) == 3 for line in operators.splitlines())
    assert "LayerNormalization" in operators and str(tmp_path) not in operators
    (bundle.folder / form.file).write_bytes(b"altered")
    assert not all(check.passed for check in verify(bundle.folder))


# ----------------------------------------------------------------- strings in

AWKWARD = [
    "", "   ", "\u200b", "😀", "[SEP]", "this is[SEP]a test", "[ SEP ]", "[S\U0010ff01EP]", "\U0010fffd", "\U000f0000x",
    "Kantō", "cost $5 + 3 = 8 °C © 😀", "台北‧08月20日", "naïve café", "Привет, мир! Γειά σου Κόσμε ΣΑΣ",
    "İstanbul straße ǅ", "tabs\tand\nnewlines\r\nand  doubled   blanks\u2028\u3000\x85\x7f", "한국어 문장",
    "e\u0301a\u0308 x\u20dd", "a|b||", "=;·≠", "x" * 100, "x" * 101, "light " * 200, "turn onturn on", "\ufeffplay",
    "0.1 1e-5 −7 ½ ²", "lightλ λlight",
]


@pytest.fixture(scope="module")
def run_text() -> Callable[[Path], Callable[[list[str]], Any]]:
    extensions = pytest.importorskip("onnxruntime_extensions", reason="onnxruntime-extensions is not installed")

    def start(file: Path) -> Callable[[list[str]], Any]:
        options = ort.SessionOptions()
        options.register_custom_ops_library(extensions.get_library_path())
        session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        assert [item.name for item in session.get_inputs()] == ["text"]
        return lambda texts: session.run(["sentence_embedding", "input_ids"], {"text": np.array(texts, dtype=object)})

    return start


def _same_ids(found: Any, expected: list[list[int]], texts: list[str], pad: int = 0) -> None:
    assert found.shape[1] == max(map(len, expected))
    for text, row, ids in zip(texts, found.tolist(), expected, strict=True):
        assert row == ids + [pad] * (len(row) - len(ids)), text


@pytest.mark.parametrize("architecture", ["distilbert", "bert"])
def test_strings_in_give_the_ids_and_vectors_of_the_tokenizer(
        architecture: str, tmp_path: Path, run_text: Callable[[Path], Callable[[list[str]], Any]]) -> None:
    model = tiny_checkpoint(tmp_path / "model", architecture, layers=1)
    bundle = export(model, tmp_path / "bundle", tokenizer_in_graph=True)
    form, = bundle.manifest.forms
    assert (form.kind, form.differences) == ("text", ["a text ends at its first NUL character"])
    assert "NUL" in (bundle.folder / "README.md").read_text(encoding="utf-8")
    assert [check for check in verify(bundle.folder) if not check.passed] == []
    run, encoder = run_text(bundle.folder / form.file), Encoder.load(bundle.folder)
    vectors, ids = run(AWKWARD)
    _same_ids(ids, encoder.tokenizer.encode_batch(AWKWARD), AWKWARD)
    assert cosines(vectors, encoder.encode(AWKWARD)).min() >= 0.999999
    model_file = onnx.load(str(bundle.folder / form.file))
    onnx.checker.check_model(model_file)
    assert str(tmp_path).encode() not in (bundle.folder / form.file).read_bytes()


def test_ids_of_the_real_vocabulary_on_random_unicode(
        minilm: Path, tiny_bundle: Path, tmp_path: Path,
        run_text: Callable[[Path], Callable[[list[str]], Any]]) -> None:
    """The tokenizer of all-MiniLM-L6-v2 before a graph of any kind: only the ids count here."""
    tokenizer = Tokenizer.load(minilm)
    limit = 64  # of the tiny graph's position table
    write_text_graph(tiny_bundle / "onnx" / "model.onnx", tokenizer.with_limit(limit), tmp_path / "text.onnx")
    model = onnx.load(str(tmp_path / "text.onnx"))
    names = [node.output[0] for node in model.graph.node]
    kept = list(model.graph.node)[: names.index("input_ids") + 1]  # the tiny table has no rows for these ids
    del model.graph.node[:], model.graph.output[0]
    model.graph.node.extend(kept)
    onnx.save_model(model, str(tmp_path / "ids.onnx"))
    extensions = pytest.importorskip("onnxruntime_extensions")
    options = ort.SessionOptions()
    options.register_custom_ops_library(extensions.get_library_path())
    session = ort.InferenceSession(str(tmp_path / "ids.onnx"), options, providers=["CPUExecutionProvider"])
    draw = random.Random(0)
    vocabulary = [word.removeprefix("##") for word in tokenizer.backend.get_vocab()]
    pools: list[Callable[[], str]] = [
        lambda: chr(draw.randrange(1, 0x250)), lambda: chr(draw.randrange(0x250, 0x3000)),
        lambda: chr(draw.randrange(0x3000, 0xD800)), lambda: chr(draw.randrange(0xE000, 0x110000)),
        lambda: draw.choice(vocabulary), lambda: " ", lambda: draw.choice(AWKWARD[4:12])]
    texts = [*AWKWARD, *("".join(draw.choice(pools)() for _ in range(draw.randrange(30))) for _ in range(400))]
    found, = session.run(["input_ids"], {"text": np.array(texts, dtype=object)})
    _same_ids(found, tokenizer.with_limit(limit).encode_batch(texts), texts)


def test_a_tokenizer_that_is_not_berts_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_extensions", reason="onnxruntime-extensions is not installed")
    model = tiny_checkpoint(tmp_path / "model", "roberta", layers=1)
    with pytest.raises(UserError, match=r"needs BERT's tokenizer .*BPE"):
        export(model, tmp_path / "bundle", tokenizer_in_graph=True)
    assert not (tmp_path / "bundle").exists()


def test_a_vocabulary_that_spells_letters_in_some_places_only_is_told(tiny_bundle: Path, tmp_path: Path) -> None:
    values = json.loads((tiny_bundle / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = values["model"]["vocab"]
    vocabulary["##q"], vocabulary["qq"] = -1, vocabulary.pop("##q")  # "q" and "qq" remain
    del vocabulary["##q"]
    tokenizer = Tokenizer(FastTokenizer.from_str(json.dumps(values)), 64)
    differences = write_text_graph(tiny_bundle / "onnx" / "model.onnx", tokenizer, tmp_path / "text.onnx")
    assert len(differences) == 2 and differences[1].startswith("words with q,")
