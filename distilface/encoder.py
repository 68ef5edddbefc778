"""The torch side: a BERT-like encoder, a pooler and an optional MLP head that turn ids into one unit vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from distilface.artifact import is_bundle
from distilface.batching import batches_by_length
from distilface.checkpoint import (
    CHECKPOINT_FILE,
    CheckpointFiles,
    load_backbone,
    load_tokenizer,
    quiet_transformers,
    write_modules,
    write_pooler,
)
from distilface.errors import UserError, require
from distilface.loading import resolve_model
from distilface.pooling import TRAINED_POOLINGS, build_pooler, canonical
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
        pooling_options: of a pooling that has options.
        truncate_dim: the sentence vector is cut to its first so many dimensions, then normalised: for models trained
            with Matryoshka dimensions.
    """

    def __init__(self, backbone: nn.Module, tokenizer: Tokenizer, pooling: str = "mean_last", head: Head = "none",
                 pooling_options: Mapping[str, str] | None = None, truncate_dim: int | None = None) -> None:
        super().__init__()
        if head not in HEADS:
            raise UserError(f"unknown head {head!r}; allowed: {', '.join(HEADS)}")
        shape = normalized_config(backbone.config)
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.pooling = canonical(pooling)
        self.num_layers = int(shape.num_layers)
        self.pooler = build_pooler(self.pooling, self.num_layers, int(shape.hidden_size), pooling_options)
        self.head_mode: Head = head
        self.head = None if head == "none" else MlpHead(self.pooler.dim)
        if truncate_dim is not None and not 1 <= truncate_dim <= self.pooler.dim:
            raise UserError(f"truncate_dim {truncate_dim} does not fit vectors of {self.pooler.dim} dimensions; "
                            f"use 1 to {self.pooler.dim}")
        self.truncate_dim = truncate_dim
        # BERT's own pooler takes no part in a sentence vector; frozen, it is neither trained nor waited for by DDP.
        for name, parameter in backbone.named_parameters():
            if name.startswith("pooler."):
                parameter.requires_grad_(False)

    @property
    def dim(self) -> int:
        """Width of the sentence vector."""
        return self.truncate_dim or self.pooler.dim

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
             revision: str | None = None, pooling_options: Mapping[str, str] | None = None,
             truncate_dim: int | None = None, new_pooler: bool = False) -> SentenceEncoder:
        """Load a checkpoint of ours, a sentence-transformers folder, a bare transformers encoder, or a Hub id.

        Weights are always float32, whatever the file holds, and read from safetensors only.

        Args:
            pooling: overrides what the folder's files say; a bare encoder without one gets ``mean_last``.
            head: adds an MLP head to be trained; a head that the files hold is loaded as ``"kept"``.
            pooling_options, truncate_dim: override what the folder's files say.
            new_pooler: the caller will train it, so a pooling with weights may start from random ones.

        Raises:
            UserError: for what can't be loaded, also a pooling whose weights the folder does not hold.
        """
        transformers = require("transformers", "train", "loading a checkpoint")
        folder = resolve_model(model, revision)
        if is_bundle(folder):
            raise UserError(f"{str(model)!r} is a bundle, which has no weights to train, shrink or export; pass the "
                            "checkpoint it was made from")
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
        name = canonical(pooling or files.pooling)
        as_stored = name == files.own.get("pooling")
        options = pooling_options or (files.pooling_options if as_stored else None)
        encoder = cls(backbone, tokenizer, name, head or ("kept" if stored else "none"), options,
                      files.truncate_dim if truncate_dim is None else truncate_dim)
        if name in TRAINED_POOLINGS and (as_stored or not new_pooler):
            encoder._load_pooler(files, str(model))
        if stored is not None and encoder.head is not None:
            try:
                encoder.head.load_state_dict(stored)
            except RuntimeError:
                raise UserError(f"the head stored in {str(folder)!r} does not fit pooling {encoder.pooling!r}; "
                                f"it was trained with {files.pooling!r}") from None
        return encoder.eval()

    def _load_pooler(self, files: CheckpointFiles, model: str) -> None:
        weights = files.pooler_weights
        if weights is None:
            raise UserError(f"pooling {self.pooling!r} has weights of its own, which {model!r} does not hold; train it "
                            f"first: distilface train --model {model} --pooling {self.pooling}")
        try:
            self.pooler.load_state_dict(weights)
        except RuntimeError:
            raise UserError(f"the pooling weights stored in {model!r} do not fit its encoder or pooling options "
                            f"{self.pooler.options}") from None

    def rebuilt(self, backbone: nn.Module | None = None, tokenizer: Tokenizer | None = None) -> SentenceEncoder:
        """This encoder around a changed backbone or tokenizer; pooling, head and their weights stay.

        Raises:
            UserError: if the pooling needs layers that the backbone does not have.
        """
        new = SentenceEncoder(backbone or self.backbone, tokenizer or self.tokenizer, self.pooling, self.head_mode,
                              self.pooler.options, self.truncate_dim)
        new.pooler.load_state_dict(self.pooler.state_dict())
        if self.head is not None and new.head is not None:
            new.head.load_state_dict(self.head.state_dict())
        return new.eval()

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
        """Token states ``[b, s, width]`` and the L2-normalised sentence vector ``[b, dim]``, as the exported graph."""
        states, vectors = self.pooler(self.hidden_states(input_ids, attention_mask, token_type_ids), attention_mask)
        if self.head is not None and self.head_mode == "kept":
            vectors = self.head(vectors)
        if self.truncate_dim is not None:
            vectors = vectors[:, : self.truncate_dim]
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
        others, and for cut vectors, the pooling module is left out, so that loading there fails instead of returning
        other vectors.
        """
        with quiet_transformers():
            self.backbone.save_pretrained(folder, safe_serialization=True)
        self.tokenizer.save(folder, self.takes_token_types)
        kept = self.head_mode == "kept"
        write_modules(folder, self.pooling, self.pooler.dim, self.max_seq_length, kept, self.truncate_dim is not None)
        if kept:
            self.save_head(folder)
        if self.pooling in TRAINED_POOLINGS:
            write_pooler(folder, self.pooler.state_dict())
        values = {"kind": "checkpoint", "format_version": 1, "pooling": self.pooling,
                  "head": "kept" if kept else "none", "max_seq_length": self.max_seq_length, "dim": self.dim}
        if self.pooler.options:
            values["pooling_options"] = self.pooler.options
        if self.truncate_dim is not None:
            values["truncate_dim"] = self.truncate_dim
        write_json(folder / CHECKPOINT_FILE, values)

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
