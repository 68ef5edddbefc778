"""Every pooling on a tensor small enough to work out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from distilface.errors import UserError
from distilface.pooling import POOLINGS, build_pooler, canonical, masked_max, masked_mean

LAYERS = 4
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]])

# State of layer l, token t: [10 l^2 + t, t - l^2]; l^2 is 0, 1, 4, 9, 16. Row 0 has tokens 0 and 1, row 1 has 0, 1, 2.
# So a mean over tokens is [10 q + 0.5, 0.5 - q] and [10 q + 1, 1 - q], a maximum [10 q + 1, 1 - q] and
# [10 q + 2, 2 - q], with q the mean of l^2 over the layers that are read.
MEAN_SQUARE = {"last": 16.0, "second_last": 9.0, "first_last": 8.5, "last2": 12.5, "last4": 7.5, "all": 6.0}


def _states() -> tuple[Tensor, ...]:
    token = torch.arange(3.0)
    return tuple(torch.stack([10 * layer**2 + token, token - layer**2], dim=-1).expand(2, 3, 2)
                 for layer in range(LAYERS + 1))


def _pool(name: str, states: tuple[Tensor, ...], mask: Tensor = MASK) -> Tensor:
    torch.manual_seed(1)
    return build_pooler(name, len(states) - 1, states[0].shape[-1]).eval()(states, mask)[1]


@pytest.mark.parametrize(("layers", "q"), MEAN_SQUARE.items())
def test_mean_over_layers_and_unmasked_tokens(layers: str, q: float) -> None:
    assert _pool(f"mean_{layers}", _states()).tolist() == [[10 * q + 0.5, 0.5 - q], [10 * q + 1, 1 - q]]


@pytest.mark.parametrize(("layers", "q"), MEAN_SQUARE.items())
def test_max_over_unmasked_tokens_of_the_layer_mean(layers: str, q: float) -> None:
    assert _pool(f"max_{layers}", _states()).tolist() == [[10 * q + 1, 1 - q], [10 * q + 2, 2 - q]]


def test_cls_is_the_first_token_of_the_last_layer() -> None:
    assert _pool("cls", _states()).tolist() == [[160.0, -16.0], [160.0, -16.0]]


def test_concat_last4_puts_the_last_layer_first() -> None:
    assert _pool("concat_last4", _states()).tolist() == [
        [160.5, -15.5, 90.5, -8.5, 40.5, -3.5, 10.5, -0.5],
        [161.0, -15.0, 91.0, -8.0, 41.0, -3.0, 11.0, 0.0],
    ]


def test_layers_are_averaged_before_the_maximum_over_tokens() -> None:
    last, second_last = torch.tensor([[[0.0], [4.0]]]), torch.tensor([[[4.0], [0.0]]])
    assert _pool("max_last2", (last, second_last, last), torch.ones(1, 2)).tolist() == [[2.0]]


def test_a_maximum_of_negative_states_is_not_the_padding() -> None:
    states = torch.tensor([[[-3.0], [-5.0], [0.0]]])
    assert masked_max(states, torch.tensor([[1, 1, 0]])).tolist() == [[-3.0]]


@pytest.mark.parametrize("name", POOLINGS)
def test_padding_changes_nothing(name: str) -> None:
    torch.manual_seed(0)
    states = tuple(torch.randn(2, 5, 3) for _ in range(LAYERS + 1))
    garbage = tuple(torch.cat([state, 1e4 * torch.randn(2, 7, 3)], dim=1) for state in states)
    mask = torch.ones(2, 5, dtype=torch.int64)
    padded = torch.cat([mask, torch.zeros(2, 7, dtype=torch.int64)], dim=1)
    torch.testing.assert_close(_pool(name, garbage, padded), _pool(name, states, mask), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", [name for name in POOLINGS if name.startswith(("mean", "concat"))])
def test_a_consumers_masked_mean_over_the_token_states_is_the_vector(name: str) -> None:
    torch.manual_seed(0)
    states = tuple(torch.randn(2, 3, 2) for _ in range(LAYERS + 1))
    pooler = build_pooler(name, LAYERS, 2)
    tokens, vector = pooler(states, MASK)
    by_hand = torch.stack([tokens[0, :2].mean(dim=0), tokens[1].mean(dim=0)])
    torch.testing.assert_close(vector, by_hand)
    assert vector.shape == (2, pooler.dim)


def test_a_row_without_tokens_is_finite() -> None:
    states, nothing = torch.randn(1, 2, 3), torch.zeros(1, 2, dtype=torch.int64)
    assert masked_mean(states, nothing).tolist() == [[0.0, 0.0, 0.0]]
    assert torch.isfinite(masked_max(states, nothing)).all()


def test_half_precision_stays_finite() -> None:
    states = torch.full((1, 3, 2), -100.0, dtype=torch.bfloat16)
    assert masked_max(states, torch.tensor([[1, 0, 0]])).tolist() == [[-100.0, -100.0]]
    assert masked_mean(states, torch.tensor([[1, 1, 0]])).dtype == torch.bfloat16


@pytest.mark.parametrize(("alias", "name"), [
    ("mean", "mean_last"), ("max", "max_last"), ("last", "mean_last"), ("last4", "mean_last4"), ("all", "mean_all"),
    ("first_last", "mean_first_last"), ("second_last", "mean_second_last"), ("last2", "mean_last2"), ("cls", "cls"),
    ("concat_last4", "concat_last4"),
])
def test_aliases(alias: str, name: str) -> None:
    assert canonical(alias) == name


def test_the_names_are_those_of_the_paper() -> None:
    layers = ("last", "second_last", "first_last", "last2", "last4", "all")
    named = {f"{kind}_{name}" for kind in ("mean", "max") for name in layers}
    assert set(POOLINGS) == {"cls", "concat_last4", "layer_attention"} | named


def test_an_unknown_pooling_names_the_nearest_and_the_allowed() -> None:
    with pytest.raises(UserError) as caught:
        canonical("mean_last3")
    text = str(caught.value)
    assert "'mean_last3'" in text and "did you mean" in text and "concat_last4" in text and "\n" not in text


@pytest.mark.parametrize("name", ["mean_last4", "max_last4", "concat_last4"])
def test_too_few_layers(name: str) -> None:
    with pytest.raises(UserError, match="2 and the embedding output"):
        build_pooler(name, 2, 2)


def test_one_layer_is_enough_for_first_and_last() -> None:
    states = _states()[:2]
    assert torch.equal(_pool("mean_first_last", states), _pool("mean_last", states))
