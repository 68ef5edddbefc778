"""Which examples meet in which step: a pure function of seed, epoch and position, so that a resumed run goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from distilface.errors import UserError
from distilface.losses import duplicate_mask
from distilface.training.examples import Examples, TokenRows

logger = logging.getLogger(__name__)

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Planned:
    """One batch over all processes. ``columns`` ``[n, 1 to 3]``: row numbers of anchor, positive, hard negative.

    ``same`` ``[n, m]``: the texts that mean the same as the example, see `distilface.losses.duplicate_mask`. ``scores``
    ``[n]``: of scored pairs, which are no anchors and positives.
    """

    columns: Rows
    same: Rows
    scores: NDArray[np.float32] | None = None


class BatchPlan:
    """Batches of similar length, from one source each, in random order.

    Args:
        batch_size: examples in a batch over all ``processes``. A source with fewer is one batch of all it has.
        window: batches sorted by length together; 0 leaves the random order.
        keep_last: keep a source's incomplete last batch; a rest of one example, or of fewer than there are processes,
            is merged into the batch before it. Otherwise the rest is dropped. So every process has an example, and
            every batch at least two.
        views: how often a sentence alone is in its batch: twice, where two dropout passes are contrasted.
    """

    def __init__(self, sources: Sequence[Examples], lengths: Rows, batch_size: int, *, seed: int, window: int = 64,
                 keep_last: bool = False, processes: int = 1, views: int = 2) -> None:
        self.sources = sources
        self.batch_size = batch_size
        self.processes = processes
        self._lengths = lengths
        self._window = window
        self._keep_last = keep_last
        self._seed = seed
        self._views = views
        for source in sources:
            rows = min(batch_size, len(source))
            if rows < processes:
                raise UserError(f"a batch of {rows} examples can't be split over {processes} processes; "
                                "raise train.batch_size, give more data or start fewer processes")
            if len(source) < batch_size:
                logger.warning("%s holds %d examples, fewer than train.batch_size %d: every batch holds all of them",
                               source.name, len(source), batch_size)
        self.batches_per_epoch = sum(len(self._cuts(len(source))) for source in sources)

    def epoch(self, epoch: int) -> list[Planned]:
        """The batches of an epoch, numbered from 0."""
        random = np.random.default_rng([self._seed, epoch])
        batches = []
        for source in self.sources:
            columns, same = _draw(source, random, self._views)
            order = random.permutation(len(source))
            if self._window:  # the incomplete batch at the end stays random: sorted, it would always be the longest
                longest = self._lengths[columns].max(axis=1)
                end = len(order) - len(order) % self.batch_size
                for start in range(0, end, self._window * self.batch_size):
                    rows = order[start : min(start + self._window * self.batch_size, end)]
                    rows[:] = rows[np.argsort(longest[rows], kind="stable")]
            cuts = self._cuts(len(order))
            for start, end in cuts:
                rows = order[start:end]
                scores = None if source.scores is None else source.scores[rows]
                batches.append(Planned(columns[rows], same[rows], scores))
        return [batches[index] for index in random.permutation(len(batches))]

    def _cuts(self, count: int) -> list[tuple[int, int]]:
        """Start and end of every batch of a source."""
        size = self.batch_size
        if count <= size:
            return [(0, count)]
        cuts = [(start, start + size) for start in range(0, count - size + 1, size)]
        rest = count - cuts[-1][1]
        if self._keep_last and rest:
            if rest < max(2, self.processes):
                cuts[-1] = (cuts[-1][0], count)
            else:
                cuts.append((cuts[-1][1], count))
        return cuts


class MicroBatches(Dataset[dict[str, Any]]):
    """Item ``i`` is this process's share of batch ``i`` of the whole run, ready for the model.

    Items hold ``input_ids`` and ``attention_mask`` ``[columns * local, width]`` (all anchors, then all positives, then
    all negatives: one forward pass); ``sizes``, the examples of each process; over all processes, global rows ordered
    by process, ``scores`` ``[n]`` of scored pairs, and otherwise ``exclude`` bool ``[n, n + n * k]``.

    Args:
        extras: more to put into item ``i``, from the row numbers ``[n, columns]`` of the whole batch and ``i``.
    """

    def __init__(self, plan: BatchPlan, rows: TokenRows, count: int, process: int = 0,
                 extras: Callable[[Rows, int], dict[str, torch.Tensor]] | None = None) -> None:
        self._extras = extras
        self._plan = plan
        self._rows = rows
        self._count = count
        self._process = process
        self._epoch = -1
        self._batches: list[Planned] = []

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        planned = self.planned(index)
        # Taking every k-th example gives each process the same mix of lengths.
        shares = [np.arange(first, len(planned.columns), self._plan.processes) for first in range(self._plan.processes)]
        order = np.concatenate(shares)
        local = planned.columns[shares[self._process]]
        feed = self._rows.batch(local.T.ravel())
        item: dict[str, Any] = {
            "input_ids": torch.from_numpy(feed["input_ids"]),
            "attention_mask": torch.from_numpy(feed["attention_mask"]),
            "sizes": [len(share) for share in shares],
        }
        if planned.scores is None:
            negatives = planned.columns[order, 2] if planned.columns.shape[1] == 3 else None
            item["exclude"] = torch.from_numpy(duplicate_mask(planned.same[order], negatives))
        else:
            item["scores"] = torch.from_numpy(planned.scores[order])
        return item | (self._extras(planned.columns[order], index) if self._extras is not None else {})

    def planned(self, index: int) -> Planned:
        """Batch ``index`` of the run, whatever the process."""
        epoch, position = divmod(index, self._plan.batches_per_epoch)
        if epoch != self._epoch:
            self._batches = self._plan.epoch(epoch)
            self._epoch = epoch
        return self._batches[position]


def _draw(source: Examples, random: np.random.Generator, views: int) -> tuple[Rows, Rows]:
    """This epoch's columns of every example, and the texts that mean the same."""
    texts = source.texts
    if source.kind == "sentences":
        return texts[:, [0] * views], texts
    if source.kind == "groups":
        keys = np.where(texts >= 0, random.random(texts.shape), np.inf)
        return np.take_along_axis(texts, np.argsort(keys, axis=1)[:, :2], axis=1), texts
    return texts, texts[:, :2]
