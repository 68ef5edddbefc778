"""From a name to a model: folders, the packaged model, the Hub, and one line of advice when none of them answers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import distilface.loading
from distilface.encoder import SentenceEncoder
from distilface.errors import UserError
from distilface.loading import MINILM, load_any, packaged_minilm, resolve_model, sha256_of
from distilface.runtime import Encoder

huggingface_hub = pytest.importorskip("huggingface_hub")


def _message(name: Any, **arguments: Any) -> str:
    with pytest.raises(UserError) as caught:
        resolve_model(name, **arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> str:
        raise AssertionError("the network must not be asked")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)


def _install(monkeypatch: pytest.MonkeyPatch, folder: Path | None) -> None:
    """Pretend that the model's package lies in ``folder``, or is not installed."""
    spec = None if folder is None else SimpleNamespace(origin=str(folder / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)


def test_a_folder_wins(tmp_path: Path, no_hub: None, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "sentence-transformers" / "all-MiniLM-L6-v2"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model(folder) == folder
    assert resolve_model(MINILM).resolve() == folder


def test_the_home_folder_is_expanded(tmp_path: Path, no_hub: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert resolve_model("~/model") == tmp_path / "model"


@pytest.mark.parametrize("name", [
    "./missing/model", "/no/such/folder", "a/b/c", "~/missing", "../x", "", "has blank/x"])
def test_a_path_that_does_not_exist_is_not_looked_up(name: str, no_hub: None) -> None:
    assert repr(name) in _message(name) and "does not exist" in _message(name)


def test_a_file_is_no_model(tmp_path: Path, no_hub: None) -> None:
    file = tmp_path / "model.onnx"
    file.touch()
    assert "is a file" in _message(file)


@pytest.mark.parametrize("error", [
    ConnectionError("We have no connection to the Hub\nand a second line"), OSError(), ValueError("x" * 1000)])
def test_an_offline_hub_says_what_to_do(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    text = _message("owner/model")
    assert all(part in text for part in ("'owner/model'", "offline", "local folder", "HF_HOME"))
    assert len(text) < 400


def test_the_hub_is_asked_for_safe_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def answer(name: str, **arguments: Any) -> str:
        asked.update(arguments, name=name)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", answer)
    assert resolve_model("owner/model", revision="v1") == tmp_path
    assert (asked["name"], asked["revision"]) == ("owner/model", "v1")
    assert not any(pattern.endswith((".bin", ".pt", ".pkl", ".ckpt", "*")) for pattern in asked["allow_patterns"]
                   if "/" not in pattern)


def test_without_the_hub_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "distilface[train]" in _message("owner/model")


@pytest.mark.parametrize("name", [MINILM, "all-MiniLM-L6-v2"])
def test_the_packaged_model_needs_no_network(minilm: Path, name: str, no_hub: None, tmp_path: Path,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_model(name) == minilm


def test_without_the_package_its_full_name_goes_to_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch, None)
    monkeypatch.chdir(tmp_path)
    asked: list[str] = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: asked.append(name) or str(tmp_path))
    resolve_model("all-MiniLM-L6-v2")
    assert packaged_minilm() is None and asked == [MINILM]


@pytest.mark.parametrize("content", [b"other weights", None])
def test_a_package_with_other_weights_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                 content: bytes | None) -> None:
    (tmp_path / "model").mkdir()
    if content is not None:
        (tmp_path / "model" / "model.safetensors").write_bytes(content)
    _install(monkeypatch, tmp_path)
    text = _message(MINILM)
    assert "not all-MiniLM-L6-v2" in text and distilface.loading.MINILM_SHA256 in text and "reinstall" in text


def test_the_right_weights_are_those_of_the_known_hash() -> None:
    assert distilface.loading.MINILM_SHA256 == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def test_sha256_of_more_than_one_block(tmp_path: Path) -> None:
    file = tmp_path / "zeros"
    file.write_bytes(bytes(3 << 20))
    # head -c 3145728 /dev/zero | sha256sum
    assert sha256_of(file) == "bbd05cf6097ac9b1f89ea29d2542c1b7b67ee46848393895f5a9e43fa1f621e5"


# ----------------------------------------------------------------- load_any


def test_a_bundle_and_a_checkpoint_encode_alike(tiny_bundle: Path, checkpoint: Path) -> None:
    from_bundle, from_checkpoint = load_any(tiny_bundle), load_any(checkpoint)
    assert isinstance(from_bundle, Encoder) and from_bundle.variant == "fp32"
    assert isinstance(from_checkpoint, SentenceEncoder)
    texts = ["turn on the light", "Hello, World!"]
    assert (from_bundle.encode(texts) * from_checkpoint.encode(texts)).sum(axis=1).min() > 0.99999


def test_variant_pooling_and_limit_reach_the_model(tiny_bundle: Path, checkpoint: Path) -> None:
    static = load_any(tiny_bundle, variant="int8", max_seq_length=8)
    assert isinstance(static, Encoder)
    assert (static.variant, static.max_seq_length) == ("int8-static", 8)
    cls = load_any(checkpoint, pooling="cls", max_seq_length=8)
    assert isinstance(cls, SentenceEncoder)
    assert (cls.pooling, cls.max_seq_length) == ("cls", 8)


def test_options_that_do_not_apply_are_refused(tiny_bundle: Path, checkpoint: Path) -> None:
    with pytest.raises(UserError, match=r"--pooling cls.*in the graph"):
        load_any(tiny_bundle, pooling="cls")
    with pytest.raises(UserError, match=r"--variant fp32.*is a checkpoint"):
        load_any(checkpoint, variant="fp32")
