"""Which examples meet in a batch."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from distilface.errors import UserError
from distilface.tokenizer import Tokenizer
from distilface.training.batches import BatchPlan, MicroBatches
from distilface.training.config import SourceConfig
from distilface.training.examples import Examples, TokenRows, load_examples
from tests.tiny import tiny_tokenizer


@pytest.fixture()
def rows(tmp_path: Path) -> TokenRows:
    tiny_tokenizer(tmp_path)
    return TokenRows(Tokenizer.load(tmp_path, 12))


def sentences(count: int) -> Examples:
    return Examples("text", "sentences", np.arange(count)[:, None], "")


def lengths(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(3, 32, count)


def sizes(plan: BatchPlan, epoch: int = 0) -> list[int]:
    return sorted(len(batch.columns) for batch in plan.epoch(epoch))


@pytest.mark.parametrize(("count", "keep", "processes", "expected"), [
    (65, False, 1, [64]),           # never a batch of 1: dropped,
    (65, True, 1, [65]),            # or merged
    (66, True, 1, [2, 64]),
    (66, True, 3, [66]),            # 2 are too few for 3 processes
    (67, True, 3, [3, 64]),
    (130, False, 1, [64, 64]),
    (64, False, 1, [64]),
    (40, False, 1, [40]),           # fewer than a batch: all of them
])
def test_last_batch(count: int, keep: bool, processes: int, expected: list[int]) -> None:
    plan = BatchPlan([sentences(count)], lengths(count), 64, seed=1, keep_last=keep, processes=processes)
    assert sizes(plan) == expected
    assert plan.batches_per_epoch == len(expected)


def test_small_data_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        BatchPlan([sentences(40)], lengths(40), 64, seed=1)
    assert "40 examples, fewer than train.batch_size 64" in caplog.text
    with pytest.raises(UserError, match="4 processes"):
        BatchPlan([sentences(3)], lengths(3), 64, seed=1, processes=4)


@pytest.mark.parametrize("keep", [False, True])
def test_every_epoch_uses_examples_once_and_differently(keep: bool) -> None:
    plan = BatchPlan([sentences(1000)], lengths(1000), 16, seed=3, window=4, keep_last=keep)
    first, again, second = (
        [batch.columns[:, 0].tolist() for batch in plan.epoch(epoch)] for epoch in (0, 0, 1))
    assert first == again != second
    seen = sorted(number for batch in first for number in batch)
    assert len(set(seen)) == len(seen) == (1000 if keep else 992)


def test_batches_hold_similar_lengths() -> None:
    width = lengths(4096)
    padding = {}
    for window in (0, 32):
        plan = BatchPlan([sentences(4096)], width, 32, seed=0, window=window)
        padded = sum(len(b.columns) * width[b.columns].max() for b in plan.epoch(0))
        padding[window] = padded / width.sum() - 1
    assert padding[32] < 0.1 < 0.5 < padding[0]


def test_sources_are_mixed_batch_by_batch_in_proportion() -> None:
    other = Examples("pairs", "pairs", np.arange(1000, 1320).reshape(160, 2), "")
    plan = BatchPlan([sentences(320), other], lengths(1320), 32, seed=0)
    kinds = ["pairs" if batch.columns.min() >= 1000 else "sentences" for batch in plan.epoch(0)]
    assert kinds.count("pairs") == 5 and kinds.count("sentences") == 10
    assert kinds != sorted(kinds) and kinds != sorted(kinds, reverse=True)
    assert all((batch.columns >= 1000).all() or (batch.columns < 1000).all() for batch in plan.epoch(0))


def test_equal_texts_share_a_row(tmp_path: Path, rows: TokenRows) -> None:
    (tmp_path / "text").write_text("turn on the light\nTurn on the LIGHT\nplay music\n")
    examples = load_examples(SourceConfig(path=str(tmp_path / "text")), rows)
    assert examples.texts[0, 0] == examples.texts[1, 0] != examples.texts[2, 0]  # an uncased model sees one sentence
    batches = MicroBatches(BatchPlan([examples], rows.lengths, 64, seed=0), rows, 1)
    assert batches[0]["exclude"].sum() == 2
    assert rows.lengths.max() <= 12


def test_groups_draw_two_distinct_members_and_know_them_all(tmp_path: Path, rows: TokenRows,
                                                            caplog: pytest.LogCaptureFixture) -> None:
    groups = ["open a\topen b\topen c\tOPEN a", "light d\tlight e", "music f\tMUSIC f", "lamp g\topen c"]
    (tmp_path / "g.tsv").write_text("\n".join(groups))
    with caplog.at_level(logging.WARNING):
        examples = load_examples(SourceConfig(path=str(tmp_path / "g.tsv"), kind="groups"), rows)
    assert len(examples) == 3 and "dropped 1 groups" in caplog.text
    plan = BatchPlan([examples], rows.lengths, 8, seed=0)
    drawn = set()
    for epoch in range(30):
        (batch,) = plan.epoch(epoch)
        assert (batch.columns[:, 0] != batch.columns[:, 1]).all() and (batch.columns >= 0).all()
        for columns, same in zip(batch.columns, batch.same, strict=True):
            assert set(columns) <= set(same)
            drawn.add(tuple(columns))
    assert len(drawn) == 6 + 2 + 2  # ordered pairs of 3, 2 and 2 distinct members
    # "open c" belongs to the first and the last group, so these two exclude each other whichever members were drawn
    assert MicroBatches(plan, rows, 1)[0]["exclude"].sum() == 2


def test_processes_share_a_batch_evenly(tmp_path: Path, rows: TokenRows) -> None:
    lines = [f"light {index}\tlamp {index}\tmusic {index}" for index in range(11)]
    (tmp_path / "t.tsv").write_text("\n".join(lines))
    examples = load_examples(SourceConfig(path=str(tmp_path / "t.tsv"), kind="triplets"), rows)
    plan = BatchPlan([examples], rows.lengths, 16, seed=0, processes=2)
    shares = [MicroBatches(plan, rows, 1, process)[0] for process in range(2)]
    assert [len(share["input_ids"]) for share in shares] == [3 * 6, 3 * 5]
    assert shares[0]["sizes"] == shares[1]["sizes"] == [6, 5]
    assert shares[0]["exclude"].shape == (11, 22) and (shares[0]["exclude"] == shares[1]["exclude"]).all()
    seen = [tuple(row) for share in shares for row in share["input_ids"].tolist()]
    assert len(set(seen)) == 33


def test_two_examples_are_needed(tmp_path: Path, rows: TokenRows) -> None:
    (tmp_path / "one.txt").write_text("turn on the light\n")
    with pytest.raises(UserError, match="at least 2"):
        load_examples(SourceConfig(path=str(tmp_path / "one.txt")), rows)


def test_limit_and_hash(tmp_path: Path, rows: TokenRows) -> None:
    (tmp_path / "a.txt").write_text("light a\nlight b\nlight c\n")
    whole = load_examples(SourceConfig(path=str(tmp_path / "a.txt")), rows)
    part = load_examples(SourceConfig(path=str(tmp_path / "a.txt"), limit=2), rows)
    assert (len(whole), len(part)) == (3, 2) and whole.sha256 != part.sha256
