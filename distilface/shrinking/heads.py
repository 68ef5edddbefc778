"""Fewer attention heads: zeros in the checkpoint, smaller matrices in the exported graph.

No config of the architectures here can describe fewer heads of the same width (a head's width is hidden size / heads),
so a checkpoint with narrower matrices would not load again. A pruned head's rows and columns are set to zero instead:
the checkpoint loads everywhere, the head adds nothing, training gives it no gradient (each of its matrices is
multiplied by another one that is zero), and `without_dead_heads` takes it out when a graph is exported.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from distilface.encoder import SentenceEncoder
from distilface.errors import UserError
from distilface.shrinking.activations import watch
from distilface.shrinking.architecture import FAMILIES, Family, family_of, layers_of
from distilface.shrinking.ffn import narrow


class HeadStats:
    """Mean and second moments of what each head of a layer adds up from the values, over the unmasked tokens.

    Attributes:
        mean: ``[heads, width]``; ``moments``: ``[heads, width, width]``; float64.
    """

    def __init__(self, heads: int, width: int) -> None:
        self.tokens = 0
        self.total = torch.zeros(heads, width, dtype=torch.float64)
        self.products = torch.zeros(heads, width, width, dtype=torch.float64)

    def add(self, states: Tensor) -> None:
        """Take in contexts ``[tokens, heads * width]``."""
        heads, width = self.total.shape
        wide = states.double().view(-1, heads, width)
        self.tokens += len(wide)
        self.total += wide.sum(dim=0)
        self.products += torch.einsum("thi,thj->hij", wide, wide)

    @property
    def mean(self) -> Tensor:
        return self.total / self.tokens

    @property
    def covariance(self) -> Tensor:
        """``[heads, width, width]``."""
        return self.products / self.tokens - torch.einsum("hi,hj->hij", self.mean, self.mean)


def prune_heads(encoder: SentenceEncoder, heads: int, texts: Sequence[str] | None = None) -> None:
    """Keep ``heads`` attention heads in every layer of ``encoder``; the others become zeros, in place.

    With ``texts``: the score of a head is the trace of ``W Cov(c) W^T``, ``c`` being its context and ``W`` its columns
    of the output projection: the squared error that freezing it causes; its mean output moves into the bias. Without:
    ``||W_value|| ||W||``, the magnitude of what it adds (Michel et al., "Are sixteen heads really better than one?",
    NeurIPS 2019, prune by a first-order estimate of the same).

    Raises:
        UserError: for a number that is not smaller, or an architecture whose heads are tied to more than their layer.
    """
    backbone = encoder.backbone
    family = family_of(backbone, "pruning heads")
    total = int(backbone.config.num_attention_heads)
    if family.heads is None:
        raise UserError(f"heads={heads} can't be done for {backbone.config.model_type!r}: its relative positions have "
                        "a value for each head of all layers; use fewer layers or a smaller ffn")
    if not 1 <= heads < total:
        raise UserError(f"heads={heads} is out of range; the layers have {total} heads, keep 1 to {total - 1} of them")
    width = int(backbone.config.hidden_size) // total
    layers = layers_of(backbone, family)
    stats = None
    if texts is not None:
        stats = [HeadStats(total, width) for _ in layers]
        watch(encoder, family.attention_out, texts, lambda index, states: stats[index].add(states))
    with torch.no_grad():
        for index, layer in enumerate(layers):
            *_, value, out = _maps(layer, family)
            columns = out.weight.double().view(-1, total, width).transpose(0, 1)  # [heads, hidden, width]
            if stats is None:
                scores = value.weight.view(total, -1).norm(dim=1) * columns.flatten(1).norm(dim=1)
            else:
                scores = torch.einsum("hoi,hij,hoj->h", columns, stats[index].covariance, columns)
            gone = scores.argsort(descending=True, stable=True)[heads:]
            if stats is not None:
                out.bias += torch.einsum("hoi,hi->o", columns[gone], stats[index].mean[gone]).float()
            _zero(_maps(layer, family), gone, total)


def without_dead_heads(encoder: SentenceEncoder) -> SentenceEncoder:
    """The same encoder with smaller attention matrices where heads add nothing; itself, where all heads do something.

    For tracing a graph: what comes back can't be saved. At least one head stays in each layer.
    """
    family = FAMILIES.get(encoder.backbone.config.model_type)
    if family is None or family.heads is None:
        return encoder
    total = int(encoder.backbone.config.num_attention_heads)
    living = [_living(layer, family, total) for layer in layers_of(encoder.backbone, family)]
    if all(len(kept) == total for kept in living):
        return encoder
    smaller = copy.deepcopy(encoder)
    for layer, kept in zip(layers_of(smaller.backbone, family), living, strict=True):
        query, key, value, out = _maps(layer, family)
        width = query.out_features // total
        rows = (kept[:, None] * width + torch.arange(width)).flatten()
        for linear in (query, key, value):
            narrow(linear, rows, dim=0)
        narrow(out, rows, dim=1)
        holder = layer.get_submodule(family.attention[0].rpartition(".")[0])
        for name, number in zip(family.heads, (len(kept), len(rows)), strict=True):
            setattr(holder, name, number)
    return smaller


def _living(layer: nn.Module, family: Family, total: int) -> Tensor:
    """Heads whose columns of the output projection are not all zero, ascending; the first one where all are."""
    query, *_, out = _maps(layer, family)
    columns = out.weight.view(-1, total, query.out_features // total)
    alive = columns.ne(0).any(dim=2).any(dim=0).nonzero().flatten()
    return alive if len(alive) else torch.zeros(1, dtype=torch.int64)


def _maps(layer: nn.Module, family: Family) -> tuple[nn.Linear, nn.Linear, nn.Linear, nn.Linear]:
    """Queries, keys, values, output."""
    query, key, value, out = (layer.get_submodule(name) for name in (*family.attention, family.attention_out))
    return query, key, value, out  # type: ignore[return-value]


def _zero(maps: tuple[nn.Linear, nn.Linear, nn.Linear, nn.Linear], gone: Tensor, total: int) -> None:
    *inputs, out = maps
    for linear in inputs:
        linear.weight.view(total, -1, linear.in_features)[gone] = 0
        linear.bias.view(total, -1)[gone] = 0
    out.weight.view(out.out_features, total, -1)[:, gone] = 0
