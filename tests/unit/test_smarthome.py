"""The demo data keeps its promises: disjoint splits, distinct texts, grades by the rule, and room to learn."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import distilface
from distilface import smarthome
from distilface.errors import UserError
from distilface.smarthome import GradedPair, Utterance

DEMO_DATA = Path(distilface.__file__).parent / "demo_data"
SPLITS = ["train", "dev", "test"]


def words(text: str) -> list[str]:
    return re.sub(r"[^\w\s]", "", text.lower()).split()


class Fixed:
    """An encoder that gives the i-th text the i-th row."""

    def __init__(self, rows: Sequence[Sequence[float]]) -> None:
        self.rows = np.array(rows, dtype=np.float32)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self.rows[: len(texts)]


class BagOfWords:
    """Presence of each word of the batch, the strongest encoder that knows no meanings."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        bags = [set(words(text)) for text in texts]
        vocabulary = sorted(set().union(*bags))
        return np.array([[word in bag for word in vocabulary] for bag in bags], dtype=np.float32)


class Oracle:
    """One axis an intent."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        intent_of = {row.text: row.intent for row in smarthome.utterances()}
        intents = sorted(set(intent_of.values()))
        return np.eye(len(intents), dtype=np.float32)[[intents.index(intent_of[text]) for text in texts]]


def replace_table(monkeypatch: pytest.MonkeyPatch, intents: Sequence[str]) -> None:
    rows = tuple(Utterance("test", "d", "x", "y", intent, f"text {i}") for i, intent in enumerate(intents))
    monkeypatch.setattr(smarthome, "_utterance_table", lambda: rows)


def test_sizes() -> None:
    intents = {split: {row.intent for row in smarthome.utterances(split)} for split in SPLITS}
    assert {split: len(names) for split, names in intents.items()} == {"train": 49, "dev": 15, "test": 24}
    assert len(smarthome.utterances()) == sum(len(smarthome.utterances(split)) for split in SPLITS)
    per_intent = Counter(row.intent for row in smarthome.utterances())
    assert min(per_intent.values()) >= 12


@pytest.mark.parametrize("name", ["utterances.tsv", "pairs.tsv"])
def test_every_line_of_the_file_is_read(name: str) -> None:
    raw = (DEMO_DATA / name).read_bytes()
    lines = raw.decode("utf-8").split("\n")
    assert lines.pop() == "" and b"\r" not in raw
    columns = lines[0].count("\t")
    assert all(line.count("\t") == columns and all(cell.strip() == cell != "" for cell in line.split("\t"))
               for line in lines)
    loaded = smarthome.utterances() if name == "utterances.tsv" else (
        smarthome.graded_pairs("dev") + smarthome.graded_pairs("test"))
    assert len(loaded) == len(lines) - 1
    last = lines[-1].split("\t")
    assert (last[-1] == loaded[-1].text) if isinstance(loaded[-1], Utterance) else (last[-1] == loaded[-1].sentence2)


def test_splits_share_no_intent_and_no_text() -> None:
    split_of_intent: dict[str, set[str]] = {}
    for row in smarthome.utterances():
        assert row.split in SPLITS
        split_of_intent.setdefault(row.intent, set()).add(row.split)
    assert {len(splits) for splits in split_of_intent.values()} == {1}
    seen = Counter(" ".join(words(row.text)) for row in smarthome.utterances())
    assert [text for text, count in seen.items() if count > 1 or not text] == []


def test_intent_is_device_and_action_in_one_domain() -> None:
    domains: dict[str, set[str]] = {}
    for row in smarthome.utterances():
        assert row.intent == f"{row.device}.{row.action}"
        domains.setdefault(row.device, set()).add(row.domain)
    assert all(len(names) == 1 for names in domains.values()), domains


@pytest.mark.parametrize("split", SPLITS)
def test_every_split_spans_domains_and_has_devices_with_several_actions(split: str) -> None:
    rows = smarthome.utterances(split)
    assert len({row.domain for row in rows}) >= 5
    actions = Counter(device for device, _ in {(row.device, row.action) for row in rows})
    assert sum(count > 1 for count in actions.values()) >= 5


def test_groups_are_the_utterances_of_one_intent() -> None:
    groups = smarthome.groups("dev")
    assert len(groups) == 15
    assert sorted(text for group in groups for text in group) == sorted(r.text for r in smarthome.utterances("dev"))
    intent_of = {row.text: row.intent for row in smarthome.utterances("dev")}
    assert all(len({intent_of[text] for text in group}) == 1 for group in groups)


@pytest.mark.parametrize(("split", "each"), [("dev", 40), ("test", 80)])
def test_pairs_are_graded_by_the_rule(split: str, each: int) -> None:
    row_of = {row.text: row for row in smarthome.utterances(split)}
    pairs = smarthome.graded_pairs(split)

    def rule(pair: GradedPair) -> tuple[float, str]:
        a, b = row_of[pair.sentence1], row_of[pair.sentence2]
        if a.intent == b.intent:
            return 5.0, "same_intent"
        if a.device == b.device:
            return 3.0, "same_device"
        return (1.0, "same_domain") if a.domain == b.domain else (0.0, "unrelated")

    assert [pair for pair in pairs if rule(pair) != (pair.score, pair.relation)] == []
    assert Counter(pair.score for pair in pairs) == {5.0: each, 3.0: each, 1.0: each, 0.0: each}
    assert len({frozenset((pair.sentence1, pair.sentence2)) for pair in pairs}) == len(pairs)
    assert all(pair.sentence1 != pair.sentence2 and pair.split == split for pair in pairs)


def test_relations_name_the_grades_of_the_file() -> None:
    found = {(pair.relation, pair.score) for split in ("dev", "test") for pair in smarthome.graded_pairs(split)}
    assert found == set(smarthome.RELATIONS.items())


def test_unknown_split_is_a_user_error() -> None:
    with pytest.raises(UserError, match=r"'valid'.*train, dev, test"):
        smarthome.utterances("valid")
    with pytest.raises(UserError, match=r"'train'.*dev, test"):
        smarthome.graded_pairs("train")
    with pytest.raises(UserError, match="Test"):
        smarthome.groups("Test")
    with pytest.raises(UserError, match="''"):
        smarthome.nearest_intent_accuracy(Oracle(), "")


def test_accuracy_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    # Angles 0, 10, 25, 90 and 100 degrees: nearest of 0 is 10, of 10 is 0, of 25 is 10, of 90 is 100, of 100 is 90.
    # Intents a b a b b: right only for the last two, 2 of 5. Lengths differ a lot: only the angle may count.
    replace_table(monkeypatch, ["a", "b", "a", "b", "b"])
    angles, lengths = np.radians([0, 10, 25, 90, 100]), np.array([1.0, 50.0, 0.1, 3.0, 900.0])
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1) * lengths[:, None]
    assert smarthome.nearest_intent_accuracy(Fixed(rows.tolist())) == pytest.approx(40.0)


def test_accuracy_tie_goes_to_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    # Three equal vectors: 0 takes 1, 1 takes 0, 2 takes 0. Intents a b b: all wrong. The last taking 1 would give 33.3.
    replace_table(monkeypatch, ["a", "b", "b"])
    assert smarthome.nearest_intent_accuracy(Fixed([[1.0, 0.0]] * 3)) == 0.0


def test_accuracy_with_a_zero_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    # The zero row ties at cosine 0 with both others and takes the first (intent a, right); 0 and 2 are opposite
    # (cosine -1), so each takes the zero row (cosine 0): right for 0, wrong for 2.
    replace_table(monkeypatch, ["a", "a", "b"])
    assert smarthome.nearest_intent_accuracy(Fixed([[1, 0], [0, 0], [-1, 0]])) == pytest.approx(200 / 3)


@pytest.mark.parametrize("rows", [[[1.0], [2.0]], [[1.0], [float("nan")], [0.0]]])
def test_accuracy_refuses_bad_vectors(monkeypatch: pytest.MonkeyPatch, rows: list[list[float]]) -> None:
    replace_table(monkeypatch, ["a", "a", "b"])
    with pytest.raises(ValueError, match="finite vectors"):
        smarthome.nearest_intent_accuracy(Fixed(rows))


@pytest.mark.parametrize("split", SPLITS)
def test_a_perfect_encoder_scores_100(split: str) -> None:
    assert smarthome.nearest_intent_accuracy(Oracle(), split) == 100.0


def test_word_overlap_does_not_solve_the_test_split() -> None:
    accuracy = smarthome.nearest_intent_accuracy(BagOfWords(), "test")
    assert 100 / 24 < accuracy < 60, accuracy
