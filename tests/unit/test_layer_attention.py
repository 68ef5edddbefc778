"""Layer-wise attention: its arithmetic against a loop written from the paper's description, its files, its graph."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from distilface.encoder import SentenceEncoder
from distilface.errors import UserError
from distilface.pooling import LayerAttention, build_pooler
from tests.tiny import CORPUS

Array = NDArray[np.float64]
MASK = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]])
SLOPE = (1 / 8 + 1 / 3) / 2  # of RReLU at inference


def _states(layers: int = 3, width: int = 4) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(2, 4, width, generator=generator) for _ in range(layers + 1))


def _pooler(**options: str) -> LayerAttention:
    """With weights large enough for every term to count."""
    torch.manual_seed(1)
    pooler = LayerAttention(4, **options).eval()
    with torch.no_grad():
        for parameter in pooler.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return pooler


def _by_loop(pooler: LayerAttention, states: tuple[torch.Tensor, ...], row: int) -> Array:
    """One text, one asking layer at a time, in float64."""
    options = pooler.options
    weight = {name: value.double().numpy() for name, value in pooler.state_dict().items()}
    count = int(MASK[row].sum())
    tokens = [state[row, :count].double().numpy() for state in states]

    def mapped(name: str, vector: Array) -> Array:
        value = weight[f"{name}.weight"] @ vector
        negative = {"rrelu": SLOPE * value, "relu": 0 * value, "none": value}[options["activation"]]
        return np.where(value > 0, value, negative)

    keys = [mapped("key", state.mean(axis=0)) for state in tokens]
    values = [mapped("value", state.mean(axis=0)) for state in tokens]
    answers = []
    for state in tokens:
        query = mapped("query", state[0])
        divisor = len(states) if options["scale"] == "layers" else math.sqrt(len(query))
        scores = np.array([key @ query for key in keys]) / divisor
        shares = np.exp(scores) / np.exp(scores).sum()
        answers.append(sum(share * value for share, value in zip(shares, values, strict=True)))
    joined = np.concatenate([tokens[-1][0], np.mean(answers, axis=0)])
    if options["final"] == "none":
        return joined
    prefix = "final.0" if options["final"] == "tanh" else "final"
    linear = weight[f"{prefix}.weight"] @ joined + weight[f"{prefix}.bias"]
    return np.tanh(linear) if options["final"] == "tanh" else linear


@pytest.mark.parametrize("options", [
    {}, {"scale": "width"}, {"activation": "relu"}, {"activation": "none"}, {"final": "linear"}, {"final": "none"},
    {"scale": "width", "activation": "none", "final": "linear"},
])
def test_equals_a_loop_over_asking_layers(options: dict[str, str]) -> None:
    pooler, states = _pooler(**options), _states()
    tokens, vectors = pooler(states, MASK)
    assert tokens is states[-1] and vectors.shape == (2, pooler.dim)
    for row in range(2):
        np.testing.assert_allclose(vectors[row].detach().numpy(), _by_loop(pooler, states, row), rtol=2e-5, atol=1e-6)


def test_every_layer_and_every_weight_takes_part() -> None:
    states = tuple(state.requires_grad_() for state in _states())
    pooler = _pooler()
    pooler(states, MASK)[1].sum().backward()
    for state in states:
        assert state.grad is not None and (state.grad[0, :2] != 0).any() and (state.grad[0, 2:] == 0).all()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in pooler.parameters())


def test_slopes_are_random_in_training_only() -> None:
    pooler, states = _pooler(), _states()
    assert torch.equal(pooler(states, MASK)[1], pooler(states, MASK)[1])
    pooler.train()
    assert not torch.allclose(pooler(states, MASK)[1], pooler(states, MASK)[1])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.isfinite(pooler(states, MASK)[1]).all()


@pytest.mark.parametrize(("options", "said"), [
    ({"scale": "heads"}, "'scale' .* got 'heads'; allowed: layers, width"),
    ({"activaton": "relu"}, "did you mean 'activation'"),
])
def test_unknown_options(options: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        build_pooler("layer_attention", 2, 4, options)
    with pytest.raises(UserError, match="'cls' has no options"):
        build_pooler("cls", 2, 4, options)


def _saved(encoder: SentenceEncoder, folder: Path) -> Path:
    folder.mkdir()
    encoder.save(folder)
    return folder


@pytest.mark.parametrize(("options", "head"), [
    ({}, "none"), ({"final": "none", "scale": "width"}, "none"), ({"activation": "relu"}, "kept"),
])
def test_a_saved_checkpoint_is_read_back_whole(checkpoint: Path, tmp_path: Path, options: dict[str, str],
                                               head: Any) -> None:
    encoder = SentenceEncoder.load(checkpoint, "layer_attention", head=head, pooling_options=options, new_pooler=True)
    saved = _saved(encoder, tmp_path / "saved")
    again = SentenceEncoder.load(saved)
    assert again.pooling == "layer_attention" and again.pooler.options == encoder.pooler.options
    assert again.dim == (64 if options.get("final") == "none" else 32)
    assert np.array_equal(again.encode(CORPUS), encoder.encode(CORPUS))
    assert np.array_equal(SentenceEncoder.load(saved, new_pooler=True).encode(CORPUS), encoder.encode(CORPUS))
    assert not [file.name for file in saved.iterdir() if file.suffix in (".bin", ".pt", ".pkl")]
    assert SentenceEncoder.load(saved, pooling="cls", head="none").dim == 32


def test_untrained_weights_are_for_training_only(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train it first: distilface train --model .* --pooling layer_attention"):
        SentenceEncoder.load(checkpoint, "layer_attention")
    saved = _saved(SentenceEncoder.load(checkpoint, "layer_attention", new_pooler=True), tmp_path / "saved")
    with pytest.raises(UserError, match="do not fit"):
        SentenceEncoder.load(saved, pooling_options={"final": "none"})
    (saved / "pooling.safetensors").write_bytes(b"{}")
    with pytest.raises(UserError, match="damaged"):
        SentenceEncoder.load(saved)
    (saved / "pooling.safetensors").unlink()
    with pytest.raises(UserError, match="does not hold"):  # a copy that lost a file must not start over in silence
        SentenceEncoder.load(saved, new_pooler=True)


@pytest.mark.parametrize("head", ["none", "kept"])
def test_sentence_transformers_fails_instead_of_pooling_otherwise(checkpoint: Path, tmp_path: Path,
                                                                  head: Any) -> None:
    library = pytest.importorskip("sentence_transformers")
    encoder = SentenceEncoder.load(checkpoint, "layer_attention", head=head, new_pooler=True)
    saved = _saved(encoder, tmp_path / "saved")
    types = [module["type"].rsplit(".")[-1] for module in json.loads((saved / "modules.json").read_text())]
    assert types == ["Transformer", *(["Dense"] if head == "kept" else []), "Normalize"]
    with pytest.raises((KeyError, ValueError, RuntimeError)):
        library.SentenceTransformer(str(saved), device="cpu").encode(CORPUS[:2])
