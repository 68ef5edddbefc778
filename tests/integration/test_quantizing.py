"""Every variant that `quantize` makes, on a real graph: it verifies, and the manifest says what it is."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from distilface.artifact import Bundle
from distilface.cli import run
from distilface.errors import GateError
from distilface.parity import cosines
from distilface.quantization import quantize
from distilface.runtime import Encoder
from distilface.smarthome import utterances
from distilface.verification import require_passed, verify

pytestmark = pytest.mark.integration

TEXTS = [item.text for item in utterances("train")][:120]
PRODUCTS = 12
"""2 layers of 6 MatMuls with a weight."""


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with all the other variants; 4-bit weights rounded with feedback."""
    folder = Path(shutil.copytree(tiny_bundle, tmp_path_factory.mktemp("quantizing") / "bundle"))
    quantize(folder, "token", TEXTS)
    quantize(folder, "w8", TEXTS, block_size=32)
    quantize(folder, "w4", TEXTS, block_size=16, calibration_texts=60)
    quantize(folder, "fp16", TEXTS)
    return folder


def test_all_verify(bundle: Path) -> None:
    checks = verify(bundle)
    require_passed(bundle, checks)
    names = {check.name for check in checks}
    for variant in ("int8-token", "w8", "w4", "fp16"):
        assert {f"{variant}: golden vectors", f"{variant}: neighbours", f"{variant}: shapes"} <= names
    assert "int8-token: integer weights" in names and "w8: integer weights" not in names


@pytest.mark.parametrize(("name", "kind", "counts", "custom", "needs"), [
    ("int8-token", "int8-token", (PRODUCTS, 0, 0), False, ""), ("w8", "weight-only", (0, PRODUCTS, 0), True, "1.23"),
    ("w4", "weight-only", (0, PRODUCTS, 0), True, "1.22"), ("fp16", "float16", (0, 0, PRODUCTS), False, "")])
def test_the_manifest_says_what_it_is(bundle: Path, name: str, kind: str, counts: tuple[int, ...], custom: bool,
                                      needs: str) -> None:
    variant = Bundle.open(bundle).variant(name)
    assert variant.kind == kind and variant.batch_invariant
    assert (variant.integer_matmuls, variant.weight_only_matmuls, variant.float_matmuls) == counts
    assert (variant.needs_custom_ops, variant.needs_onnxruntime) == (custom, needs)
    assert any(f"onnxruntime {needs}" in note for note in variant.notes) == bool(needs)
    assert any("no half-precision kernels" in note for note in variant.notes) == (name == "fp16")
    assert f"`{variant.file}`" in (bundle / "README.md").read_text(encoding="utf-8")


def test_sizes_and_nearness_go_the_same_way(bundle: Path) -> None:
    opened = Bundle.open(bundle)
    sizes = {name: opened.variant(name).size for name in opened.variant_names}
    assert sizes["w4"] < sizes["w8"] < sizes["fp16"] < sizes["fp32"]
    exact = Encoder.load(bundle).encode(TEXTS)
    near = {name: float(cosines(Encoder.load(bundle, name).encode(TEXTS), exact).min())
            for name in ("fp16", "w8", "int8-token", "int8-dynamic", "w4")}
    assert near["fp16"] >= 0.999
    assert near["int8-token"] > near["int8-dynamic"]
    assert near["w8"] > near["w4"] >= 0.9


def test_the_token_graph_runs_on_integers(bundle: Path, tmp_path: Path) -> None:
    """After the session's own optimisations: each product, and the second digit of two value projections."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    ort.InferenceSession(str(Bundle.open(bundle).graph("int8-token")), options, providers=["CPUExecutionProvider"])
    operators = Counter(node.op_type for node in onnx.load(str(tmp_path / "optimized.onnx")).graph.node)
    assert operators["MatMulIntegerToFloat"] + operators["QGemm"] + operators["QLinearMatMul"] == PRODUCTS + 2


def test_the_second_moments_help(tiny_bundle: Path, tmp_path: Path) -> None:
    plain = quantize(tiny_bundle, "w4", out=tmp_path / "plain", min_cosine=0.0, max_drop=100)
    fitted = quantize(tiny_bundle, "w4", TEXTS, out=tmp_path / "fitted", calibration_texts=60)
    assert plain.variant.recipe["rounding"] == "nearest" and fitted.variant.recipe["rounding"] == "gptq"
    assert fitted.variant.recipe["calibration"]["texts"] == 60
    exact = Encoder.load(tiny_bundle).encode(TEXTS)
    first, second = (cosines(Encoder.load(tmp_path / name, "w4").encode(TEXTS), exact) for name in ("plain", "fitted"))
    assert 1 - second.mean() < 1 - first.mean()


@pytest.mark.parametrize(("mode", "embeddings", "stored"), [
    ("dynamic", "int4", {"_int4"}), ("token", "fp32", set()), ("w8", "int4", {"_int4"}), ("w4", "int8", {"_int8"})])
def test_tables_combine_with_every_body(tiny_bundle: Path, tmp_path: Path, mode: Any, embeddings: str,
                                        stored: set[str]) -> None:
    done = quantize(tiny_bundle, mode, TEXTS, out=tmp_path / "copy", embeddings=embeddings, calibration_texts=40)
    names = {tensor.name for tensor in onnx.load(str(done.bundle.graph(done.name))).graph.initializer}
    assert {end for end in ("_int4", "_int8") if any(name.endswith(f"word_embeddings.weight{end}") for name in names)
            } == stored
    assert done.variant.recipe["tables"] == embeddings
    assert done.variant.needs_custom_ops == (mode in ("w8", "w4"))


@pytest.mark.parametrize("mode", ["token", "w4", "fp16"])
def test_a_failed_gate_leaves_the_bundle_as_it_was(bundle: Path, mode: Any) -> None:
    before = (bundle / "distilface.json").read_bytes()
    with pytest.raises(GateError, match="minimum cosine"):
        quantize(bundle, mode, TEXTS, overwrite=True, min_cosine=1.0)
    assert (bundle / "distilface.json").read_bytes() == before


def test_a_bundle_that_is_quantized_already_is_refused_by_name(bundle: Path, tmp_path: Path,
                                                               capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["quantize", str(bundle), "--weights", "4"]) == 2
    assert "already has w4; pass --overwrite" in capsys.readouterr().err


def test_the_command_reports_what_it_made(tiny_bundle: Path, tmp_path: Path,
                                          capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "copy")
    assert run(["quantize", str(tiny_bundle), "--weights", "8", "--block-size", "64", "--out", out]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "w8" in text and "12 of 12 MatMuls weight-only" in text and "needs onnxruntime 1.23" in text
    assert run(["verify", out, "--variant", "w8"]) == 0
    np.testing.assert_allclose(np.linalg.norm(Encoder.load(out, "w8").encode(["turn on the light"])), 1, atol=1e-5)
