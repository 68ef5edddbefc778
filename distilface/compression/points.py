"""Measured points: how they are kept, which of them are the Pareto front, and which one is the answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distilface.artifact import atomic_file
from distilface.compression.budget import Budget
from distilface.errors import UserError
from distilface.tokenizer import write_json


@dataclass(frozen=True)
class Point:
    """One graph and what it costs.

    Attributes:
        slug, words: see `Candidate`. ``base``: the slug of its base.
        variant: its name in a bundle.
        size: bytes of the graph file; ``folder``: of everything that is shipped with it.
        rows: words in the table. ``layers``: how many.
        dev: Spearman in points on the dev pairs; ``drop``: lost against the float32 model, with the 95 % paired
            bootstrap interval ``drop_low`` to ``drop_high``.
        latency: median milliseconds of a single short text.
        batch_invariant: no vector depends on its neighbours.
        integer_matmuls, matmuls: products on integers, of all with a weight.
        commands: what makes it, one command a line; their folders are below the search's.
    """

    slug: str
    base: str
    words: str
    variant: str
    size: int
    folder: int
    rows: int
    layers: int
    dev: float
    drop: float
    drop_low: float
    drop_high: float
    latency: float
    batch_invariant: bool
    integer_matmuls: int
    matmuls: int
    commands: tuple[str, ...]

    def write(self, file: Path) -> None:
        """Keep the point for the next run."""
        with atomic_file(file) as temporary:
            write_json(temporary, asdict(self))

    @classmethod
    def read(cls, file: Path) -> Point:
        """A point that an earlier run kept."""
        try:
            values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            return cls(**{**values, "commands": tuple(values["commands"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UserError(f"{str(file)!r} is damaged ({error}); remove it to measure that point again") from None

    def breaks(self, budget: Budget) -> dict[str, float]:
        """The limits it breaks, see `Budget.broken`."""
        return budget.broken(self.size, self.drop, self.latency)


def front(points: Iterable[Point]) -> list[Point]:
    """Those that no other point beats in size and dev Spearman at once, from small to large."""
    found: list[Point] = []
    for point in sorted(points, key=lambda item: (item.size, -item.dev)):
        if not found or point.dev > found[-1].dev:
            found.append(point)
    return found


def best(points: Iterable[Point], budget: Budget) -> Point | None:
    """The best point within the budget; None where there is none."""
    inside = [point for point in points if not point.breaks(budget)]
    keys = {"quality": lambda point: (-point.dev, point.size), "size": lambda point: (point.size, -point.dev),
            "latency": lambda point: (point.latency, -point.dev)}
    return min(inside, key=keys[budget.preference], default=None)


def nearest(points: Iterable[Point], budget: Budget) -> Point | None:
    """The point whose broken limits are exceeded by the smallest fractions, the loss in points counted as it is."""
    return min(points, key=lambda point: sum(point.breaks(budget).values()), default=None)


def binding(points: Sequence[Point], budget: Budget) -> str:
    """What stands in the way, in words: the limits without which some measured point would do."""
    alone = [name for name in ("size", "drop", "latency")
             if getattr(budget, name) is not None
             and any(set(point.breaks(budget)) <= {name} for point in points)]
    return " or ".join(alone) if alone else "no single limit alone"
