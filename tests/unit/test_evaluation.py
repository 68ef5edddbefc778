"""Measures against hand computation, scipy and plain double loops."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from distilface.errors import GateError, UserError
from distilface.evaluation import (
    StsPairs,
    alignment,
    alignment_uniformity,
    bootstrap_difference,
    group_recall,
    pearson,
    recall_at_k,
    similarities,
    spearman,
    uniformity,
)
from distilface.evaluation.vectors import cosine_rows, encode_distinct

stats = pytest.importorskip("scipy.stats")


class Table:
    """An encoder that looks vectors up and remembers what it was asked."""

    def __init__(self, vectors: dict[str, Sequence[float]]) -> None:
        self.vectors = vectors
        self.calls: list[list[str]] = []

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.calls.append(list(texts))
        return np.array([self.vectors[text] for text in texts], dtype=np.float32)


def unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_spearman_with_ties() -> None:
    # gold ranks 4.5 4.5 2.5 2.5 1, predicted 5 3.5 3.5 2 1: covariance 8, variances 9 and 9.5
    assert spearman([5, 5, 4, 4, 0], [0.9, 0.8, 0.8, 0.7, 0.1]) == pytest.approx(8 / math.sqrt(9 * 9.5), abs=1e-12)
    assert spearman([5, 5, 4, 4, 0], [0.9, 0.8, 0.8, 0.7, 0.1]) == pytest.approx(0.8651809, abs=5e-8)


@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e200])
def test_correlations_equal_scipy(scale: float) -> None:
    random = np.random.default_rng(3)
    gold = random.integers(0, 6, 200).astype(float)
    scores = (gold + random.normal(0, 2, 200).round(1)) * scale
    assert spearman(gold, scores) == pytest.approx(stats.spearmanr(gold, scores).statistic, abs=1e-12)
    assert pearson(gold, scores) == pytest.approx(stats.pearsonr(gold, scores / scale).statistic, abs=1e-12)


def test_perfect_correlations() -> None:
    assert spearman([1, 2, 3], [1, 10, 100]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert pearson([1, 2, 3], [-1, -2, -3]) == pytest.approx(-1)


@pytest.mark.parametrize(("gold", "scores", "reason"), [
    ([1, 2, 3], [0.5, 0.5, 0.5], "all 3 predicted scores are equal (0.5)"),
    ([2, 2], [0.1, 0.2], "all 2 gold scores are equal (2)"),
    ([1], [0.5], "at least 2 pairs, got 1"),
    ([], [], "at least 2 pairs, got 0"),
    ([1, 2], [0.5, float("nan")], "1 of 2 predicted scores are not finite"),
])
def test_undefined_correlations(gold: list[float], scores: list[float], reason: str) -> None:
    for measure, name in ((spearman, "Spearman"), (pearson, "Pearson")):
        with pytest.raises(GateError) as caught:
            measure(gold, scores)
        assert str(caught.value).startswith(f"{name} is undefined: ")
        assert reason in str(caught.value)
        assert caught.value.exit_code == 1


def test_bootstrap_difference_equals_a_plain_loop() -> None:
    random = np.random.default_rng(5)
    gold = random.integers(0, 6, 60).astype(float)
    a, b = gold + random.normal(0, 1, 60), gold + random.normal(0, 3, 60)
    found = bootstrap_difference(gold, a, b, n=200, seed=7)
    picks = np.random.default_rng(7).integers(60, size=(200, 60))
    loop = [stats.spearmanr(gold[pick], b[pick]).statistic - stats.spearmanr(gold[pick], a[pick]).statistic
            for pick in picks]
    assert found.low == pytest.approx(np.percentile(loop, 2.5), abs=1e-12)
    assert found.high == pytest.approx(np.percentile(loop, 97.5), abs=1e-12)
    assert found.difference == pytest.approx(stats.spearmanr(gold, b).statistic - stats.spearmanr(gold, a).statistic)
    assert found.low < found.difference < found.high < 0
    assert bootstrap_difference(gold, a, a, n=50) == bootstrap_difference(gold, a, 3 * a, n=50)
    assert bootstrap_difference(gold, a, a, n=50).high == 0


def test_alignment_and_uniformity_equal_double_loops() -> None:
    random = np.random.default_rng(1)
    x, y = unit(random.normal(size=(37, 5))), unit(random.normal(size=(37, 5)))
    distance = [math.dist(p, q) for p, q in zip(x, y, strict=True)]
    assert alignment(x, y) == pytest.approx(sum(d**2 for d in distance) / 37, abs=1e-12)
    assert alignment(x, y, alpha=3) == pytest.approx(sum(d**3 for d in distance) / 37, abs=1e-12)
    kernel = [math.exp(-2 * math.dist(x[i], x[j]) ** 2) for i in range(37) for j in range(i + 1, 37)]
    expected = math.log(sum(kernel) / len(kernel))
    for block in (1, 8, 37, 1000):
        assert uniformity(x, block=block) == pytest.approx(expected, abs=1e-12)
    narrow = [math.exp(-math.dist(x[i], x[j]) ** 2) for i in range(37) for j in range(i + 1, 37)]
    assert uniformity(x, t=1) == pytest.approx(math.log(sum(narrow) / len(narrow)), abs=1e-12)


def test_alignment_and_uniformity_by_hand() -> None:
    assert alignment(np.array([[1.0, 0], [0, 1]]), np.array([[0.0, 1], [0, 1]])) == pytest.approx(1)  # (2 + 0) / 2
    assert uniformity(np.array([[1.0, 0], [-1, 0]])) == pytest.approx(-8)  # squared distance 4, t = 2
    with pytest.raises(ValueError, match="n >= 2"):
        uniformity(np.ones((1, 3)))
    with pytest.raises(ValueError, match="one shape"):
        alignment(np.ones((2, 3)), np.ones((3, 3)))


def test_geometry_of_pairs_normalises_and_counts() -> None:
    encoder = Table({"a": [2, 0], "b": [0, 3], "c": [-1, 0]})
    pairs = StsPairs("dev", ("a", "a", "b"), ("b", "c", "a"), np.array([4.0, 3.9, 5.0]))
    found = alignment_uniformity(encoder, pairs)
    assert (found.positives, found.sentences) == (2, 3)
    assert found.alignment == pytest.approx(2)  # a and b at right angles, twice
    assert found.uniformity == pytest.approx(math.log((2 * math.exp(-4) + math.exp(-8)) / 3))
    with pytest.raises(UserError, match="score of 6 or more; the highest of dev is 5"):
        alignment_uniformity(encoder, pairs, min_score=6)


def test_each_distinct_text_is_encoded_once() -> None:
    encoder = Table({"a": [1, 0], "b": [0, 1], "zero": [0, 0]})
    pairs = [StsPairs("p", ("a", "b"), ("b", "b"), np.zeros(2)), StsPairs("q", ("zero",), ("a",), np.zeros(1))]
    first, second = similarities(encoder, pairs)
    assert encoder.calls == [["a", "b", "zero"]]
    assert first.tolist() == [0, 1]
    assert second.tolist() == [0]


def test_identical_pairs_tie() -> None:
    rows = np.random.default_rng(0).normal(size=(500, 384)).astype(np.float32)
    assert set(cosine_rows(rows, 3 * rows)) == {1.0}


def test_broken_vectors() -> None:
    with pytest.raises(GateError, match="1 of 2 vectors hold NaN or infinity"):
        encode_distinct(Table({"a": [1, 0], "b": [float("nan"), 0]}), [["a", "b"]])

    class Short:
        def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
            return np.ones((1, 3), dtype=np.float32)

    with pytest.raises(ValueError, match=r"shape \(1, 3\) for 2 texts"):
        encode_distinct(Short(), [["a", "b"]])


def test_recall_between_queries_and_corpus() -> None:
    corpus = np.array([[1.0, 0], [0.8, 0.6], [0, 1]])
    queries = np.array([[1.0, 0.1], [0.1, 5], [1, 0]])
    # query 0 finds "x" first; query 1 finds "y" first and "x" last; no entry is called "w"
    assert recall_at_k(queries, corpus, ["x", "x", "w"], ["x", "z", "y"], ks=(1, 2, 3)) == pytest.approx(
        {1: 1 / 3, 2: 1 / 3, 3: 2 / 3})


def test_recall_excludes_the_query_itself() -> None:
    angles = np.radians([0, 10, 11, 90])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    # nearest others: 0 -> 1, 2 (right is 2); 1 -> 2 (right is 3); 2 -> 1, 0; 3 -> 2, 1
    assert recall_at_k(vectors, None, [7, 8, 7, 8], ks=(1, 2, 3)) == {1: 0.0, 2: 0.75, 3: 1.0}


def test_recall_excludes_the_query_even_when_its_partner_is_opposite() -> None:
    angles = np.radians([0, 180, 100, 260])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    # 0 and 180 are each other's last; so are 100 and 260, which are 160 degrees apart
    assert recall_at_k(vectors, None, [1, 1, 2, 2], ks=(1, 2, 3)) == {1: 0.0, 2: 0.0, 3: 1.0}


def test_recall_equals_a_plain_loop_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(2)
    vectors, labels = unit(random.normal(size=(60, 4))), random.integers(0, 12, 60)
    hits = {1: 0, 5: 0}
    for i in range(60):
        order = sorted((j for j in range(60) if j != i), key=lambda j: -float(vectors[i] @ vectors[j]))
        for k in hits:
            hits[k] += any(labels[j] == labels[i] for j in order[:k])
    monkeypatch.setattr("distilface.evaluation.retrieval.BLOCK_VALUES", 60 * 7)
    assert recall_at_k(vectors, None, labels, ks=(1, 5)) == pytest.approx({k: n / 60 for k, n in hits.items()})


def test_recall_of_equal_vectors_is_zero() -> None:
    assert recall_at_k(np.ones((4, 2)), None, [0, 0, 1, 1], ks=(1, 2)) == {1: 0.0, 2: 0.0}


def test_group_recall() -> None:
    encoder = Table({"a1": [1, 0], "a2": [1, 0.1], "b1": [0, 1], "b2": [1, 0.05], "lone": [-1, 0]})
    # "a1" again in the second group stays in the first; "lone" has no partner and is dropped
    found = group_recall(encoder, [["a1", "a2"], ["b1", "b2", "a1"], ["lone", "lone"]], ks=(1, 2, 3))
    assert encoder.calls == [["a1", "a2", "b1", "b2"]]
    # a1: b2, a2 -> rank 2; a2: b2, a1 -> 2; b1: a2, b2 -> 2; b2: a1/a2 before b1 -> 3
    assert found == {1: 0.0, 2: 0.75, 3: 1.0}
    with pytest.raises(UserError, match="none of the 1 given"):
        group_recall(encoder, [["a1", "a1"]])


def test_the_verb_on_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                            capsys: pytest.CaptureFixture[str]) -> None:
    from distilface.cli import run

    # Of the last three groups: a0 and a1 find each other first. b0 is nearest to c0, then b1; c0 to b0, then c1; b1 to
    # c1 and c1 to b1, their own only after that: 2 of 6 at rank 1. With the first group, x0 is nearest to a0.
    angles = {"x0": -1, "x1": 180, "a0": 0, "a1": 5, "b0": 60, "c0": 64, "b1": 90, "c1": 94}
    table = Table({text: (math.cos(math.radians(angle)), math.sin(math.radians(angle)))
                   for text, angle in angles.items()})
    monkeypatch.setattr("distilface.loading.load_any", lambda *_: table)
    file = tmp_path / "groups.tsv"
    file.write_text("x0\tx1\na0\ta1\nb0\tb1\nc0\tc1\n")
    given = ["evaluate", "model", "--groups", str(file), "--json", str(tmp_path / "scores.json")]
    assert run([*given, "--last", "3"]) == 0
    assert "recall@1 33.33   recall@10 100.00   (3 groups)" in capsys.readouterr().out
    found = json.loads((tmp_path / "scores.json").read_text())
    assert (found["recall@1"], found["recall@10"], found["groups"]) == (pytest.approx(100 / 3), 100.0, 3)
    assert run([*given, "--overwrite"]) == 0
    assert json.loads((tmp_path / "scores.json").read_text())["recall@1"] == pytest.approx(100 / 8)  # a1's is left
    for last in ("0", "5"):
        assert run([*given, "--overwrite", "--last", last]) == 2
        assert f"--last {last} does not fit the 4 groups" in capsys.readouterr().err
