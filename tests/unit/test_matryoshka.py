"""Matryoshka dimensions in the loss, and vectors cut to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distilface.config import load_config
from distilface.encoder import SentenceEncoder
from distilface.errors import UserError
from distilface.losses import at_dimensions, cosent, info_nce
from distilface.training import TrainConfig, train
from distilface.training.config import LossConfig
from distilface.training.objective import ContrastiveObjective
from tests.tiny import CORPUS


def test_a_weighted_sum_over_cut_vectors() -> None:
    columns = [torch.tensor([[3.0, 4.0, 12.0]])]

    def length(parts: Any) -> torch.Tensor:
        return parts[0].norm()  # 13 of three, 5 of two, 3 of one

    assert at_dimensions(length, columns, []).item() == 13
    assert at_dimensions(length, columns, [2, 1]).item() == 8
    assert at_dimensions(length, columns, [3, 2, 1], [1.0, 0.5, 2.0]).item() == 13 + 2.5 + 6


def test_the_objective_takes_every_dimension() -> None:
    torch.manual_seed(0)
    anchors, positives = torch.randn(2, 6, 8)
    exclude = torch.zeros(6, 6, dtype=torch.bool)
    objective = ContrastiveObjective(LossConfig(matryoshka=(8, 2), matryoshka_weights=(1.0, 0.25), temperature=0.1))
    by_hand = (info_nce(anchors, positives, temperature=0.1)
               + 0.25 * info_nce(anchors[:, :2], positives[:, :2], temperature=0.1))
    assert objective([anchors, positives], {"exclude": exclude}).item() == pytest.approx(by_hand.item())
    scores = torch.arange(6.0)
    by_hand = cosent(anchors, positives, scores) + 0.25 * cosent(anchors[:, :2], positives[:, :2], scores)
    assert objective([anchors, positives], {"scores": scores}).item() == pytest.approx(by_hand.item())


def test_equals_sentence_transformers() -> None:
    losses = pytest.importorskip("sentence_transformers.losses")
    torch.manual_seed(0)
    vectors = list(torch.randn(2, 6, 16))
    plain = losses.MultipleNegativesRankingLoss(torch.nn.Identity(), scale=20.0)
    theirs = sum(weight * float(plain.compute_loss_from_embeddings([vector[:, :dim] for vector in vectors], None))
                 for dim, weight in ((16, 1.0), (8, 0.5)))
    objective = ContrastiveObjective(LossConfig(matryoshka=(16, 8), matryoshka_weights=(1.0, 0.5)))
    ours = objective(vectors, {"exclude": torch.zeros(6, 6, dtype=torch.bool)})
    assert ours.item() == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize(("sets", "named"), [
    (["loss.matryoshka=[8, 8]"], "matryoshka names a number of dimensions twice"),
    (["loss.matryoshka=[8, 0]"], "matryoshka"),
    (["loss.matryoshka=[8, 4]", "loss.matryoshka_weights=[1]"], "matryoshka_weights has 1 entries, matryoshka 2"),
    (["loss.matryoshka_weights=[1]"], "matryoshka_weights"),
    (["loss.scored=pearson"], "loss.scored"),
    (["data.kind=scored", "data.columns=[a, b]"], "takes 3"),
])
def test_contradictions_name_the_key(sets: list[str], named: str) -> None:
    with pytest.raises(UserError, match=named):
        load_config(TrainConfig, sets=["model.name=m", "data.path=text.txt", *sets])


def test_cut_vectors_are_the_head_of_the_whole_ones(checkpoint: Path, tmp_path: Path) -> None:
    whole = SentenceEncoder.load(checkpoint).encode(CORPUS)
    encoder = SentenceEncoder.load(checkpoint, truncate_dim=5)
    expected = whole[:, :5] / np.linalg.norm(whole[:, :5], axis=1, keepdims=True)
    assert encoder.dim == 5
    np.testing.assert_allclose(encoder.encode(CORPUS), expected, atol=1e-6)
    (tmp_path / "saved").mkdir()
    encoder.save(tmp_path / "saved")
    again = SentenceEncoder.load(tmp_path / "saved")
    assert again.truncate_dim == 5 and np.array_equal(again.encode(CORPUS), encoder.encode(CORPUS))
    assert SentenceEncoder.load(tmp_path / "saved", truncate_dim=32).encode(CORPUS).shape[1] == 32
    types = [module["type"] for module in json.loads((tmp_path / "saved" / "modules.json").read_text())]
    assert not any(kind.endswith("Pooling") for kind in types)  # who reads them would get uncut vectors
    for wrong in (0, 33):
        with pytest.raises(UserError, match=f"truncate_dim {wrong} does not fit vectors of 32"):
            SentenceEncoder.load(checkpoint, truncate_dim=wrong)


def _train(checkpoint: Path, tmp_path: Path, *sets: str) -> Any:
    rows = [f"{CORPUS[i % 10]}\t{CORPUS[(i * i) % 10]} now\t{(i * 7) % 5}" for i in range(24)]
    (tmp_path / "scored.tsv").write_text("\n".join(rows))
    return train(load_config(TrainConfig, sets=[
        f"model.name={checkpoint}", f"data.path={tmp_path / 'scored.tsv'}", "data.kind=scored", "train.batch_size=8",
        "train.max_steps=30", "train.log_every=1", "train.learning_rate=2e-3", "train.tensorboard=false", *sets]),
        tmp_path / "out", progress=False)


@pytest.mark.parametrize("sets", [
    ["loss.scored=cosent"], ["loss.scored=angle", "loss.matryoshka=[32, 8]"], ["model.dropout=0"],
])
def test_scored_pairs_are_learned(checkpoint: Path, tmp_path: Path, sets: list[str]) -> None:
    losses = [loss for _, loss in _train(checkpoint, tmp_path, *sets).losses]
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])


def test_dimensions_that_do_not_fit_the_encoder(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"loss\.matryoshka names 64 dimensions; .* have 32"):
        _train(checkpoint, tmp_path, "loss.matryoshka=[64, 8]")
    with pytest.raises(UserError, match="pairs up dimensions, but vectors of 7"):
        _train(checkpoint, tmp_path, "loss.matryoshka=[8, 7]", "loss.scored=angle")


@pytest.mark.parametrize("architecture", ["distilbert", "bert", "mpnet"])
def test_dropout_can_be_set(tmp_path: Path, architecture: str) -> None:
    from distilface.training.config import ModelConfig
    from distilface.training.run import load_encoder
    from tests.tiny import tiny_checkpoint

    for written, set_to in ((0.1, 0.0), (0.0, 0.3)):
        folder = tiny_checkpoint(tmp_path / str(written), architecture, layers=2, dropout=written)
        encoder = load_encoder(ModelConfig(name=str(folder), dropout=set_to)).train()
        feed = encoder.tokenizer.pad(encoder.tokenizer.encode_batch(CORPUS))
        inputs = [torch.from_numpy(feed[name]) for name in ("input_ids", "attention_mask")]
        same = torch.equal(encoder.pooled(*inputs), encoder.pooled(*inputs))
        assert same is (set_to == 0)
