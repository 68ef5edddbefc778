"""The libraries that load a bundle, each run for real where it is installed."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from typer.testing import CliRunner

from distilface.artifact import Bundle, write_manifest
from distilface.cli import app
from distilface.consumers import CONSUMERS, Outcome, check_consumers, require_consumers
from distilface.delivery import deliver
from distilface.errors import GateError, UserError
from distilface.exporter import export

pytestmark = pytest.mark.integration

PYTHON = [item for item in CONSUMERS if item.runtime == "python" and item.reads not in ("checkpoint", "text")]
VARIANTS = ["fp32", "int8-static", "int8-dynamic"]
ELSEWHERE = [os.environ["CONSUMER_PYTHON"]] if "CONSUMER_PYTHON" in os.environ else []
"""The interpreter of an environment for what does not get on with the packages here."""


def only(outcomes: list[Outcome]) -> list[Outcome]:
    """Skip where the consumer is not there."""
    if outcomes[0].status == "not installed":
        pytest.skip(f"{outcomes[0].consumer}: {outcomes[0].detail}")
    return outcomes


@pytest.mark.parametrize("name", [item.name for item in PYTHON])
def test_golden_ids_and_vectors(tiny_bundle: Path, name: str) -> None:
    outcomes = only(check_consumers(tiny_bundle, names=[name], pythons=ELSEWHERE))
    assert sorted(item.variant for item in outcomes) == sorted(VARIANTS)
    for outcome in outcomes:
        assert outcome.status == "ok", outcome.line
        assert outcome.cosine is not None
        assert outcome.cosine >= (0.99999 if outcome.variant == "fp32" else 0.85)


@pytest.mark.parametrize("name", ["OpenVINO", "text-embeddings-inference"])
def test_every_variant_and_a_bundle_of_one_graph(full_bundle: Path, tmp_path: Path, name: str) -> None:
    outcomes = only(check_consumers(full_bundle, names=[name]))
    assert [(item.variant, item.status) for item in outcomes] == [
        (variant, "ok") for variant in Bundle.open(full_bundle).variant_names], outcomes
    deliver(full_bundle, tmp_path / "w4", "w4")
    outcome, = check_consumers(tmp_path / "w4", names=[name])
    assert (outcome.variant, outcome.status) == ("w4", "ok"), outcome.line


@pytest.mark.parametrize("name", ["OpenVINO", "text-embeddings-inference"])
def test_an_output_that_is_not_there_is_named(bundle_copy: Path, name: str) -> None:
    graph = bundle_copy / "onnx" / "model.onnx"
    model = onnx.load(graph)
    model.graph.output.remove(next(item for item in model.graph.output if item.name == "sentence_embedding"))
    onnx.save(model, graph)
    write_manifest(bundle_copy, Bundle.open(bundle_copy).manifest)
    outcome, = only(check_consumers(bundle_copy, "fp32", names=[name]))
    assert outcome.status == "failed" and "sentence_embedding" in outcome.detail, outcome.line


def test_operators_that_a_consumer_lacks_are_told_and_are_no_fault(full_bundle: Path, tmp_path: Path) -> None:
    deliver(full_bundle, tmp_path / "w4", "w4")
    graph = tmp_path / "w4" / "onnx" / "model.onnx"
    model = onnx.load(graph)
    next(node for node in model.graph.node if node.op_type == "MatMulNBits").op_type = "MatMulNever"
    onnx.save(model, graph)
    manifest = write_manifest(tmp_path / "w4", Bundle.open(tmp_path / "w4").manifest)
    outcomes = check_consumers(tmp_path / "w4", names=["text-embeddings-inference"])
    assert re.fullmatch(r"can't load  text-embeddings-inference, its files [\d.]+, w4: [^\n]*MatMulNever[^\n]*",
                        outcomes[0].line), outcomes[0].line
    require_consumers(tmp_path / "w4", outcomes)
    plain = {"w4": manifest.variants["w4"].model_copy(update={"needs_custom_ops": False})}
    write_manifest(tmp_path / "w4", manifest.model_copy(update={"variants": plain}))
    with pytest.raises(GateError, match=r"1 of 1 checks .*MatMulNever"):
        require_consumers(tmp_path / "w4", check_consumers(tmp_path / "w4", names=["text-embeddings-inference"]))


def test_the_checkpoint_in_sentence_transformers(tiny_bundle: Path, checkpoint: Path) -> None:
    from distilface.encoder import SentenceEncoder

    outcome, = only(check_consumers(tiny_bundle, names=["sentence-transformers, torch"]))
    assert outcome.status == "not possible"  # a bundle has no torch weights
    saved = tiny_bundle.parent / "saved"
    saved.mkdir(exist_ok=True)
    SentenceEncoder.load(checkpoint).save(saved)
    outcome, = check_consumers(tiny_bundle, names=["sentence-transformers, torch"], checkpoint=saved)
    assert (outcome.status, outcome.variant) == ("ok", "checkpoint"), outcome.line


@pytest.mark.parametrize(("options", "status"), [
    ({"pooling": "mean_last2"}, "ok"), ({"pooling": "cls"}, "ok"), ({"pooling": "max_last"}, "not possible"),
    ({"truncate_dim": 16}, "not possible"),
])
def test_poolings_it_can_and_can_not_do(checkpoint: Path, tmp_path: Path, options: dict[str, Any],
                                        status: str) -> None:
    export(checkpoint, tmp_path / "bundle", **options)
    outcome, = check_consumers(tmp_path / "bundle", names=["text-embeddings-inference"])
    assert outcome.status == status, outcome.line
    assert status == "ok" or "read sentence_embedding" in outcome.detail


@pytest.mark.parametrize(("file", "old", "new", "words"), [
    ("tokenizer.json", '"lowercase":true', '"lowercase":false', "other ids for 'Hello, World!'"),
    ("config.json", '"hidden_size"', '"hidden_width"', "config.json needs hidden_size as int"),
    ("1_Pooling/config.json", '"pooling_mode_mean_tokens": true', '"pooling_mode": "mean"',
     "1_Pooling/config.json needs pooling_mode_mean_tokens as bool"),
])
def test_a_bundle_that_a_consumer_can_not_read_fails(bundle_copy: Path, file: str, old: str, new: str,
                                                      words: str) -> None:
    text = (bundle_copy / file).read_text(encoding="utf-8")
    assert old in text
    (bundle_copy / file).write_text(text.replace(old, new), encoding="utf-8")
    write_manifest(bundle_copy, Bundle.open(bundle_copy).manifest)
    outcomes = check_consumers(bundle_copy, names=["text-embeddings-inference"])
    assert [item.status for item in outcomes] == ["failed"] * 3
    assert all(words in item.detail for item in outcomes), outcomes


def test_the_command_prints_a_line_each_and_fails_with_the_consumer(bundle_copy: Path) -> None:
    arguments = ["verify", str(bundle_copy), "--variant", "fp32", "--consumers", "--consumer", "text-embeddings",
                 "--consumer", "onnxruntime-extensions"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert any(line.startswith("ok  text-embeddings-inference") and "worst cosine 1.0" in line for line in lines)
    assert any(line.startswith("not possible  onnxruntime-extensions, text in: the bundle has no") for line in lines)
    config = bundle_copy / "config.json"
    config.write_text(json.dumps({"architectures": []}), encoding="utf-8")
    write_manifest(bundle_copy, Bundle.open(bundle_copy).manifest)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "failed in 1 of 2 checks of consumers" in str(result.exception)


def test_environments_that_are_not_there(tiny_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no interpreter"):
        check_consumers(tiny_bundle, pythons=[tmp_path / "python"])
    with pytest.raises(UserError, match="holds no node_modules"):
        check_consumers(tiny_bundle, node_folder=tmp_path)
    with pytest.raises(UserError, match="no variant 'int4'"):
        check_consumers(tiny_bundle, "int4")


def test_an_interpreter_by_a_relative_path(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    outcome, = check_consumers(tiny_bundle, "fp32", pythons=["bin/python"], names=["text-embeddings-inference"])
    assert outcome.status in ("ok", "not installed")


def test_the_text_in_graph(checkpoint: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime_extensions", reason="onnxruntime-extensions is not installed")
    export(checkpoint, tmp_path / "bundle", tokenizer_in_graph=True)
    outcome, = check_consumers(tmp_path / "bundle", names=["onnxruntime-extensions"])
    assert (outcome.status, outcome.variant) == ("ok", "fp32"), outcome.line
