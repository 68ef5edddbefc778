"""Attention heads: which go, that they leave nothing behind, that they stay gone, and the graph without them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from distilface.encoder import SentenceEncoder
from distilface.errors import UserError
from distilface.shrinking import shrink
from distilface.shrinking.activations import watch
from distilface.shrinking.architecture import FAMILIES, layers_of
from distilface.shrinking.heads import prune_heads, without_dead_heads
from tests.tiny import ARCHITECTURES, CORPUS, tiny_checkpoint

HEADS, WIDTH = 4, 8


def _load(folder: Path, architecture: str = "distilbert") -> SentenceEncoder:
    return SentenceEncoder.load(tiny_checkpoint(folder / architecture, architecture, layers=2))


def _alive(encoder: SentenceEncoder) -> list[list[int]]:
    """Heads with a column of the output projection that is not zero, layer by layer."""
    family = FAMILIES[encoder.backbone.config.model_type]
    found = []
    for layer in layers_of(encoder.backbone, family):
        weight = layer.get_submodule(family.attention_out).weight.reshape(-1, HEADS, WIDTH)  # type: ignore[operator]
        found.append([head for head in range(HEADS) if bool((weight[:, head] != 0).any())])
    return found


def test_the_head_that_adds_least_goes(tmp_path: Path) -> None:
    encoder = _load(tmp_path)
    for layer, weakest in zip(encoder.backbone.transformer.layer, (1, 3), strict=True):
        with torch.no_grad():
            layer.attention.out_lin.weight.view(32, HEADS, WIDTH)[:, weakest] *= 1e-3
    prune_heads(encoder, 3)
    assert _alive(encoder) == [[0, 2, 3], [0, 1, 2]]


def test_a_head_that_is_constant_costs_nothing(tmp_path: Path) -> None:
    """Its values do not depend on the text: by activation it goes first, however large; the bias takes its place."""
    encoder = _load(tmp_path)
    attention = encoder.backbone.transformer.layer[0].attention
    with torch.no_grad():
        attention.v_lin.weight[2 * WIDTH : 3 * WIDTH] = 0
        attention.v_lin.bias[2 * WIDTH : 3 * WIDTH] = 3.0
    last = encoder.backbone.transformer.layer[1].attention
    with torch.no_grad():
        last.v_lin.weight[:WIDTH] = 0
        last.v_lin.bias[:WIDTH] = -2.0
    before = encoder.encode(CORPUS)
    prune_heads(encoder, 3, CORPUS)
    assert _alive(encoder) == [[0, 1, 3], [1, 2, 3]]
    np.testing.assert_allclose(encoder.encode(CORPUS), before, atol=1e-6, rtol=0)


def test_the_score_is_the_error_of_freezing(tmp_path: Path) -> None:
    """Worked out from the outputs themselves: the variance, summed over channels, of what each head adds."""
    encoder = _load(tmp_path)
    contexts: dict[int, list[torch.Tensor]] = {0: [], 1: []}
    watch(encoder, "attention.out_lin", CORPUS, lambda index, states: contexts[index].append(states.double()))
    expected = []
    for index, layer in enumerate(encoder.backbone.transformer.layer):
        states = torch.cat(contexts[index]).view(-1, HEADS, WIDTH)
        columns = layer.attention.out_lin.weight.double().view(32, HEADS, WIDTH)
        added = torch.einsum("thi,ohi->tho", states, columns)
        expected.append(sorted(added.var(dim=0, unbiased=False).sum(dim=1).topk(2).indices.tolist()))
    prune_heads(encoder, 2, CORPUS)
    assert _alive(encoder) == expected


@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name != "mpnet"])
def test_a_checkpoint_with_dead_heads_loads_and_is_the_same_without_them(tmp_path: Path, architecture: str) -> None:
    model = tiny_checkpoint(tmp_path / "model", architecture, layers=2)
    result = shrink(model, tmp_path / "small", heads=1)
    full = 2 * 4 * (32 * 32) + 2 * 3 * 32  # query, key, value and output of two layers; the output's bias stays whole
    assert result.parameters_before - result.parameters_after == full * 3 // 4
    transformers.AutoModel.from_pretrained(tmp_path / "small")
    encoder = SentenceEncoder.load(tmp_path / "small")
    narrow = without_dead_heads(encoder)
    family = FAMILIES[architecture]
    for layer in layers_of(narrow.backbone, family):
        shapes = [tuple(layer.get_submodule(name).weight.shape)  # type: ignore[union-attr, arg-type]
                  for name in (*family.attention, family.attention_out)]
        assert shapes == [(8, 32)] * 3 + [(32, 8)]
    np.testing.assert_allclose(narrow.encode(CORPUS), encoder.encode(CORPUS), atol=1e-6, rtol=0)


def test_an_encoder_whose_heads_all_live_is_left_alone(tmp_path: Path) -> None:
    encoder = _load(tmp_path)
    assert without_dead_heads(encoder) is encoder


def test_training_does_not_wake_the_dead(tmp_path: Path) -> None:
    encoder = _load(tmp_path).train()
    prune_heads(encoder, 2)
    alive = _alive(encoder)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-2, weight_decay=0.1)
    feed = {name: torch.from_numpy(array)
            for name, array in encoder.tokenizer.pad(encoder.tokenizer.encode_batch(CORPUS)).items()}
    target = torch.randn(len(CORPUS), 32, generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        optimizer.zero_grad()
        (encoder(**feed)[1] - target).square().mean().backward()
        optimizer.step()
    assert _alive(encoder) == alive
    attention = encoder.backbone.transformer.layer[0].attention
    gone = next(head for head in range(HEADS) if head not in alive[0])
    rows = slice(gone * WIDTH, (gone + 1) * WIDTH)
    for linear in (attention.q_lin, attention.k_lin, attention.v_lin):
        assert not linear.weight[rows].any() and not linear.bias[rows].any()


def test_relative_positions_are_tied_to_heads(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="heads=2 can't be done for 'mpnet'"):
        prune_heads(_load(tmp_path, "mpnet"), 2)
