"""The bundle on disk: whole or not at all, and a manifest that notices every altered byte."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from distilface.artifact import (
    FORMAT_VERSION,
    Bundle,
    GoldenText,
    Manifest,
    Variant,
    atomic_directory,
    atomic_file,
    check_output,
    check_output_file,
    is_bundle,
    write_golden,
    write_manifest,
)
from distilface.errors import GateError, UserError

FILES = {"fp32": "onnx/model.onnx", "int8-static": "onnx/model_int8.onnx", "int8-dynamic": "onnx/model_quantized.onnx"}
KINDS: dict[str, Any] = {"fp32": "float32", "int8-static": "int8-static", "int8-dynamic": "int8-dynamic"}


def _manifest(*variants: str) -> Manifest:
    return Manifest(
        created_by="a test", architecture="distilbert", pooling="mean_last", head="none", max_seq_length=64, dim=32,
        num_layers=2, num_attention_heads=4, hidden_size=32,
        variants={name: Variant(file=FILES[name], kind=KINDS[name], size=3, integer_matmuls=0, weight_only_matmuls=0,
                                float_matmuls=0, cosine_floor=0.9, batch_invariant=True, batch_dependence=1.0,
                                needs_custom_ops=False, opset=18, ir_version=8) for name in variants})


def _bundle(folder: Path, *variants: str) -> Path:
    (folder / "onnx").mkdir(parents=True)
    for name in variants:
        (folder / FILES[name]).write_bytes(name.encode())
    (folder / "config.json").write_text("{}\n", encoding="utf-8")
    write_manifest(folder, _manifest(*variants))
    return folder


# ----------------------------------------------------------------- atomic outputs


def test_a_folder_appears_whole_with_missing_parents(tmp_path: Path) -> None:
    out = tmp_path / "a" / "b c é" / "out"
    with atomic_directory(out) as folder:
        assert not out.exists() and folder.parent == out.parent
        (folder / "file").write_text("1", encoding="utf-8")
    assert [item.name for item in out.parent.iterdir()] == ["out"]
    assert (out / "file").read_text(encoding="utf-8") == "1"
    assert out.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_nothing_is_left_when_it_ends_badly(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), atomic_directory(tmp_path / "out") as folder:
        (folder / "half").write_text("1", encoding="utf-8")
        raise error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_the_old_folder_survives_a_bad_end(tmp_path: Path, error: type[BaseException]) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "distilface.json").write_text("old", encoding="utf-8")
    with pytest.raises(error), atomic_directory(out, overwrite=True):
        raise error
    assert [item.name for item in tmp_path.rglob("*")] == ["out", "distilface.json"]


def test_the_old_folder_survives_a_failed_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "distilface.json").write_text("old", encoding="utf-8")
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.name.endswith(".partial"):
            raise PermissionError("held open by another program")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(PermissionError), atomic_directory(out, overwrite=True):
        pass
    assert [item.name for item in tmp_path.rglob("*")] == ["out", "distilface.json"]


def test_overwrite_replaces_the_whole_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "distilface.json").write_text("old", encoding="utf-8")
    with atomic_directory(out, overwrite=True) as folder:
        assert (out / "distilface.json").exists()  # until the very end
        (folder / "new").write_text("new", encoding="utf-8")
    assert [item.name for item in tmp_path.rglob("*")] == ["out", "new"]


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("1", encoding="utf-8")
    with pytest.raises(UserError, match=r"not empty.*--overwrite"), atomic_directory(tmp_path):
        pytest.fail("the block must not run")
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_an_empty_folder_is_no_obstacle(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with atomic_directory(out) as folder:
        (folder / "new").write_text("1", encoding="utf-8")
    assert [item.name for item in tmp_path.rglob("*")] == ["out", "new"]


def test_an_output_that_can_not_be_written_is_refused_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UserError, match="no permission"):
        check_output(tmp_path / "a" / "out", overwrite=False)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, error: type[BaseException]) -> None:
    file = tmp_path / "sub" / "vectors.npy"
    with atomic_file(file) as temporary:
        temporary.write_text("first", encoding="utf-8")
    with pytest.raises(error), atomic_file(file) as temporary:
        temporary.write_text("sec", encoding="utf-8")
        raise error
    assert file.read_text(encoding="utf-8") == "first"
    assert [item.name for item in file.parent.iterdir()] == ["vectors.npy"]
    assert file.stat().st_mode & 0o777 == 0o644


# ----------------------------------------------------------------- the manifest


def test_the_manifest_comes_back_as_it_was_written(tmp_path: Path) -> None:
    folder = _bundle(tmp_path / "b", "fp32", "int8-dynamic")
    opened = Bundle.open(folder)
    assert opened.manifest.model_copy(update={"files": {}}) == _manifest("fp32", "int8-dynamic")
    assert set(opened.manifest.files) == {"config.json", "onnx/model.onnx", "onnx/model_quantized.onnx"}
    # sha256 of the four bytes "fp32", from coreutils' sha256sum
    record = opened.manifest.files["onnx/model.onnx"]
    assert (record.size, record.sha256) == (
        4, "d1f50bdb51e6ec880d97294012b7b94d37a371bc61e6bfc58288d2d58e73c39e")
    assert is_bundle(folder)


def test_an_altered_file_is_noticed(tmp_path: Path) -> None:
    folder = _bundle(tmp_path / "b", "fp32")
    opened = Bundle.open(folder)
    for relative in opened.manifest.files:
        opened.check_file(relative)
    (folder / "onnx" / "model.onnx").write_bytes(b"fp33")
    with pytest.raises(GateError, match=r"model\.onnx' was altered"):
        opened.check_file("onnx/model.onnx")
    (folder / "config.json").unlink()
    with pytest.raises(GateError, match=r"config\.json' is missing"):
        opened.check_file("config.json")


@pytest.mark.parametrize(("variants", "expected"), [
    (("fp32", "int8-static", "int8-dynamic"), "int8-static"), (("fp32", "int8-dynamic"), "int8-dynamic"),
    (("fp32", "int8-static"), "int8-static")])
def test_int8_is_the_static_variant_where_there_is_one(
        tmp_path: Path, variants: tuple[str, ...], expected: str) -> None:
    opened = Bundle.open(_bundle(tmp_path / "b", *variants))
    assert opened.resolve_variant("int8") == expected
    assert opened.graph("int8") == opened.folder / FILES[expected]
    assert opened.variant_names == list(variants)


def test_a_variant_that_is_not_there_lists_those_that_are(tmp_path: Path) -> None:
    opened = Bundle.open(_bundle(tmp_path / "b", "fp32"))
    with pytest.raises(UserError, match=r"'int8'.* has fp32 .*quantize"):
        opened.resolve_variant("int8")
    with pytest.raises(UserError, match=r"'q4'.* has fp32$"):
        opened.resolve_variant("q4")
    (opened.folder / "onnx" / "model.onnx").unlink()
    with pytest.raises(UserError, match="missing"):
        opened.graph("fp32")


def _rewritten(folder: Path, **changes: Any) -> Path:
    file = folder / "distilface.json"
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    return folder


@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, "1", None])
def test_a_newer_format_is_refused(tmp_path: Path, version: Any) -> None:
    with pytest.raises(UserError, match="format"):
        Bundle.open(_rewritten(_bundle(tmp_path / "b", "fp32"), format_version=version))


@pytest.mark.parametrize("changes", [{"dim": "wide"}, {"variants": {"fp32": {}}}, {"surprise": 1}])
def test_a_damaged_manifest_says_where(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"damaged at {next(iter(changes))}") as caught:
        Bundle.open(_rewritten(_bundle(tmp_path / "b", "fp32"), **changes))
    assert "\n" not in str(caught.value)


def test_what_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        Bundle.open(tmp_path / "none")
    with pytest.raises(UserError, match="no bundle"):
        Bundle.open(tmp_path)
    (tmp_path / "distilface.json").write_text('{"kind": "checkpoint"}', encoding="utf-8")
    with pytest.raises(UserError, match="is a checkpoint"):
        Bundle.open(tmp_path)
    assert not is_bundle(tmp_path)
    (tmp_path / "distilface.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match="not valid JSON"):
        Bundle.open(tmp_path)


def test_golden_texts_survive_as_they_are(tmp_path: Path) -> None:
    folder = _bundle(tmp_path / "b", "fp32")
    texts = [GoldenText(text="\x00 😀 \u200b\"", ids=[101, 102], vector=[0.6, -0.8]),
             GoldenText(text="", ids=[], vector=[])]
    write_golden(folder, texts)
    assert Bundle.open(folder).golden() == texts
    assert (folder / "golden.json").read_bytes().isascii()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_files_written_for_the_owner_alone_become_readable(tmp_path: Path) -> None:
    with atomic_directory(tmp_path / "out") as folder:
        (folder / "weights").write_bytes(b"1")
        (folder / "weights").chmod(0o600)
    assert (tmp_path / "out" / "weights").stat().st_mode & 0o777 == 0o644


def test_overwrite_never_deletes_what_this_package_did_not_write(tmp_path: Path) -> None:
    precious = tmp_path / "precious" / "sub" / "thesis.txt"
    precious.parent.mkdir(parents=True)
    precious.write_text("years of work", encoding="utf-8")
    with pytest.raises(UserError, match="did not write"), atomic_directory(tmp_path / "precious", overwrite=True):
        pass
    assert precious.read_text(encoding="utf-8") == "years of work"
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_is_never_replaced_by_a_folder(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match="name a folder"):
        check_output(tmp_path / "file", overwrite)
    with pytest.raises(UserError, match="is a file, not a folder"):
        check_output(tmp_path / "file" / "out", overwrite)
    with pytest.raises(UserError, match="is a file, not a folder"):
        check_output_file(tmp_path / "file" / "out.npy", overwrite)


@pytest.mark.parametrize("out", ["model", "model/inside", "."])
def test_an_output_that_overlaps_its_input_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                      out: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    for folder in (tmp_path, tmp_path / "model"):
        (folder / "distilface.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match="overlap"):
        check_output(out, True, ["no/such-id", None, "model"])


def test_an_output_file_is_not_its_input(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("a", encoding="utf-8")
    with pytest.raises(UserError, match="overlap"):
        check_output_file(tmp_path / "texts.txt", True, [tmp_path / "texts.txt"])
    assert check_output_file(tmp_path / "vectors.npy", False, [tmp_path / "texts.txt"]) == tmp_path / "vectors.npy"
