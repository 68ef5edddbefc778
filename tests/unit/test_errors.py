"""Errors: exit codes, the message of a missing extra, and the names at the package's door."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import distilface
from distilface.errors import DistilfaceError, GateError, UserError, require


def test_exit_codes() -> None:
    assert (UserError.exit_code, GateError.exit_code) == (2, 1)
    assert issubclass(UserError, DistilfaceError) and issubclass(GateError, DistilfaceError)


def test_require_returns_the_module() -> None:
    assert require("json", "train", "reading") is json


def test_a_missing_package_names_the_purpose_and_the_command() -> None:
    with pytest.raises(UserError) as caught:
        require("no_such_package_xyz", "export", "ONNX export")
    text = str(caught.value)
    assert "\n" not in text
    assert all(part in text for part in ("ONNX export", "'no_such_package_xyz'", "pip install 'distilface[export]'"))


def test_a_package_whose_own_dependency_is_missing_names_the_dependency(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_installed_xyz.py").write_text("import deeper_missing_xyz\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match="'deeper_missing_xyz'"):
        require("half_installed_xyz", "train", "training")


def test_a_package_that_breaks_while_importing_is_not_called_missing(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_xyz.py").write_text("raise RuntimeError('broken build')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RuntimeError, match="broken build"):
        require("broken_xyz", "train", "training")


def test_the_names_at_the_door() -> None:
    from distilface.runtime import Encoder

    assert distilface.Encoder is Encoder
    assert distilface.UserError is UserError
    assert all(hasattr(distilface, name) for name in distilface.__all__)
    with pytest.raises(AttributeError, match="'Trainer'"):
        _ = distilface.Trainer
