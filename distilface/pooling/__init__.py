"""Token states to one vector: the pooling methods of the DistilFACE paper, and layer-wise attention.

A pooler takes the hidden states of all ``L + 1`` layers (index 0 is the embedding output) and the attention mask, and
returns token states and the pooled, not normalised vector.
"""

from __future__ import annotations

from collections.abc import Mapping

from distilface.errors import UserError
from distilface.pooling.layer_attention import LayerAttention
from distilface.pooling.names import LAYER_ATTENTION, LAYER_SETS, POOLINGS, TRAINED_POOLINGS, canonical
from distilface.pooling.tokens import Pooler, masked_max, masked_mean

__all__ = ["POOLINGS", "TRAINED_POOLINGS", "LayerAttention", "Pooler", "build_pooler", "canonical", "masked_max",
           "masked_mean"]


def build_pooler(name: str, num_layers: int, hidden_size: int,
                 options: Mapping[str, str] | None = None) -> Pooler | LayerAttention:
    """The module behind a pooling name.

    Args:
        options: of ``layer_attention``, see `LayerAttention`; the other poolings have none.

    Raises:
        UserError: for an unknown name or option, or a pooling that needs more layers than the encoder has.
    """
    name = canonical(name)
    if name == LAYER_ATTENTION:
        return LayerAttention(hidden_size, **LayerAttention.checked(options or {}))
    if options:
        raise UserError(f"pooling {name!r} has no options, got {', '.join(options)}; only {LAYER_ATTENTION} has")
    if name == "cls":
        return Pooler("cls", LAYER_SETS["last"], hidden_size)
    kind, _, layer_set = name.partition("_")
    layers = LAYER_SETS[layer_set]
    needed = 1 if layers is None else max(abs(index) for index in layers)
    if needed > num_layers + 1:
        raise UserError(f"pooling {name!r} reads {needed} layers; this encoder has {num_layers} and the embedding "
                        "output: use mean_last, mean_last2 or mean_all")
    return Pooler("mean" if kind == "concat" else kind, layers, hidden_size, concatenate=kind == "concat")
