"""Losses for scored pairs against values worked out by hand and against sentence-transformers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from distilface.losses import angle, blocks, cosent

# Cosines of the three pairs: 1, 0.6, 0. Lengths other than 1 must not matter.
FIRST = torch.tensor([[2.0, 0.0], [0.6, 0.8], [0.0, 0.5]])
SECOND = torch.tensor([[3.0, 0.0], [5.0, 0.0], [1.0, 0.0]])


def test_cosent_by_hand() -> None:
    # Scores 5 > 2 > 1 agree with the cosines: three ordered pairs.
    right = math.log(1 + math.exp(0.6 - 1) + math.exp(0 - 1) + math.exp(0 - 0.6))
    found = cosent(FIRST, SECOND, torch.tensor([5.0, 2.0, 1.0]), temperature=1.0)
    assert found.item() == pytest.approx(right, abs=1e-6)
    # The last pair is judged the most similar, the others tie and are not compared.
    wrong = math.log(1 + math.exp((1 - 0) / 0.5) + math.exp((0.6 - 0) / 0.5))
    found = cosent(FIRST, SECOND, torch.tensor([1.0, 1.0, 4.0]), temperature=0.5)
    assert found.item() == pytest.approx(wrong, abs=1e-6)


def test_angle_by_complex_numbers() -> None:
    torch.manual_seed(0)
    first, second = torch.randn(2, 5, 6)
    scores = torch.tensor([0.1, 0.9, 0.5, 0.5, 0.3])
    values = [vectors.double().numpy() for vectors in (first, second)]
    one, two = (vectors[:, :3] + 1j * vectors[:, 3:] for vectors in values)
    z = (one * two.conj()).sum(axis=1) / np.linalg.norm(one, axis=1) / np.linalg.norm(two, axis=1)
    similar = np.abs(z.real + z.imag)
    total = sum(math.exp((similar[j] - similar[i]) / 0.05)
                for i in range(5) for j in range(5) if scores[i] > scores[j])
    assert angle(first, second, scores, temperature=0.05).item() == pytest.approx(math.log(1 + total), rel=1e-5)


def test_angle_by_hand() -> None:
    # (1, i) style vectors: x = 1, y = 1 gives z = 1; x = i, y = 1 gives z = i; x = e^{i pi/4}: |Re + Im| = sqrt 2.
    first = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    second = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    found = angle(first, second, torch.tensor([1.0, 1.0, 0.0]), temperature=1.0)
    assert found.item() == pytest.approx(math.log(1 + 2 * math.exp(math.sqrt(2) - 1)), abs=1e-6)


@pytest.mark.parametrize("name", ["CoSENTLoss", "AnglELoss"])
@pytest.mark.parametrize("width", [4, 16])
def test_equals_sentence_transformers(name: str, width: int) -> None:
    losses = pytest.importorskip("sentence_transformers.losses")
    torch.manual_seed(width)
    vectors = [torch.randn(12, width) for _ in range(2)]
    labels = torch.randint(0, 5, (12,)).float()
    theirs = getattr(losses, name)(torch.nn.Identity(), scale=20.0).compute_loss_from_embeddings(vectors, labels)
    ours = (cosent if name == "CoSENTLoss" else angle)(*vectors, labels, temperature=0.05)
    assert ours.item() == pytest.approx(float(theirs), rel=1e-5)


@pytest.mark.parametrize("loss", [cosent, angle])
def test_equal_scores_leave_nothing_to_learn(loss: type[cosent]) -> None:
    vectors = torch.randn(4, 6, requires_grad=True)
    value = loss(vectors, torch.randn(4, 6), torch.ones(4))
    value.backward()
    assert value.item() == 0 and vectors.grad is not None and not vectors.grad.any()


@pytest.mark.parametrize("loss", [cosent, angle])
def test_a_small_temperature_stays_finite_under_autocast(loss: type[cosent]) -> None:
    torch.manual_seed(0)
    first = (300 * torch.randn(16, 8)).to(torch.bfloat16).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(first, -first.detach(), torch.arange(16.0), temperature=0.001)
    value.backward()
    assert value.dtype == torch.float32 and torch.isfinite(value)
    assert first.grad is not None and torch.isfinite(first.grad).all()


@pytest.mark.parametrize("loss", [cosent, angle])
def test_rows_in_blocks_are_the_rows_at_once(loss: type[cosent], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    vectors = [torch.randn(9, 6, requires_grad=True) for _ in range(2)]
    scores = torch.tensor([1.0, 3, 3, 2, 1, 5, 4, 4, 1])  # the lowest rows are above no other: an empty block each
    found = []
    for size in (blocks.BLOCK, 27, 1):
        monkeypatch.setattr(blocks, "BLOCK", size)
        value = loss(*vectors, scores)
        found.append([value.detach(), *torch.autograd.grad(value, vectors)])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-5, atol=1e-6)


def test_an_odd_width_is_refused() -> None:
    with pytest.raises(ValueError, match="got 3, an odd"):
        angle(torch.randn(2, 3), torch.randn(2, 3), torch.tensor([0.0, 1.0]))
