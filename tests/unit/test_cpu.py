"""Processors a container may use: affinity and quota, read from fake cgroup files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from distilface.cpu import available_cpus, cpu_quota


def _v2(folder: Path, text: str) -> Path:
    (folder / "cpu.max").write_text(text, encoding="utf-8")
    return folder


def _v1(folder: Path, quota: str, period: str) -> Path:
    (folder / "cpu").mkdir()
    (folder / "cpu" / "cpu.cfs_quota_us").write_text(quota, encoding="utf-8")
    (folder / "cpu" / "cpu.cfs_period_us").write_text(period, encoding="utf-8")
    return folder


def _allow(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)), raising=False)


@pytest.mark.parametrize(("text", "quota"), [
    ("150000 100000\n", 1.5), ("max 100000\n", None), ("50000 100000\n", 0.5), ("200000 50000", 4.0),
    ("", None), ("nonsense", None), ("1 0", None), ("a b", None),
])
def test_cgroup_v2(tmp_path: Path, text: str, quota: float | None) -> None:
    assert cpu_quota(_v2(tmp_path, text)) == quota


@pytest.mark.parametrize(("quota", "period", "expected"), [
    ("150000\n", "100000\n", 1.5), ("-1\n", "100000\n", None), ("x", "100000", None)])
def test_cgroup_v1(tmp_path: Path, quota: str, period: str, expected: float | None) -> None:
    assert cpu_quota(_v1(tmp_path, quota, period)) == expected


def test_no_cgroup_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None


@pytest.mark.parametrize(("allowed", "text", "expected"), [
    (8, "max 100000", 8), (8, "150000 100000", 2), (8, "50000 100000", 1), (1, "400000 100000", 1),
    (2, "200000 100000", 2),
])
def test_the_smaller_of_affinity_and_quota_rounded_up(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: int, text: str, expected: int) -> None:
    _allow(monkeypatch, allowed)
    assert available_cpus(_v2(tmp_path, text)) == expected


def test_affinity_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _allow(monkeypatch, 3)
    assert available_cpus(tmp_path) == 3


def test_a_system_without_affinity_counts_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_cpus(tmp_path) == 1
