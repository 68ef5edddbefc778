"""Batches by length: every text once, the budget kept, the longest first."""

from __future__ import annotations

import random

import pytest

from distilface.batching import batches_by_length


def test_a_small_case_by_hand() -> None:
    # Longest first: 9 is over the budget and alone; then 4 and 4 fill 8; 3 allows two rows; 1 is left.
    assert batches_by_length([3, 9, 4, 1, 4, 3], 8) == [[1], [2, 4], [0, 5], [3]]


def test_nothing_gives_nothing() -> None:
    assert batches_by_length([], 8) == []


def test_max_rows_cuts_a_batch() -> None:
    assert batches_by_length([1, 1, 1, 1, 1], 100, max_rows=2) == [[0, 1], [2, 3], [4]]


def test_rows_without_tokens_do_not_divide_by_zero() -> None:
    assert batches_by_length([0, 0], 4) == [[0, 1]]


@pytest.mark.parametrize("budget", [1, 64, 512, 100_000])
def test_every_row_once_and_no_batch_over_the_budget(budget: int) -> None:
    generator = random.Random(0)
    lengths = [generator.randint(1, 128) for _ in range(500)]
    batches = batches_by_length(lengths, budget)
    assert sorted(index for batch in batches for index in batch) == list(range(500))
    for batch in batches:
        longest = max(lengths[index] for index in batch)
        assert len(batch) == 1 or len(batch) * longest <= budget
    firsts = [lengths[batch[0]] for batch in batches]
    assert firsts == sorted(firsts, reverse=True)


def test_equal_lengths_keep_their_order() -> None:
    assert batches_by_length([5] * 6, 10) == [[0, 1], [2, 3], [4, 5]]
