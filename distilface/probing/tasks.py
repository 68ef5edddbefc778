"""What a cell does: prepare an encoder, fine-tune it, score it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import transformers

from distilface.checkpoint import quiet_transformers
from distilface.config import load_config
from distilface.data import DataSource, read_groups, read_pairs, read_scored_pairs, read_sentences, read_triplets
from distilface.data.source import STDIN, locate
from distilface.encoder import SentenceEncoder
from distilface.errors import UserError
from distilface.evaluation import StsPairs, dev_score, load_scored
from distilface.loading import sha256_of
from distilface.probing.classification import fine_tune, load_labelled
from distilface.probing.config import LabelsConfig, ProbeConfig
from distilface.probing.grid import Cell
from distilface.probing.layerwise import layerwise
from distilface.probing.rates import ProbeTrainer
from distilface.probing.reinit import permute, reinitialise
from distilface.training.config import TrainConfig
from distilface.training.objective import ContrastiveObjective
from distilface.training.precision import resolve_device
from distilface.training.run import Task, fit, load_encoder

_READERS: dict[str, Callable[[DataSource], Sequence[Any]]] = {
    "sentences": read_sentences, "pairs": read_pairs, "groups": read_groups, "triplets": read_triplets,
    "scored": read_scored_pairs}


class ProbeTask(Protocol):
    """One cell after the other.

    Attributes:
        contents: hashes of everything that was read, so that a grid goes on with the same data only.
    """

    contents: dict[str, Any]

    def run(self, cell: Cell, work: Path) -> list[dict[str, Any]]:
        """The scores of a cell, see `CellStore.put`; ``work`` may be written to and is removed afterwards."""


def build_task(config: ProbeConfig, encoder: SentenceEncoder) -> ProbeTask:
    """Read and check what the cells need, once.

    Args:
        encoder: the encoder as it is before a cell touches it.

    Raises:
        UserError: if something can't be read or does not fit.
    """
    if config.train.max_length > encoder.max_seq_length:
        raise UserError(f"train.max_length {config.train.max_length} is over the {encoder.max_seq_length} tokens of "
                        f"{config.model.name!r}; lower it")
    if config.probe == "layerwise":
        return _Untrained(config, encoder)
    return _Contrastive(config) if config.labels is None else _Classification(config, config.labels, encoder)


def prepared(config: ProbeConfig, cell: Cell) -> SentenceEncoder:
    """The encoder that a cell starts from."""
    encoder = load_encoder(config.model)
    if cell.order is not None:
        permute(encoder.backbone, cell.order)
    if cell.reinitialised:
        assert cell.seed is not None
        reinitialise(encoder.backbone, cell.reinitialised, cell.seed, config.reinit)
    return encoder


class _Untrained:
    def __init__(self, config: ProbeConfig, encoder: SentenceEncoder) -> None:
        self._pairs = _scored(config)
        self._encoder = encoder.to(resolve_device(config.train.device))
        self.contents = {"sts": _digest_pairs(self._pairs)}

    def run(self, cell: Cell, work: Path) -> list[dict[str, Any]]:
        return layerwise(self._encoder, self._pairs)


class _Contrastive:
    """Fine-tuning as `distilface train` does it; the weights of the last step are scored."""

    def __init__(self, config: ProbeConfig) -> None:
        self._config = config
        self._pairs = _scored(config)
        self._training(None, 0)  # contradictions are refused before the first cell
        self.contents = {"sts": _digest_pairs(self._pairs), "data": [_digest_file(item) for item in config.data]}
        needed = max(config.grid.sizes, default=0)
        for source in config.data:
            found = len(_READERS[source.kind](source))
            if found < needed:
                raise UserError(f"grid.sizes names {needed} examples, but {source.path!r} holds {found}; lower it")

    def run(self, cell: Cell, work: Path) -> list[dict[str, Any]]:
        assert cell.seed is not None
        task = Task("train", "model", partial(prepared, self._config, cell),
                    lambda encoder, texts: ContrastiveObjective(self._config.loss),
                    trainer=partial(ProbeTrainer, layers=cell.reinitialised,
                                    factor=self._config.reinit.learning_rate_factor))
        with _errors_only():
            fit(self._training(cell.size, cell.seed), task, work, resume=False, overwrite=True, progress=False)
        encoder = SentenceEncoder.load(work).to(resolve_device(self._config.train.device))
        return [{"metric": "spearman", "score": dev_score(encoder, self._pairs)}]

    def _training(self, size: int | None, seed: int) -> TrainConfig:
        values = self._config.model_dump(mode="json", include={"model", "data", "loss", "train"})
        for source in values["data"]:
            source["limit"] = size if size is not None else source["limit"]
        values["train"] |= {"seed": seed, "tensorboard": False}
        return load_config(TrainConfig, overrides=values)


class _Classification:
    def __init__(self, config: ProbeConfig, labels: LabelsConfig, encoder: SentenceEncoder) -> None:
        self._config = config
        self._train, self._dev, self._names = load_labelled(labels, encoder.tokenizer.with_limit(
            config.train.max_length))
        needed = max(config.grid.sizes, default=0)
        if needed > len(self._train):
            raise UserError(f"grid.sizes names {needed} examples, but {labels.train.path!r} holds {len(self._train)}; "
                            "lower it")
        self.contents = {"labels": {"train": _digest(self._train.texts), "dev": _digest(self._dev.texts)}}

    def run(self, cell: Cell, work: Path) -> list[dict[str, Any]]:
        assert cell.seed is not None
        transformers.set_seed(cell.seed)  # a pooling with weights starts from random ones
        encoder = prepared(self._config, cell)
        loop = self._config.train.model_copy(update={"seed": cell.seed})
        with quiet_transformers():
            scores = fine_tune(encoder, self._train, self._dev, len(self._names), loop, work, cell.size,
                               cell.reinitialised, self._config.reinit.learning_rate_factor)
        return [{"metric": metric, "score": score} for metric, score in scores.items()]


def digest_model(folder: Path) -> str:
    """Hex sha256 over the weights and the config in a checkpoint folder."""
    files = sorted([*folder.glob("*.safetensors"), folder / "config.json"])
    return _digest((file.name, sha256_of(file)) for file in files if file.is_file())


def _scored(config: ProbeConfig) -> StsPairs:
    assert config.eval.sts is not None
    pairs = load_scored(config.eval.sts)
    limit = config.eval.limit
    if limit is None:
        return pairs
    if limit > len(pairs):
        raise UserError(f"eval.limit is {limit}, but {config.eval.sts.path!r} holds {len(pairs)} pairs; lower it")
    return StsPairs(pairs.name, pairs.sentences1[:limit], pairs.sentences2[:limit], pairs.gold[:limit])


def _digest_pairs(pairs: StsPairs) -> str:
    return _digest(zip(pairs.sentences1, pairs.sentences2, map(str, pairs.gold), strict=True))


def _digest_file(source: DataSource) -> str | None:
    """None for a data set of the Hub, whose revision the Hub's cache holds."""
    path = locate(source)
    if path == STDIN:
        raise UserError("standard input can be read once, but every run of a probe reads its text; save it to a file")
    return sha256_of(path) if path is not None else None


def _digest(rows: Iterable[Sequence[str]]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update("\x1f".join(row).encode("utf-8", "replace") + b"\x1e")
    return digest.hexdigest()


@contextmanager
def _errors_only() -> Iterator[None]:
    """What training and reading tell once would be told again in every cell."""
    talkers = [logging.getLogger(f"distilface.{name}") for name in ("training", "data")]
    levels = [talker.level for talker in talkers]
    for talker in talkers:
        talker.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for talker, level in zip(talkers, levels, strict=True):
            talker.setLevel(level)
