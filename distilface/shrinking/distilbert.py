"""BERT to DistilBERT with the same vectors.

A DistilBERT layer is a BERT layer under other names. What BERT has besides is a table of token types, of which a
single text uses row 0, added to every token as the position row is: so it folds into the positions. BERT's own pooler
takes no part in a sentence vector.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from distilface.checkpoint import quiet_transformers
from distilface.errors import UserError, require
from distilface.tokenizer import Tokenizer

EPSILON = 1e-12
"""The epsilon of every LayerNorm, which transformers' DistilBERT writes in its code."""
_LAYER = (
    ("attention.self.query", "attention.q_lin"),
    ("attention.self.key", "attention.k_lin"),
    ("attention.self.value", "attention.v_lin"),
    ("attention.output.dense", "attention.out_lin"),
    ("attention.output.LayerNorm", "sa_layer_norm"),
    ("intermediate.dense", "ffn.lin1"),
    ("output.dense", "ffn.lin2"),
    ("output.LayerNorm", "output_layer_norm"),
)


def check_convertible(config: Any) -> None:
    """Refuse, by name, what DistilBERT can't express."""
    if config.model_type != "bert":
        raise UserError(f"to_distilbert takes BERT checkpoints, this is {config.model_type!r}; drop to_distilbert")
    positions = getattr(config, "position_embedding_type", None) or "absolute"
    if positions != "absolute":
        raise UserError(f"to_distilbert can't convert position_embedding_type {positions!r}: DistilBERT only has "
                        "'absolute' positions")
    if config.layer_norm_eps != EPSILON:
        raise UserError(f"to_distilbert can't convert layer_norm_eps {config.layer_norm_eps:g}: DistilBERT's is "
                        f"{EPSILON:g} in its code")
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        raise UserError("to_distilbert can't convert a BERT decoder: DistilBERT attends in both directions")


def to_distilbert(bert: nn.Module) -> nn.Module:
    """A DistilBertModel that gives the same states as ``bert`` with token type 0, up to the rounding of one sum."""
    transformers = require("transformers", "train", "conversion to DistilBERT")
    old = bert.config
    check_convertible(old)
    config = transformers.DistilBertConfig(
        vocab_size=old.vocab_size, max_position_embeddings=old.max_position_embeddings, sinusoidal_pos_embds=False,
        n_layers=old.num_hidden_layers, n_heads=old.num_attention_heads, dim=old.hidden_size,
        hidden_dim=old.intermediate_size, dropout=old.hidden_dropout_prob,
        attention_dropout=old.attention_probs_dropout_prob, activation=old.hidden_act,
        initializer_range=old.initializer_range, pad_token_id=old.pad_token_id)
    source = bert.state_dict()
    table = "embeddings.position_embeddings.weight"
    target = {f"embeddings.{name}": source[f"embeddings.{name}"]
              for name in ("word_embeddings.weight", "LayerNorm.weight", "LayerNorm.bias")}
    target[table] = source[table] + source["embeddings.token_type_embeddings.weight"][0]
    for index in range(old.num_hidden_layers):
        for ours, theirs in _LAYER:
            for kind in ("weight", "bias"):
                target[f"transformer.layer.{index}.{theirs}.{kind}"] = source[f"encoder.layer.{index}.{ours}.{kind}"]
    with quiet_transformers():
        model: nn.Module = transformers.DistilBertModel(config)
    model.load_state_dict(target, strict=True)
    return model.to(torch.float32).eval()


def without_token_types(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer of the converted model: other libraries must not feed it token types."""
    result = tokenizer.with_limit(tokenizer.max_seq_length)
    if str(result.settings.get("tokenizer_class")) in ("BertTokenizer", "BertTokenizerFast"):
        result.settings["tokenizer_class"] = "DistilBertTokenizer"
    result.settings["model_input_names"] = ["input_ids", "attention_mask"]
    return result
