"""The torch side: a BERT-like encoder, a pooler and an optional MLP head that turn ids into one unit vector."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from distilface.batching import batches_by_length
from distilface.checkpoint import (
    CHECKPOINT_FILE,
    CheckpointFiles,
    load_backbone,
    load_tokenizer,
    quiet_transformers,
    write_modules,
)
from distilface.errors import UserError, require
from distilface.loading import resolve_model
from distilface.pooling import build_pooler, canonical, pooled_width
from distilface.protocol import Vectors
from distilface.tokenizer import Tokenizer, check_texts, write_json

Head = Literal["none", "train_only", "kept"]
HEADS = ("none", "train_only", "kept")


class MlpHead(nn.Module):
    """SimCSE's projection: ``tanh(W x + b)``, width to width (Gao et al., EMNLP 2021, section 6.3)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.normal_(self.linear.weight, std=0.02)
        nn.init.zeros_(self.linear.bias)

    def forward(self, vectors: Tensor) -> Tensor:
        return torch.tanh(self.linear(vectors))


class SentenceEncoder(nn.Module):
    """Backbone, pooler and head.

    Args:
        backbone: a transformers encoder that returns ``hidden_states``.
        tokenizer: its tokenizer with the one length limit.
        pooling: a name of `distilface.pooling`.
        head: ``"none"``; ``"train_only"`` (SimCSE's best unsupervised setting: the MLP is used by the training loss
            and dropped afterwards); ``"kept"`` (the MLP is part of the model).
    """

    def __init__(self, backbone: nn.Module, tokenizer: Tokenizer, pooling: str = "mean_last",
                 head: Head = "none") -> None:
        super().__init__()
        if head not in HEADS:
            raise UserError(f"unknown head {head!r}; allowed: {', '.join(HEADS)}")
        shape = normalized_config(backbone.config)
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.pooling = canonical(pooling)
        self.num_layers = int(shape.num_layers)
        self.pooler = build_pooler(self.pooling, self.num_layers)
        self.head_mode: Head = head
        self.dim = pooled_width(self.pooling, int(shape.hidden_size))
        self.head = None if head == "none" else MlpHead(self.dim)
        # BERT's own pooler takes no part in a sentence vector; frozen, it is neither trained nor waited for by DDP.
        for name, parameter in backbone.named_parameters():
            if name.startswith("pooler."):
                parameter.requires_grad_(False)

    @property
    def max_seq_length(self) -> int:
        """The one length limit, special tokens included."""
        return self.tokenizer.max_seq_length

    @property
    def takes_token_types(self) -> bool:
        """Whether the graph takes token types: BERT and its kin do; DistilBERT, RoBERTa and MPNet do not."""
        return self.backbone.config.model_type in ("bert", "electra", "albert")

    @classmethod
    def load(cls, model: str | Path, pooling: str | None = None, max_seq_length: int | None = None,
             head: Head | None = None, attn_implementation: str | None = None,
             revision: str | None = None) -> SentenceEncoder:
        """Load a checkpoint of ours, a sentence-transformers folder, a bare transformers encoder, or a Hub id.

        Weights are always float32, whatever the file holds, and read from safetensors only.

        Args:
            pooling: overrides what the folder's files say; a bare encoder without one gets ``mean_last``.
            head: adds an MLP head to be trained; a head that the files hold is loaded as ``"kept"``.
        """
        transformers = require("transformers", "train", "loading a checkpoint")
        folder = resolve_model(model, revision)
        files = CheckpointFiles(folder)
        backbone = load_backbone(transformers, folder, attn_implementation)
        length = files.max_seq_length if max_seq_length is None else max_seq_length
        tokenizer = load_tokenizer(transformers, folder, length)
        longest = longest_input(backbone)
        if tokenizer.max_seq_length > longest:
            if max_seq_length is not None:
                raise UserError(f"max_seq_length {max_seq_length} is over the {longest} positions of {str(model)!r}")
            tokenizer = tokenizer.with_limit(longest)
        stored = files.head_weights
        encoder = cls(backbone, tokenizer, pooling or files.pooling, head or ("kept" if stored else "none"))
        if stored is not None and encoder.head is not None:
            try:
                encoder.head.load_state_dict(stored)
            except RuntimeError:
                raise UserError(f"the head stored in {str(folder)!r} does not fit pooling {encoder.pooling!r}; "
                                f"it was trained with {files.pooling!r}") from None
        return encoder.eval()

    def hidden_states(self, input_ids: Tensor, attention_mask: Tensor,
                      token_type_ids: Tensor | None = None) -> tuple[Tensor, ...]:
        """States of all ``L + 1`` layers, each ``[b, s, h]``."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        return tuple(self.backbone(**inputs, output_hidden_states=True, return_dict=True).hidden_states)

    def pooled(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """The vector the training loss sees: pooled, through the head, not normalised. ``[b, dim]``."""
        _, vectors = self.pooler(self.hidden_states(input_ids, attention_mask, token_type_ids), attention_mask)
        return vectors if self.head is None else self.head(vectors)  # type: ignore[no-any-return]

    def forward(self, input_ids: Tensor, attention_mask: Tensor,
                token_type_ids: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Token states ``[b, s, dim]`` and the L2-normalised sentence vector ``[b, dim]``, as the exported graph."""
        states, vectors = self.pooler(self.hidden_states(input_ids, attention_mask, token_type_ids), attention_mask)
        if self.head is not None and self.head_mode == "kept":
            vectors = self.head(vectors)
        return states, functional.normalize(vectors, dim=-1)

    def encode(self, texts: Sequence[str], batch_tokens: int = 8192) -> Vectors:
        """Unit vectors ``[n, dim]``, float32, in the order of ``texts``; dropout off; restores the training mode."""
        rows = self.tokenizer.encode_batch(check_texts(texts))
        vectors = np.zeros((len(rows), self.dim), dtype=np.float32)
        device = next(self.parameters()).device
        was_training = self.training
        self.eval()
        try:
            with torch.inference_mode():
                for indices in batches_by_length([len(row) for row in rows], batch_tokens):
                    feed = self.tokenizer.pad([rows[i] for i in indices])
                    inputs = {name: torch.from_numpy(array).to(device) for name, array in feed.items()}
                    vectors[indices] = self(**inputs)[1].float().cpu().numpy()
        finally:
            self.train(was_training)
        return vectors

    def save(self, folder: Path) -> None:
        """Write a checkpoint into an existing ``folder``: safetensors, tokenizer, sentence-transformers files.

        Poolings that sentence-transformers knows (cls, mean and max of the last layer) load there unchanged. For the
        others the pooling module is left out, so that loading there fails instead of returning other vectors.
        """
        with quiet_transformers():
            self.backbone.save_pretrained(folder, safe_serialization=True)
        self.tokenizer.save(folder)
        kept = self.head_mode == "kept"
        write_modules(folder, self.pooling, self.dim, self.max_seq_length, kept)
        if kept:
            self.save_head(folder)
        write_json(folder / CHECKPOINT_FILE, {
            "kind": "checkpoint", "format_version": 1, "pooling": self.pooling, "head": "kept" if kept else "none",
            "max_seq_length": self.max_seq_length, "dim": self.dim,
        })

    def save_head(self, folder: Path) -> None:
        """Write the head's weights where sentence-transformers' Dense module reads them."""
        from safetensors.torch import save_file

        assert self.head is not None
        dense = next(path for path in folder.glob("*_Dense"))
        save_file({name: value.contiguous() for name, value in self.head.state_dict().items()},
                  str(dense / "model.safetensors"))


def normalized_config(config: Any) -> Any:
    """optimum's view of a config: ``num_layers``, ``hidden_size``, ``num_attention_heads``, whatever the family."""
    from optimum.utils import NormalizedConfigManager

    try:
        return NormalizedConfigManager.get_normalized_config_class(config.model_type)(config)
    except KeyError:
        raise UserError(f"architecture {config.model_type!r} is not one optimum can describe; supported encoders: "
                        "distilbert, bert, roberta, xlm-roberta, mpnet and their kin") from None


def longest_input(backbone: nn.Module) -> int:
    """The longest sequence the position table allows (RoBERTa, XLM-R and MPNet start counting after the padding id)."""
    size = int(backbone.config.max_position_embeddings)
    offset = backbone.config.model_type in ("roberta", "xlm-roberta", "camembert", "mpnet")
    return size - int(backbone.config.pad_token_id) - 1 if offset else size
