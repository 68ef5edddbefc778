"""`quantize`: what may be combined, what the defaults are, and what the command says to a contradiction."""

from __future__ import annotations

from pathlib import Path

import pytest

from distilface.artifact import VARIANT_FILES, Bundle
from distilface.cli import run
from distilface.errors import UserError
from distilface.quantization.recipe import VARIANTS, recipe_of
from distilface.runtime.choice import check_version


@pytest.mark.parametrize(("mode", "tables", "block_size", "target"), [
    ("dynamic", "int8", None, "vnni"), ("static", "int8", None, "vnni"), ("token", "int8", None, "vnni"),
    ("w8", "int8", 128, None), ("w4", "int4", 32, None), ("fp16", "fp32", None, None)])
def test_defaults(mode: str, tables: str, block_size: int | None, target: str | None) -> None:
    recipe = recipe_of(mode)
    assert (recipe.tables, recipe.block_size, recipe.target_isa) == (tables, block_size, target)
    assert recipe.variant in VARIANT_FILES


def test_every_variant_has_a_file_of_its_own() -> None:
    assert len(set(VARIANT_FILES.values())) == len(VARIANT_FILES)
    assert {name for name, _ in VARIANTS.values()} | {"fp32"} == set(VARIANT_FILES)


@pytest.mark.parametrize(("target", "limit", "signed"), [
    ("vnni", 127, False), ("avx2", 64, False), ("arm", 127, True), ("any", 64, False)])
def test_targets(target: str, limit: int, signed: bool) -> None:
    recipe = recipe_of("static", target_isa=target)
    assert (recipe.limit, recipe.signed) == (limit, signed)


MISTAKES = [
    ([], "say which precision"),
    (["--int8", "--weights", "4"], "--int8 and --weights contradict"),
    (["--weights", "4", "--fp16"], "--weights and --fp16 contradict"),
    (["--mode", "static"], "--mode static is a way to do INT8; give --int8 too"),
    (["--weights", "8", "--mode", "token"], "drop --mode"),
    (["--int8", "--mode", "w4"], "allowed: dynamic, static, token"),
    (["--weights", "5"], "allowed: 8 or 4"),
    (["--weights", "4", "--block-size", "24"], "power of two, 16 or more"),
    (["--weights", "4", "--block-size", "8"], "power of two, 16 or more"),
    (["--weights", "4", "--block-size", "0"], "power of two, 16 or more"),
    (["--int8", "--block-size", "32"], "block size means nothing to int8-dynamic"),
    (["--fp16", "--embeddings", "int8"], "leave --embeddings out"),
    (["--int8", "--embeddings", "int2"], "'int2'; allowed: fp32, int8, int4"),
    (["--int8", "--target-isa", "sse2"], "'sse2'; allowed: vnni, avx2, arm, any"),
    (["--weights", "8", "--target-isa", "avx2"], "target ISA means nothing to w8"),
    (["--int8", "--column", "text"], "give --calibration FILE too"),
]


@pytest.mark.parametrize(("flags", "expected"), MISTAKES, ids=lambda value: " ".join(value)[:40])
def test_a_contradiction_is_one_line(flags: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["quantize", "nowhere", *flags]) == 2
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if line.startswith("distilface: error: ")]
    assert len(lines) == 1 and expected in lines[0] and captured.out == ""


def test_a_runtime_that_is_too_old_is_named(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    variant = Bundle.open(tiny_bundle).variant("fp32")
    new = variant.model_copy(update={"needs_onnxruntime": "1.22"})
    for version, fails in (("1.21.1", True), ("1.22.0", False), ("1.100.0", False)):
        monkeypatch.setattr(onnxruntime, "__version__", version)
        check_version("fp32", variant)
        if fails:
            with pytest.raises(UserError, match=r"'w4' needs onnxruntime 1\.22 or newer, and this is 1\.21\.1"):
                check_version("w4", new)
        else:
            check_version("w4", new)
