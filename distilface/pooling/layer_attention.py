"""Layer-wise attention pooling (Oh et al., "Don't Judge a Language Model by Its Last Layer", COLING 2022)."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from distilface.errors import UserError
from distilface.pooling.tokens import masked_mean

OPTIONS = {
    "scale": ("layers", "width"),
    "activation": ("rrelu", "relu", "none"),
    "final": ("tanh", "linear", "none"),
}
"""The values of each option, the default (the authors' code) first."""


class _RReLU(nn.RReLU):
    """RReLU whose inference form is written as the leaky ReLU it is: the ONNX exporter knows no RReLU."""

    def forward(self, input: Tensor) -> Tensor:
        if self.training:
            return super().forward(input)
        return functional.leaky_relu(input, (self.lower + self.upper) / 2)


_ACTIVATIONS = {"rrelu": _RReLU, "relu": nn.ReLU, "none": nn.Identity}


class _Map(nn.Module):
    """``act(W x)`` without a bias, on the rows of ``[b, n, h]``; returned as columns, ``[b, h, n]``.

    The weight stands on the left of the product. The exporter's rewrites and quantization look for ``tokens @ weight``,
    and these products have one row for each layer, not for each token: so they stay out of both, and float in INT8
    graphs, as do scores, softmax and the weighing of values, which are products of activations.

    Only the latter must. Simulated static INT8 of the three maps left the vectors of an all-MiniLM-L6-v2 with this
    pooling at cosine 0.99998 with scores of standard deviation 2.6, and at 0.9996 with a softmax that picks one layer.
    It would take ``9 h^2`` bytes off a bundle and next to no time (2 % of the multiply-adds of 14 tokens in 6 layers).
    """

    def __init__(self, width: int, activation: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, width))
        nn.init.normal_(self.weight, std=0.02)
        self.activation = _ACTIVATIONS[activation]()

    def forward(self, rows: Tensor) -> Tensor:
        activated: Tensor = self.activation(self.weight @ rows.transpose(1, 2))
        return activated


class LayerAttention(nn.Module):
    """Attention over layers: every layer's first token asks, every layer's token mean answers.

    With ``c_l`` the first token and ``m_l`` the masked token mean of layer ``l``, for all ``L + 1`` layers::

        q_l = act(W_q c_l)    k_l = act(W_k m_l)    v_l = act(W_v m_l)
        p = mean over l of  sum over j of  softmax_j(q_l . k_j / (L + 1)) v_j
        vector = tanh(W [c_L ; p] + b)

    Defaults are those of the authors' code, which divides by the number of layers; the paper's text by ``sqrt(h)``. The
    last map is part of the model at inference, too. New weights are drawn with standard deviation 0.02, as there.

    Args:
        hidden_size: ``h``.
        scale: ``"layers"`` or ``"width"``: scores are divided by ``L + 1`` or by ``sqrt(h)``.
        activation: ``"rrelu"`` (leaky; slope drawn from 1/8 to 1/3 in training, its mean at inference), ``"relu"`` or
            ``"none"``.
        final: ``"tanh"``, ``"linear"`` (no tanh) or ``"none"`` (the vector is ``[c_L ; p]``, twice as wide).
    """

    def __init__(self, hidden_size: int, scale: str = "layers", activation: str = "rrelu", final: str = "tanh") -> None:
        super().__init__()
        self.options = {"scale": scale, "activation": activation, "final": final}
        self.checked(self.options)
        self.query = _Map(hidden_size, activation)
        self.key = _Map(hidden_size, activation)
        self.value = _Map(hidden_size, activation)
        self.final: nn.Module = nn.Identity()
        if final != "none":
            linear = nn.Linear(2 * hidden_size, hidden_size)
            nn.init.normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)
            self.final = nn.Sequential(linear, nn.Tanh()) if final == "tanh" else linear
        self.dim = hidden_size * (2 if final == "none" else 1)
        self.states_dim = hidden_size

    @staticmethod
    def checked(options: Mapping[str, str]) -> dict[str, str]:
        """``options`` if every key and value is known.

        Raises:
            UserError: naming the first that is not.
        """
        for key, value in options.items():
            if key not in OPTIONS:
                near = difflib.get_close_matches(key, OPTIONS, n=1)
                hint = f"did you mean {near[0]!r}? " if near else ""
                raise UserError(f"pooling layer_attention has no option {key!r}; {hint}allowed: {', '.join(OPTIONS)}")
            if value not in OPTIONS[key]:
                raise UserError(f"option {key!r} of pooling layer_attention got {value!r}; allowed: "
                                f"{', '.join(OPTIONS[key])}")
        return dict(options)

    def forward(self, hidden_states: Sequence[Tensor], attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """The last layer's token states ``[b, s, h]`` and the pooled, not normalised vector ``[b, dim]``."""
        first = torch.stack([states[:, 0] for states in hidden_states], dim=1)
        means = torch.stack([masked_mean(states, attention_mask) for states in hidden_states], dim=1)
        query, key, value = self.query(first), self.key(means), self.value(means)  # each [b, h, L + 1]
        divisor = len(hidden_states) if self.options["scale"] == "layers" else math.sqrt(first.shape[-1])
        weights = torch.softmax(query.transpose(1, 2) @ key / divisor, dim=-1)  # [b, asking layer, answering layer]
        # The mean over asking layers can be taken before the values are weighed: both are linear.
        pooled = (value @ weights.mean(dim=1).unsqueeze(-1)).squeeze(-1)
        return hidden_states[-1], self.final(torch.cat([first[:, -1], pooled], dim=-1))
