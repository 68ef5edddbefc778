"""Chunks of a batch, and gradient caching: the same vectors and gradients as in one piece."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from distilface.encoder import SentenceEncoder
from distilface.losses import duplicate_mask
from distilface.training.config import LossConfig
from distilface.training.forward import PooledEncoder, gather_columns
from distilface.training.objective import ContrastiveObjective
from tests.tiny import CORPUS, tiny_checkpoint

TEXTS = [f"{text} please" if index % 2 else text for index, text in enumerate(CORPUS)] + ["hello", "open"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[float, Path]:
    return {dropout: tiny_checkpoint(tmp_path_factory.mktemp("tiny") / str(dropout), layers=2, dropout=dropout)
            for dropout in (0.0, 0.1)}


def feed(encoder: SentenceEncoder) -> tuple[Tensor, Tensor]:
    padded = encoder.tokenizer.pad(encoder.tokenizer.encode_batch(TEXTS))
    return torch.from_numpy(padded["input_ids"]), torch.from_numpy(padded["attention_mask"])


def gradients(folder: Path, chunk_tokens: int | None, caching: bool, columns: int = 2, scored: bool = False,
              loss: LossConfig | None = None, **options: str) -> tuple[float, dict[str, Tensor], float]:
    """Loss, gradients, and the next random number, of the twelve texts as 6 pairs or 4 triplets."""
    torch.manual_seed(1)
    encoder = SentenceEncoder.load(folder, new_pooler=True, **options).train()
    projection = nn.Linear(encoder.pooler.dim, 4)
    torch.manual_seed(2)
    model = PooledEncoder(encoder, projection, chunk_tokens, caching)
    count = len(TEXTS) // columns
    batch: dict[str, Tensor] = {"scores": torch.arange(count).float()}
    if not scored:
        same = np.arange(2 * count).reshape(2, count).T
        same[1, 0] = same[0, 0]  # rows 0 and 1 are no negatives of each other
        negatives = np.arange(50, 50 + count) if columns == 3 else None
        batch = {"exclude": torch.from_numpy(duplicate_mask(same, negatives))}
    value = ContrastiveObjective(loss or LossConfig())(gather_columns(model(*feed(encoder)), [count], count), batch)
    value.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return value.item(), found, torch.rand(1).item()


@pytest.mark.parametrize(("columns", "scored", "loss"), [
    (2, False, LossConfig()),
    (3, False, LossConfig(hard_negative_weight=0.3, symmetric=True)),
    (3, False, LossConfig(matryoshka=(8, 32), matryoshka_weights=(0.5, 1))),
    (2, True, LossConfig()),
    (2, True, LossConfig(scored="angle", matryoshka=(16,))),
])
def test_cached_gradients_are_those_of_one_piece(folders: dict[float, Path], columns: int, scored: bool,
                                                 loss: LossConfig) -> None:
    whole, expected, _ = gradients(folders[0.0], None, False, columns, scored, loss)
    for caching in (False, True):
        value, found, _ = gradients(folders[0.0], 40, caching, columns, scored, loss)
        assert value == pytest.approx(whole, rel=1e-5)
        assert found.keys() == expected.keys() and len(found) > 30
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=5e-6)  # sums in another order


@pytest.mark.parametrize("options", [{}, {"head": "train_only", "pooling": "layer_attention"}])  # with random slopes
def test_the_second_pass_has_the_dropout_masks_of_the_first(folders: dict[float, Path],
                                                            options: dict[str, str]) -> None:
    plain = gradients(folders[0.1], 40, False, **options)
    cached = gradients(folders[0.1], 40, True, **options)
    assert cached[0] == plain[0] and cached[2] == plain[2]  # the masks of the next step are the same as well
    for name, gradient in plain[1].items():
        torch.testing.assert_close(cached[1][name], gradient, rtol=1e-5, atol=1e-7)
    other = gradients(folders[0.1], 80, True, **options)
    assert other[0] != plain[0]  # the masks do count: other chunks draw others


def test_chunks_are_filled_to_the_budget_with_texts_of_like_length(folders: dict[float, Path],
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = SentenceEncoder.load(folders[0.0])
    ids, mask = feed(encoder)
    shapes = []
    plain = SentenceEncoder.pooled

    def spy(self: SentenceEncoder, ids: Tensor, mask: Tensor) -> Tensor:
        shapes.append((tuple(ids.shape), int(mask.sum())))
        return plain(self, ids, mask)

    monkeypatch.setattr(SentenceEncoder, "pooled", spy)
    vectors = PooledEncoder(encoder, chunk_tokens=32)(ids, mask)
    assert sum(rows for (rows, _), _ in shapes) == len(TEXTS) and len(shapes) > 2
    assert all(rows * width <= 32 or rows == 1 for (rows, width), _ in shapes)
    padded = [sum(rows * width for (rows, width), _ in shapes), mask.numel()]
    assert padded[0] - mask.sum() < 0.5 * (padded[1] - mask.sum())
    torch.testing.assert_close(vectors, plain(encoder, ids, mask), rtol=1e-4, atol=1e-5)


def test_caching_keeps_the_activations_of_one_chunk(folders: dict[float, Path]) -> None:
    """What autograd holds between the passes, counted tensor by tensor."""
    encoder = SentenceEncoder.load(folders[0.1]).train()
    held = {}
    for caching in (False, True):
        kept: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, kept=kept: (kept.append(t.numel()), t)[1], lambda t: t):
            PooledEncoder(encoder, chunk_tokens=40, caching=caching)(*feed(encoder))
        held[caching] = sum(kept)
    assert held[True] < 0.05 * held[False]
