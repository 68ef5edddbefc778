"""Where each family keeps its layers, FFNs and attention, and what its config calls their number and width."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from distilface.errors import UserError


@dataclass(frozen=True)
class Family:
    """Dotted names: the list of layers in the backbone, and the two FFN projections in a layer.

    Attributes:
        width_key: the config's name for the number of FFN units.
        positions_follow_padding: position ids start after the padding id, so that id must not move.
        attention: the maps to queries, keys and values in a layer; ``attention_out``: the one that mixes the heads.
        heads: attributes of the module that holds ``attention``: the number of heads, and the width of all together.
            None where a head is tied to more than its layer (MPNet's relative positions).
    """

    layers: str
    up: str
    down: str
    width_key: str
    positions_follow_padding: bool = False
    attention: tuple[str, str, str] = ("attention.self.query", "attention.self.key", "attention.self.value")
    attention_out: str = "attention.output.dense"
    heads: tuple[str, str] | None = ("num_attention_heads", "all_head_size")


_BERT = Family("encoder.layer", "intermediate.dense", "output.dense", "intermediate_size")
_ROBERTA = Family(_BERT.layers, _BERT.up, _BERT.down, _BERT.width_key, positions_follow_padding=True)
FAMILIES = {
    "distilbert": Family("transformer.layer", "ffn.lin1", "ffn.lin2", "hidden_dim",
                         attention=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
                         attention_out="attention.out_lin", heads=("n_heads", "dim")),
    "bert": _BERT, "electra": _BERT, "roberta": _ROBERTA, "xlm-roberta": _ROBERTA, "camembert": _ROBERTA,
    "mpnet": replace(_ROBERTA, attention=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
                     attention_out="attention.attn.o", heads=None),
}


def family_of(backbone: nn.Module, purpose: str) -> Family:
    """The family of ``backbone``; `UserError` naming an architecture whose layers are laid out otherwise."""
    architecture = backbone.config.model_type
    if architecture not in FAMILIES:
        raise UserError(f"{purpose} does not know architecture {architecture!r}; known: {', '.join(FAMILIES)}")
    return FAMILIES[architecture]


def layers_of(backbone: nn.Module, family: Family) -> nn.ModuleList:
    """The list of transformer layers itself, not a copy."""
    layers: nn.ModuleList = backbone.get_submodule(family.layers)  # type: ignore[assignment]
    return layers
