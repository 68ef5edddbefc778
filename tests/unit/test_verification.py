"""`verify` notices: every altered byte, a second limit, a stray file, wrong ids, wrong vectors, wrong shapes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from distilface.artifact import Bundle, write_manifest
from distilface.errors import GateError, UserError
from distilface.verification import Check, require_passed, verify

ALTERED = [
    "onnx/model.onnx", "onnx/model_int8.onnx", "onnx/model_quantized.onnx", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "vocab.txt", "config.json", "modules.json", "sentence_bert_config.json",
    "config_sentence_transformers.json", "1_Pooling/config.json", "golden.json", "README.md"]


def _failed(folder: Path, variant: str | None = None) -> list[Check]:
    return [check for check in verify(folder, variant) if not check.passed]


def _edit(file: Path, change: Callable[[Any], Any]) -> None:
    values = json.loads(file.read_text(encoding="utf-8"))
    change(values)
    file.write_text(json.dumps(values), encoding="utf-8")


def _sign(folder: Path, **changes: Any) -> Path:
    """Record the altered files, so that only what they hold can fail."""
    write_manifest(folder, Bundle.open(folder).manifest.model_copy(update=changes))
    return folder


def _edit_graph(file: Path, change: Callable[[Any], None]) -> None:
    model = onnx.load(str(file))
    change(model)
    onnx.save(model, str(file))


def test_an_intact_bundle_passes_every_check(tiny_bundle: Path) -> None:
    seen: list[str] = []
    checks = verify(tiny_bundle, progress=seen.append)
    assert [check for check in checks if not check.passed] == []
    assert seen == [check.name for check in checks]
    assert {check.name for check in checks} == {"files", "no stray files", "one length limit", "golden ids"} | {
        f"{variant}: {what}" for variant in ("fp32", "int8-static", "int8-dynamic")
        for what in ("golden vectors", "unit vectors", "neighbours", "shapes", "awkward texts")} | {
        "int8-static: integer weights", "int8-dynamic: integer weights"}
    require_passed(tiny_bundle, checks)


def test_the_bundle_holds_no_file_that_is_not_altered_below(tiny_bundle: Path) -> None:
    assert set(Bundle.open(tiny_bundle).manifest.files) - {"2_Normalize/config.json"} == set(ALTERED)


@pytest.mark.parametrize("relative", ALTERED)
def test_one_altered_byte(bundle_copy: Path, relative: str) -> None:
    file = bundle_copy / relative
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    (check,) = verify(bundle_copy)  # what altered files would go on to say means nothing
    assert not check.passed and file.name in check.detail and "altered" in check.detail
    with pytest.raises(GateError, match="failed 1 of 1 checks") as caught:
        require_passed(bundle_copy, [check])
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_an_altered_hash(bundle_copy: Path) -> None:
    (bundle_copy / "vocab.txt").unlink()
    _edit(bundle_copy / "distilface.json", lambda v: v["files"]["config.json"].update(sha256="0" * 64))
    failed = _failed(bundle_copy)
    assert len(failed) == 2
    assert any("vocab.txt' is missing" in check.detail for check in failed)
    assert any("config.json' was altered" in check.detail for check in failed)


def test_a_stray_file(bundle_copy: Path) -> None:
    (bundle_copy / "onnx" / "model_fp16.onnx").touch()
    (check,) = _failed(bundle_copy)
    assert check.name == "no stray files" and "onnx/model_fp16.onnx" in check.detail


@pytest.mark.parametrize(("name", "change"), [
    ("tokenizer_config.json", lambda v: v.update(model_max_length=512)),
    ("sentence_bert_config.json", lambda v: v.update(max_seq_length=32)),
    ("tokenizer.json", lambda v: v["truncation"].update(max_length=128)),
    ("tokenizer.json", lambda v: v.update(truncation=None)),
    ("tokenizer_config.json", lambda v: v.pop("model_max_length")),
    ("tokenizer.json", lambda v: v.update(padding={
        "strategy": {"Fixed": 128}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "[PAD]"})),
])
def test_two_limits_or_a_fixed_padding(bundle_copy: Path, name: str, change: Callable[[Any], Any]) -> None:
    _edit(bundle_copy / name, change)
    failed = _failed(_sign(bundle_copy), "fp32")
    assert [check.name for check in failed] == ["one length limit"]
    assert name in failed[0].detail


def test_a_tokenizer_that_gives_other_ids(bundle_copy: Path) -> None:
    _edit(bundle_copy / "tokenizer.json", lambda v: v.update(normalizer=None))
    assert "golden ids" in {check.name for check in _failed(_sign(bundle_copy), "fp32")}


def _replace(model: Any, wanted: Callable[[Any], bool], change: Callable[[Any], Any]) -> None:
    tensors = [tensor for tensor in model.graph.initializer if wanted(tensor)]
    assert tensors
    for tensor in tensors:
        tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)), tensor.name))


def test_weights_that_drifted(bundle_copy: Path) -> None:
    def drift(model: Any) -> None:
        _replace(model, lambda t: len(t.dims) == 2 and min(t.dims) >= 32 and t.data_type == onnx.TensorProto.FLOAT,
                 lambda w: (w + np.random.default_rng(0).normal(size=w.shape) * w.std() * 0.1).astype(np.float32))

    _edit_graph(bundle_copy / "onnx" / "model.onnx", drift)
    failed = _failed(_sign(bundle_copy), "fp32")
    assert [check.name for check in failed] == ["fp32: golden vectors"]


def test_a_graph_that_returns_nan(bundle_copy: Path) -> None:
    _edit_graph(bundle_copy / "onnx" / "model.onnx", lambda model: _replace(
        model, lambda t: len(t.dims) == 1 and t.dims[0] == 32, lambda w: np.full_like(w, np.nan)))
    names = {check.name for check in _failed(_sign(bundle_copy), "fp32")}
    assert {"fp32: golden vectors", "fp32: unit vectors", "fp32: awkward texts"} <= names


def test_a_vector_that_is_not_normalised(bundle_copy: Path) -> None:
    def double(model: Any) -> None:
        for node in model.graph.node:
            node.output[:] = ["unit" if name == "sentence_embedding" else name for name in node.output]
        model.graph.node.append(onnx.helper.make_node("Add", ["unit", "unit"], ["sentence_embedding"]))

    _edit_graph(bundle_copy / "onnx" / "model.onnx", double)
    assert [check.name for check in _failed(_sign(bundle_copy), "fp32")] == ["fp32: unit vectors"]


def test_a_dynamic_graph_that_claims_to_be_invariant(bundle_copy: Path) -> None:
    manifest = Bundle.open(bundle_copy).manifest
    lie = manifest.variants["int8-dynamic"].model_copy(update={"batch_invariant": True})
    _sign(bundle_copy, variants=manifest.variants | {"int8-dynamic": lie})
    assert "int8-dynamic: neighbours" in {check.name for check in _failed(bundle_copy, "int8-dynamic")}


@pytest.mark.parametrize(("axis", "size"), [(0, 1), (1, 16)])
def test_shapes_baked_into_the_graph_fail_a_check(bundle_copy: Path, axis: int, size: int) -> None:
    def bake(model: Any) -> None:
        for item in model.graph.input:
            item.type.tensor_type.shape.dim[axis].dim_value = size

    _edit_graph(bundle_copy / "onnx" / "model.onnx", bake)
    failed = _failed(_sign(bundle_copy))
    assert failed and all(check.name.startswith("fp32") for check in failed)
    assert "\n" not in failed[0].detail


def test_a_graph_that_does_not_load_fails_a_check_and_the_others_go_on(bundle_copy: Path) -> None:
    (bundle_copy / "onnx" / "model.onnx").write_bytes(b"no graph")
    checks = verify(_sign(bundle_copy))
    assert [check.name for check in checks if not check.passed] == ["fp32: loads"]
    assert "int8-static: golden vectors" in {check.name for check in checks}


def test_one_variant_alone(tiny_bundle: Path) -> None:
    names = {check.name.partition(":")[0] for check in verify(tiny_bundle, "int8") if ":" in check.name}
    assert names == {"int8-static"}


def test_what_can_not_be_verified(tiny_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no bundle"):
        verify(tmp_path)
    with pytest.raises(UserError, match="'q4'"):
        verify(tiny_bundle, "q4")
