"""The runs of a probe as cells, and the folder that remembers the finished ones."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distilface.artifact import atomic_file
from distilface.errors import UserError
from distilface.probing.config import ProbeConfig
from distilface.tokenizer import write_json

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cell:
    """One run.

    Attributes:
        variant: ``untrained``; ``progressive``; ``reinitialised`` or ``kept`` (a window), ``all`` or ``none`` (of the
            layers keep their weights); ``original`` or ``permuted``.
        position: layers kept from the first on; first layer of the window; number of the order, from 1.
        reinitialised: layers without pre-trained weights.
        order: for a permutation, which layer stands at each place.
        size: training examples; None for all.
    """

    variant: str
    position: int | None = None
    reinitialised: tuple[int, ...] = ()
    order: tuple[int, ...] | None = None
    size: int | None = None
    seed: int | None = None

    @property
    def run(self) -> dict[str, Any]:
        """What is done, whatever it is called: two settings that come to the same share one run."""
        return {"reinitialised": list(self.reinitialised), "order": None if self.order is None else list(self.order),
                "size": self.size, "seed": self.seed}

    @property
    def key(self) -> str:
        """Names the run's file."""
        return hashlib.sha256(json.dumps(self.run, sort_keys=True).encode()).hexdigest()[:16]


def plan(config: ProbeConfig, layers: int) -> list[Cell]:
    """Every cell of the grid. Seeds change slowest, so an interrupted grid shows whole settings of the first seeds.

    Raises:
        UserError: for a window wider than the encoder, or more orders than there are.
    """
    if config.probe == "layerwise":
        return [Cell("untrained")]
    settings = {"progressive": _progressive, "localized": _localized, "permutation": _permutations}[config.probe]
    found = list(settings(config, layers))
    return [Cell(**setting, size=size, seed=seed)
            for seed in config.grid.seeds for size in config.grid.sizes or (None,) for setting in found]


def _progressive(config: ProbeConfig, layers: int) -> Iterator[dict[str, Any]]:
    for kept in range(layers, -1, -1):
        yield {"variant": "progressive", "position": kept, "reinitialised": tuple(range(kept, layers))}


def _localized(config: ProbeConfig, layers: int) -> Iterator[dict[str, Any]]:
    width, every = config.grid.window, tuple(range(layers))
    if width > layers:
        raise UserError(f"grid.window {width} is wider than the encoder's {layers} layers")
    yield {"variant": "all"}
    windows = [(first, every[first : first + width]) for first in range(layers - width + 1)]
    for first, window in windows:
        yield {"variant": "reinitialised", "position": first, "reinitialised": window}
    if config.grid.inverse:
        yield {"variant": "none", "reinitialised": every}
        for first, window in windows:
            yield {"variant": "kept", "position": first,
                   "reinitialised": tuple(layer for layer in every if layer not in window)}


def _permutations(config: ProbeConfig, layers: int) -> Iterator[dict[str, Any]]:
    original = tuple(range(layers))
    wanted = config.grid.orders
    if wanted > math.factorial(layers) - 1:
        raise UserError(f"grid.orders {wanted}: {layers} layers have only {math.factorial(layers) - 1} other orders")
    yield {"variant": "original", "order": original}
    random = np.random.default_rng(config.grid.order_seed)
    orders: dict[tuple[int, ...], None] = {}
    while len(orders) < wanted:
        drawn = tuple(int(layer) for layer in random.permutation(layers))
        if drawn != original:
            orders.setdefault(drawn)
    for number, order in enumerate(orders, 1):
        yield {"variant": "permuted", "position": number, "order": order}


class CellStore:
    """Finished cells, one file each, written whole: a kill loses the running cell only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, cell: Cell) -> dict[str, Any] | None:
        """What `put` stored, or None; a damaged file counts as none."""
        file = self.folder / f"{cell.key}.json"
        if not file.is_file():
            return None
        try:
            values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            if values["run"] == cell.run and values["scores"]:
                return values
        except (ValueError, KeyError, TypeError):
            pass
        logger.warning("%s is damaged; its cell is run again", file)
        return None

    def put(self, cell: Cell, scores: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
        """Store a finished cell.

        Args:
            scores: items with ``metric`` and ``score`` in points, and for ``untrained`` ``layer`` and ``pooling``.
        """
        values = {"run": cell.run, "seconds": round(seconds, 3), "scores": scores}
        with atomic_file(self.folder / f"{cell.key}.json") as temporary:
            write_json(temporary, values)
        return values
