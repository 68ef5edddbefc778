"""`bench --target web` where something is missing: one line, with what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from distilface.benchmarking import BenchConfig
from distilface.benchmarking.browser import PACKAGES, find_browser, find_packages
from distilface.benchmarking.subjects import Subject, check_target
from distilface.errors import UserError


def test_without_chromium(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CHROMIUM", raising=False)
    with pytest.raises(UserError, match=r"needs Chromium or Chrome and found none of chromium, .*name it in CHROMIUM$"):
        find_browser()
    monkeypatch.setenv("CHROMIUM", "no-such-browser")
    with pytest.raises(UserError, match="CHROMIUM names 'no-such-browser', which is no program"):
        find_browser()


def test_chromium_that_is_named_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "mine"
    program.write_text("#!/bin/sh\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("CHROMIUM", str(program))
    assert find_browser() == str(program)


@pytest.mark.parametrize("missing", list(PACKAGES))
def test_without_an_npm_package(missing: str, tmp_path: Path) -> None:
    for name, file in PACKAGES.items():
        if name != missing:
            (tmp_path / "node_modules" / name / file).parent.mkdir(parents=True)
            (tmp_path / "node_modules" / name / file).touch()
    with pytest.raises(UserError, match=f"npm package '{missing}'.*npm install {' '.join(PACKAGES)}"):
        find_packages(tmp_path)


@pytest.mark.parametrize(("backend", "remedy"), [("openvino", "drop @openvino"), ("torch", "distilface export first")])
def test_what_no_browser_runs(backend: str, remedy: str) -> None:
    subject = Subject(name="x", model="x", folder=None, backend=backend)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=f"x can't be measured on web.*run by {backend}; .*{remedy}"):
        check_target([subject], "web")


def test_npm_folder_belongs_to_web(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="npm_folder belongs to target web, and target is cpu"):
        BenchConfig(npm_folder=tmp_path)
