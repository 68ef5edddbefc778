"""The peers' run: who is chosen, what is left out and why, and the table."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import environments, tables
from benchmarks.peers import engines, making, prepare
from benchmarks.peers.making import Maker, peers_named
from benchmarks.peers.registry import PEERS, Peer
from distilface.benchmarking import Subject
from distilface.benchmarking.subjects import static_facts
from distilface.errors import UserError


def test_every_peer_has_what_it_names() -> None:
    from benchmarks.environments import PACKAGES

    for peer in PEERS:
        assert peer.environment in PACKAGES
        assert peer.prepare is None or peer.prepare in prepare.PREPARE
        assert peer.engine is None or callable(getattr(engines, peer.engine))
        assert (peer.engine is None) == (peer.runs in ("onnxruntime", "openvino"))
        assert (peer.prepare is None) == (peer.runs in ("checkpoint", "bundle"))


def test_peers_by_name() -> None:
    assert [peer.name for peer in peers_named(["FASTEMBED", "model2"])] == ["fastembed", "model2vec"]
    assert peers_named(None) == list(PEERS)
    with pytest.raises(UserError, match="--only 'fasttext' names no peer; known: sentence-transformers torch fp32"):
        peers_named(["fastembed", "fasttext"])


def test_a_peer_whose_environment_fails_is_left_out_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], check: bool) -> None:
        python = tmp_path / "fastembed/bin/python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.touch()
        if "pip" in command:
            raise subprocess.CalledProcessError(1, command)

    monkeypatch.setattr(environments.subprocess, "run", run)
    maker = Maker(tmp_path, tmp_path, [], tmp_path, tmp_path, 1)
    assert maker.peer(next(peer for peer in PEERS if peer.name == "fastembed")) is None
    assert maker.left_out["fastembed"].startswith("no environment: pip could not install fastembed (")
    assert not (tmp_path / "fastembed/bin/python").exists()


def test_a_peer_that_fails_to_load_is_left_out_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                        tiny_bundle: Path) -> None:
    monkeypatch.setattr(making, "python_of", lambda environment: sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    maker = Maker(tiny_bundle, tmp_path, [], tmp_path, tmp_path, 1)
    peer = Peer("nobody", "fastembed", ("fastembed",), "bundle", "float32", engine="no_such_engine",
                file="onnx/model.onnx")
    assert maker.peer(peer) is None
    assert "no_such_engine" in maker.left_out["nobody"] and not maker.left_out["nobody"].startswith("nobody")


def test_size_of_a_factory_is_that_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "m.xml").write_bytes(b"x" * 100)
    (tmp_path / "m.bin").write_bytes(b"y" * 1000)
    subject = Subject(name="ir", model="ir", folder=tmp_path, backend="factory", files=("m.xml", "m.bin"))
    facts = static_facts(subject)
    assert (facts.file, facts.size_bytes) == ("m.xml, m.bin", 1100)
    assert facts.zip_bytes is not None and facts.zip_bytes < len(zlib.compress(b"x" * 100)) + 60


def test_vectors_of_a_peer_are_float32() -> None:
    peer = engines.Peer(lambda texts: [[len(text), 1.0] for text in texts])
    np.testing.assert_array_equal(peer.encode(("a", "bcd")), np.array([[1, 1], [3, 1]], dtype=np.float32))


def test_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    assert tables.peers() == ""
    subject: dict[str, Any] = {
        "name": "int8-static", "size_bytes": 23_200_000, "sts": {"average": 78.901}, "cosine": {"minimum": 0.97123},
        "batch_dependence": 1.0, "latency": [{"tokens": 14, "p50": 1.234}],
        "throughput": [{"sentences_per_second": {"median": 2000.4}}, {"sentences_per_second": {"median": 3100.6}}]}
    report = {"subjects": [subject, subject | {"name": "model2vec", "sts": None, "cosine": None}], "short_tokens": 14,
              "threads": 2, "text_count": 1000, "mean_tokens": 14.26, "rounds": 5,
              "machine": {"cpu": "CPU", "instruction_sets": ["avx2"]}}
    values = {"command": "c", "report": report, "left_out": {"fastembed": "no network"}, "subjects": {
        "int8-static": {"versions": {"onnxruntime": "1.32.0"}, "matmuls": {"integer": 35, "other": 1}},
        "model2vec": {"versions": {"model2vec": "0.10.0", "torch": None}, "matmuls": None}}}
    file = tmp_path / "peers.json"
    file.write_text(json.dumps(values), encoding="utf-8")
    monkeypatch.setattr(tables, "read_result", lambda name: json.loads(file.read_text(encoding="utf-8")))
    lines = tables.peers().splitlines()
    assert lines[4] == ("| int8-static (onnxruntime 1.32.0) | 23.2 | 78.90 | 0.9712 | 1.000000 | 35 of 36 | 1.23 | "
                        "3,101 |")
    assert lines[5].startswith("| model2vec (model2vec 0.10.0) | 23.2 | - | - | 1.000000 | - |")
    assert lines[-1].endswith("medians of 5 rounds. Left out: fastembed (no network).")


def test_a_vector_of_zeros_does_not_depend_on_its_neighbours() -> None:
    from distilface.benchmarking.worker import Session

    session = Session()
    session.encoder = engines.Peer(lambda texts: [[float(len(text.split())), 0.0] for text in texts])
    assert session.do_batch_dependence() == {"cosine": 1.0}
    session.encoder = engines.Peer(lambda texts: [[1.0, float(len(texts))] for _ in texts])
    assert session.do_batch_dependence()["cosine"] == pytest.approx(3 / 10**0.5)
