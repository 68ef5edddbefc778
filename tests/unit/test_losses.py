"""Losses against values worked out by hand and against sentence-transformers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from distilface.losses import blocks, duplicate_mask, info_nce

# cosines: a0.p0 = 1, a0.p1 = 0.6, a1.p0 = 0, a1.p1 = 0.8; lengths other than 1 must not matter
ANCHORS = torch.tensor([[2.0, 0.0], [0.0, 0.5]])
POSITIVES = torch.tensor([[3.0, 0.0], [0.6, 0.8]])


def test_by_hand() -> None:
    rows = [math.log(1 + math.exp(0.6 - 1)), math.log(1 + math.exp(0.0 - 0.8))]
    assert info_nce(ANCHORS, POSITIVES, temperature=1.0).item() == pytest.approx(sum(rows) / 2, abs=1e-6)
    half = [math.log(1 + math.exp((0.6 - 1) / 0.5)), math.log(1 + math.exp(-0.8 / 0.5))]
    assert info_nce(ANCHORS, POSITIVES, temperature=0.5).item() == pytest.approx(sum(half) / 2, abs=1e-6)


def test_symmetric_by_hand() -> None:
    there = [math.log(1 + math.exp(0.6 - 1)), math.log(1 + math.exp(0.0 - 0.8))]
    back = [math.log(1 + math.exp(0.0 - 1)), math.log(1 + math.exp(0.6 - 0.8))]
    loss = info_nce(ANCHORS, POSITIVES, temperature=1.0, symmetric=True)
    assert loss.item() == pytest.approx(sum(there + back) / 4, abs=1e-6)


def test_hard_negatives_by_hand() -> None:
    negatives = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])  # cosines: a0: 0, -1; a1: 1, 0
    loss = info_nce(ANCHORS, POSITIVES, negatives, temperature=1.0)
    first = math.log(math.exp(1) + math.exp(0.6) + math.exp(0) + math.exp(-1)) - 1
    second = math.log(math.exp(0) + math.exp(0.8) + math.exp(1) + math.exp(0)) - 0.8
    assert loss.item() == pytest.approx((first + second) / 2, abs=1e-6)
    weighted = info_nce(ANCHORS, POSITIVES, negatives, temperature=1.0, hard_negative_weight=2.0)
    first = math.log(math.exp(1) + math.exp(0.6) + math.exp(0 + 2) + math.exp(-1)) - 1
    second = math.log(math.exp(0) + math.exp(0.8) + math.exp(1) + math.exp(0 + 2)) - 0.8
    assert weighted.item() == pytest.approx((first + second) / 2, abs=1e-6)


def test_two_hard_negatives_each_belong_to_their_anchor() -> None:
    negatives = torch.tensor([[0.0, 1.0], [-1.0, 0.0], [1.0, 0.0], [0.0, -1.0]])  # the first two are a0's
    loss = info_nce(ANCHORS, POSITIVES, negatives, temperature=1.0, hard_negative_weight=0.5)
    first = math.log(sum(map(math.exp, (1, 0.6, 0 + 0.5, -1 + 0.5, 1, 0)))) - 1
    second = math.log(sum(map(math.exp, (0, 0.8, 1, 0, 0 + 0.5, -1 + 0.5)))) - 0.8
    assert loss.item() == pytest.approx((first + second) / 2, abs=1e-6)


@pytest.mark.parametrize(("negatives", "symmetric"), [(0, False), (1, False), (2, False), (0, True)])
def test_equals_sentence_transformers(negatives: int, symmetric: bool) -> None:
    losses = pytest.importorskip("sentence_transformers.losses")
    torch.manual_seed(0)
    vectors = [torch.randn(6, 16) for _ in range(2 + negatives)]

    def reference() -> float:
        kind = losses.MultipleNegativesSymmetricRankingLoss if symmetric else losses.MultipleNegativesRankingLoss
        loss = kind(torch.nn.Identity(), scale=1 / 0.05)
        return float(loss.compute_loss_from_embeddings(vectors, None))

    hard = torch.stack(vectors[2:], dim=1).flatten(0, 1) if negatives else None
    ours = info_nce(vectors[0], vectors[1], hard, temperature=0.05, symmetric=symmetric)
    assert ours.item() == pytest.approx(reference(), rel=1e-5)


def test_a_duplicate_is_no_negative_in_either_direction() -> None:
    anchors = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    positives = torch.tensor([[0.8, 0.6], [0.6, 0.8], [0.0, 1.0]])
    exclude = torch.from_numpy(duplicate_mask(np.array([[7], [7], [3]])))
    assert exclude.tolist() == [[False, True, False], [True, False, False], [False, False, False]]
    # a0 and a1 are one sentence: each meets only its own positive and p2
    rows = [math.log(1 + math.exp(0 - 0.8)), math.log(1 + math.exp(0 - 0.6)),
            math.log(math.exp(0.6) + math.exp(0.8) + math.exp(1)) - 1]
    loss = info_nce(anchors, positives, temperature=1.0, exclude=exclude)
    assert loss.item() == pytest.approx(sum(rows) / 3, abs=1e-6)
    back = [math.log(1 + math.exp(0.6 - 0.8)), math.log(1 + math.exp(0.8 - 0.6)),
            math.log(math.exp(0) + math.exp(0) + math.exp(1)) - 1]
    both = info_nce(anchors, positives, temperature=1.0, exclude=exclude, symmetric=True)
    assert both.item() == pytest.approx((sum(rows) + sum(back)) / 6, abs=1e-6)


def test_masks_of_pairs_groups_and_triplets() -> None:
    pairs = np.array([[1, 2], [3, 1], [4, 5], [4, 6]])  # text 1 is in rows 0 and 1, text 4 in rows 2 and 3
    mask = duplicate_mask(pairs)
    assert np.argwhere(mask).tolist() == [[0, 1], [1, 0], [2, 3], [3, 2]]
    groups = np.array([[1, 2, 9], [5, 6, -1], [9, 8, -1]])  # rows 0 and 2 share text 9; filling up is no text
    assert np.argwhere(duplicate_mask(groups)).tolist() == [[0, 2], [2, 0]]
    hard = duplicate_mask(pairs[:3], np.array([2, 7, 1]))  # text 2 is row 0's own positive; 1 is in rows 0 and 1
    assert np.argwhere(hard[:, 3:]).tolist() == [[0, 0], [0, 2], [1, 2]]
    assert not duplicate_mask(np.array([[1], [2]]), np.array([99, 0]))[:, 2:].any()


def test_all_masked_is_finite_and_zero() -> None:
    same = torch.from_numpy(duplicate_mask(np.array([[1], [1]]), np.array([1, 1])))
    loss = info_nce(ANCHORS, POSITIVES, POSITIVES, temperature=0.05, exclude=same)
    assert loss.item() == 0.0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_and_a_small_temperature_stay_finite(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    wide = (300 * torch.randn(32, 64)).to(dtype).requires_grad_()
    opposite = (-wide.detach()).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = info_nce(wide, opposite, temperature=0.01)
    loss.backward()
    assert loss.dtype == torch.float32
    exact = info_nce(wide.double(), opposite.double(), temperature=0.01)
    assert loss.item() == pytest.approx(exact.item(), rel=1e-4)  # not rounded to bfloat16 on the way
    assert wide.grad is not None
    assert torch.isfinite(wide.grad).all() and torch.isfinite(loss)


@pytest.mark.parametrize("negatives", [0, 10, 20])
def test_rows_in_blocks_are_the_rows_at_once(negatives: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(negatives)
    torch.manual_seed(0)
    vectors = [torch.randn(count, 8, requires_grad=True) for count in (10, 10, *([negatives] if negatives else []))]
    mask = duplicate_mask(random.integers(0, 30, (10, 2)), random.integers(0, 30, negatives) if negatives else None)
    settings = {"exclude": torch.from_numpy(mask), "symmetric": True,
                "hard_negative_weight": 0.7 if negatives else 0.0}
    found = []
    for size in (blocks.BLOCK, 32, 1):  # one block, three or ten of a row each, one row
        monkeypatch.setattr(blocks, "BLOCK", size)
        loss = info_nce(*vectors, temperature=0.1, **settings)
        found.append([loss.detach(), *torch.autograd.grad(loss, vectors)])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_masks_say_which_rows_share_a_text(seed: int) -> None:
    random = np.random.default_rng(seed)
    same = random.integers(-2, 25, (12, 3))
    same[:, 0] = np.abs(same[:, 0])
    negatives = random.integers(0, 25, 24)
    held = [{int(text) for text in row if text >= 0} for row in same]
    expected = [[i != j and bool(held[i] & held[j]) for j in range(12)] + [int(text) in held[i] for text in negatives]
                for i in range(12)]
    mask = duplicate_mask(same, negatives)
    assert mask.tolist() == expected and mask[:, :12].any() and not mask[:, :12].all()
