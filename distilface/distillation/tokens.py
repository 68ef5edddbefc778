"""Losses on the states of tokens: hidden states (TinyBERT) and attention relations (MiniLMv2) of a live teacher.

The teacher runs in the step, without gradients, on the very ids the student gets. TinyBERT's own attention loss is left
out: it needs equal numbers of heads and the slow attention that returns its weights, and MiniLMv2's relations, made of
queries, keys and values alone, need neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from distilface.artifact import is_bundle
from distilface.distillation.config import TOKEN_LOSSES, DistillConfig, DistillLossConfig
from distilface.distillation.projection import Projection, fitted_projection
from distilface.encoder import SentenceEncoder, longest_input
from distilface.errors import UserError
from distilface.loading import resolve_model
from distilface.losses import hidden_distance, relation_divergence
from distilface.shrinking.architecture import family_of, layers_of
from distilface.shrinking.layers import evenly_spaced

FIT_TEXTS = 512
"""Texts on which tokenizers are compared, and a map of hidden states is fitted."""


class Tap:
    """Remembers what went through an encoder in its last forward pass.

    Args:
        backbone: of a `SentenceEncoder`.
        attention_layer: whose queries, keys and values to keep; None for none.

    Attributes:
        ids, mask: the inputs, ``[b, s]``.
        states: of all ``L + 1`` layers, ``[b, s, h]``.
        attention: queries, keys and values of one layer, ``[b, s, h]`` each.
    """

    def __init__(self, backbone: nn.Module, attention_layer: int | None = None) -> None:
        self.ids = self.mask = torch.empty(0)
        self.states: tuple[Tensor, ...] = ()
        self.attention: dict[int, Tensor] = {}
        backbone.register_forward_hook(self._keep, with_kwargs=True)
        if attention_layer is not None:
            family = family_of(backbone, "loss.attention")
            layer = layers_of(backbone, family)[attention_layer]
            for index, name in enumerate(family.attention):
                layer.get_submodule(name).register_forward_hook(
                    lambda module, inputs, output, index=index: self.attention.__setitem__(index, output))

    def _keep(self, module: nn.Module, inputs: tuple[Any, ...], given: Mapping[str, Any], output: Any) -> None:
        self.ids, self.mask, self.states = given["input_ids"], given["attention_mask"], output.hidden_states


class TokenLosses(nn.Module):
    """What the tokens of each text cost, ``[b, 1 or 2]``, from the student's last forward pass.

    As a number for each text they travel with its vector: gathered from all processes, and differentiated like it.

    Args:
        config: which losses.
        student, teacher: with the same tokenizer.
        layer_map: the teacher's layer for each of the student's, numbered from 0.
        heads: pieces into which queries, keys and values are cut.
        texts: to fit the map of hidden states of unlike widths on.
    """

    def __init__(self, config: DistillLossConfig, student: SentenceEncoder, teacher: SentenceEncoder,
                 layer_map: Sequence[int], heads: int, texts: Sequence[str]) -> None:
        super().__init__()
        self.names = tuple(name for name in TOKEN_LOSSES if getattr(config, name))
        self._layer_map = tuple(layer_map)
        self._heads = heads
        self._teacher = [teacher.eval()]  # in a list: it is neither trained nor saved
        last = student.num_layers - 1
        self._ours = Tap(student.backbone, last if config.attention else None)
        self._theirs = Tap(teacher.backbone, layer_map[last] if config.attention else None)
        self.map: Projection | None = None
        widths = [encoder.backbone.config.hidden_size for encoder in (student, teacher)]
        if config.hidden and widths[0] != widths[1]:
            self.map = self._fitted(student, texts)

    def forward(self) -> Tensor:
        mask = self._ours.mask
        self._run_teacher()
        parts = []
        if "hidden" in self.names:
            ours, theirs = self._hidden_pairs()
            parts.append(torch.stack([hidden_distance(self._mapped(mine), its, mask)
                                      for mine, its in zip(ours, theirs, strict=True)]).mean(dim=0))
        if "attention" in self.names:
            parts.append(torch.stack([
                relation_divergence(self._ours.attention[index], self._theirs.attention[index], mask, self._heads)
                for index in range(3)]).mean(dim=0))
        return torch.stack(parts, dim=1)

    def _run_teacher(self) -> None:
        teacher = self._teacher[0]
        if next(teacher.parameters()).device != self._ours.ids.device:
            teacher.to(self._ours.ids.device)
        with torch.no_grad():
            teacher.hidden_states(self._ours.ids, self._ours.mask)

    def _hidden_pairs(self) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """States after each of the student's layers, and after the teacher's layer that it stands for."""
        return self._ours.states[1:], [self._theirs.states[layer + 1] for layer in self._layer_map]

    def _mapped(self, states: Tensor) -> Tensor:
        """TinyBERT's one ``W_h`` for all layers."""
        return states if self.map is None else self.map(states.flatten(0, 1)).unflatten(0, states.shape[:2])

    def _fitted(self, student: SentenceEncoder, texts: Sequence[str]) -> Projection:
        feed = student.tokenizer.pad(student.tokenizer.encode_batch(texts))
        was_training = student.training
        student.eval()
        with torch.no_grad():
            student.hidden_states(*(torch.from_numpy(feed[name]) for name in ("input_ids", "attention_mask")))
            self._run_teacher()
        student.train(was_training)
        tokens = self._ours.mask.bool()
        return fitted_projection(*(torch.cat([states[tokens] for states in side]).numpy()
                                   for side in self._hidden_pairs()))


class Appended(nn.Module):
    """What the training package appends to each vector: the projected vector, and the costs of its tokens."""

    def __init__(self, projection: nn.Module | None, tokens: TokenLosses) -> None:
        super().__init__()
        self.projection = projection
        self.tokens = tokens

    def forward(self, vectors: Tensor) -> Tensor:
        costs = self.tokens()
        return costs if self.projection is None else torch.cat([self.projection(vectors), costs], dim=1)


def token_losses(config: DistillConfig, student: SentenceEncoder, texts: Sequence[str]) -> TokenLosses | None:
    """The token-level losses that ``config`` gives a weight; None for none.

    Raises:
        UserError: for a teacher whose layers can't be seen, that splits text otherwise or takes less of it, and for
            layers or heads that do not fit.
    """
    loss = config.loss
    names = [f"loss.{name}" for name in TOKEN_LOSSES if getattr(loss, name)]
    if not names:
        return None
    name = config.teacher.name
    assert name is not None  # DistillConfig refuses a file of vectors
    if is_bundle(resolve_model(name)):
        raise UserError(f"{names[0]} needs the states of every layer of the teacher, and the graph of bundle {name!r} "
                        f"returns those of the last; name the checkpoint it was made from, or set {names[0]}=0")
    teacher = SentenceEncoder.load(name, config.teacher.pooling)
    sample = list(texts[:FIT_TEXTS])
    limit = config.train.max_length
    if longest_input(teacher.backbone) < limit:
        raise UserError(f"{names[0]} gives the teacher the student's ids, but train.max_length {limit} is over the "
                        f"{longest_input(teacher.backbone)} positions of {name!r}; lower it")
    (words, ids), (its_words, its_ids) = (
        (item.backend.get_vocab(), item.encode_batch(sample))
        for item in (encoder.tokenizer.with_limit(limit) for encoder in (student, teacher)))
    if words != its_words or ids != its_ids:
        raise UserError(f"{names[0]} compares token by token, but {config.student.name!r} and its teacher {name!r} "
                        f"have different tokenizers; set {names[0]}=0: losses on vectors work across tokenizers")
    return TokenLosses(loss, student, teacher, _layer_map(config, student.num_layers, teacher.num_layers),
                       _heads(loss, student, teacher), sample)


def _layer_map(config: DistillConfig, ours: int, theirs: int) -> Sequence[int]:
    given = config.loss.layer_map
    if given is not None:
        if len(given) != ours:
            raise UserError(f"loss.layer_map names {len(given)} of the teacher's layers, and the student has {ours}; "
                            "name one for each")
        if max(given) >= theirs:
            raise UserError(f"loss.layer_map names layer {max(given)}; the teacher has layers 0 to {theirs - 1}")
        return given
    if config.student.keep_layers is not None and config.student.name == config.teacher.name:
        return sorted(config.student.keep_layers)
    if ours > theirs:
        raise UserError(f"the student has {ours} layers and the teacher {theirs}, so it is not clear which to compare; "
                        "set loss.layer_map to one of the teacher's layers for each of the student's")
    return evenly_spaced(theirs, ours)


def _heads(loss: DistillLossConfig, student: SentenceEncoder, teacher: SentenceEncoder) -> int:
    heads = loss.attention_heads or int(student.backbone.config.num_attention_heads)
    widths = [int(encoder.backbone.config.hidden_size) for encoder in (student, teacher)]
    if loss.attention and any(width % heads for width in widths):
        raise UserError(f"loss.attention cuts queries, keys and values into {heads} heads, but the widths of student "
                        f"and teacher are {widths[0]} and {widths[1]}; set loss.attention_heads to a divisor of both")
    return heads
