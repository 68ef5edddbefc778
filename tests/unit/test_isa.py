"""Saturation without VNNI: the arithmetic, the check on the file, and who is warned."""

from __future__ import annotations

import logging
import platform
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

import distilface.isa
from distilface.artifact import Bundle, Variant, write_manifest
from distilface.benchmarking.subjects import find_subjects, static_facts
from distilface.isa import ISA_LIMITS, PAIR_LIMIT, pairs_saturate, saturation_warning
from distilface.onnxgraph import integer_weights, largest_integer_weight
from distilface.quantization import quantize
from distilface.runtime import Encoder
from distilface.smarthome import utterances
from distilface.verification import verify

TEXTS = [item.text for item in utterances("train")][:60]
OLD = ("avx2", "avx512f")


def vpmaddubsw(unsigned: NDArray[np.uint8], signed: NDArray[np.int8]) -> NDArray[np.int16]:
    """UINT8 by INT8, neighbouring products added in 16 bits with saturation, as x86 without VNNI does."""
    products = unsigned.astype(np.int32) * signed.astype(np.int32)
    return np.clip(products[..., ::2] + products[..., 1::2], -(2**15), 2**15 - 1).astype(np.int16)


@pytest.mark.parametrize(("weight", "exact", "saturating"), [
    (127, 129_540, 65_534), (PAIR_LIMIT, 65_280, 65_280), (PAIR_LIMIT + 1, 66_300, 65_534)])
def test_the_limit_is_where_pairs_begin_to_saturate(weight: int, exact: int, saturating: int) -> None:
    activations, weights = np.full(4, 255, np.uint8), np.full(4, weight, np.int8)
    assert int(activations.astype(int) @ weights.astype(int)) == exact
    assert int(vpmaddubsw(activations, weights).sum(dtype=int)) == saturating


@pytest.mark.parametrize(("mode", "target"), [
    ("dynamic", "avx2"), ("dynamic", "arm"), ("token", "any"), ("token", "vnni")])
def test_the_file_is_exact_in_saturating_arithmetic_where_it_says_so(
        tiny_bundle: Path, tmp_path: Path, mode: Any, target: str) -> None:
    done = quantize(tiny_bundle, mode, TEXTS, out=tmp_path / "copy", overwrite=True, target_isa=target)
    weights = integer_weights(onnx.load(str(done.bundle.graph(done.name))))
    assert len(weights) == 12 and done.variant.recipe["target_isa"] == target
    worst = np.full((1, 512), 255, np.uint8)
    exact = all(vpmaddubsw(worst[:, : len(value)], column).sum(dtype=int) == 255 * column.sum(dtype=int)
                 for value in weights.values() for column in value.T)
    assert exact == (target in ("avx2", "any"))
    assert done.variant.largest_integer_weight == ISA_LIMITS[target]
    assert any("VNNI" in note for note in done.variant.notes) == (target in ("arm", "vnni"))
    check = next(item for item in verify(done.bundle.folder, done.name) if "integer weights" in item.name)
    assert check.passed, check.detail


def test_verify_finds_a_weight_that_is_too_large(tiny_bundle: Path, tmp_path: Path) -> None:
    """A vnni graph under a manifest that says avx2."""
    folder = Path(shutil.copytree(tiny_bundle, tmp_path / "b"))
    manifest = Bundle.open(folder).manifest
    variant = manifest.variants["int8-dynamic"]
    lying = variant.model_copy(update={"recipe": variant.recipe | {"target_isa": "avx2"}})
    write_manifest(folder, manifest.model_copy(update={"variants": manifest.variants | {"int8-dynamic": lying}}))
    failed = [item for item in verify(folder, "int8-dynamic") if not item.passed]
    assert [item.name for item in failed] == ["int8-dynamic: integer weights"]
    assert "up to 127" in failed[0].detail and "allowed for avx2: 64" in failed[0].detail


@pytest.mark.parametrize(("architecture", "sets", "saturates"), [
    ("x86_64", OLD, True), ("AMD64", OLD, True), ("x86_64", ("avx2", "avx_vnni"), False),
    ("x86_64", ("avx512f", "avx512_vnni"), False), ("aarch64", ("asimddp",), False), ("x86_64", None, False)])
def test_processors(architecture: str, sets: tuple[str, ...] | None, saturates: bool) -> None:
    assert pairs_saturate(architecture, sets) == saturates


def _variant(tiny_bundle: Path, name: str) -> Variant:
    return Bundle.open(tiny_bundle).variant(name)


def test_who_is_warned(tiny_bundle: Path) -> None:
    warning = saturation_warning(_variant(tiny_bundle, "int8-dynamic"), "x86_64", OLD)
    assert warning is not None and "--target-isa" in warning and "127" in warning
    assert saturation_warning(_variant(tiny_bundle, "fp32"), "x86_64", OLD) is None
    assert saturation_warning(_variant(tiny_bundle, "int8-dynamic"), "x86_64", ("avx_vnni",)) is None


def test_runtime_and_bench_warn_on_an_old_processor(
        tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(distilface.isa, "instruction_sets", lambda: OLD)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    with caplog.at_level(logging.WARNING):
        Encoder.load(tiny_bundle, "int8-dynamic")
        assert "no VNNI" in caplog.text
        caplog.clear()
        Encoder.load(tiny_bundle, "fp32")
        assert "VNNI" not in caplog.text
    (subject,) = find_subjects(tiny_bundle, "int8-dynamic")
    assert any("this processor has no VNNI" in note for note in static_facts(subject).notes)


def test_unsigned_weights_can_not_saturate() -> None:
    node = onnx.helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    for dtype, largest in ((np.int8, 100), (np.uint8, 0)):
        tensor = onnx.numpy_helper.from_array(np.full((4, 2), 100, dtype), "w")
        model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [], [], [tensor]))
        assert largest_integer_weight(model) == largest
