"""What the result may cost, and what "best" means among those that cost no more."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from distilface.errors import UserError

Preference = Literal["quality", "size", "latency"]
PREFERENCES = ("quality", "size", "latency")
_BYTES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_MILLISECONDS = {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3}


@dataclass(frozen=True)
class Budget:
    """Limits of one search; None is no limit.

    Attributes:
        size: bytes of the graph file.
        drop: Spearman points that may be lost on the dev pairs against the float32 model.
        latency: milliseconds, the median of a single short text (about 14 tokens).
        prefer: what is best among those within the limits: most ``quality``, least ``size`` or least ``latency``.
            Default: ``quality`` where size or latency is limited, ``size`` where only the loss is.
    """

    size: int | None = None
    drop: float | None = None
    latency: float | None = None
    prefer: Preference | None = None

    def __post_init__(self) -> None:
        if self.size is None and self.drop is None and self.latency is None:
            raise UserError("no budget: give at least one of --max-size (12MB), --max-drop (0.5 points) and "
                            "--max-latency (1ms)")
        if self.size is not None and self.size <= 0:
            raise UserError(f"--max-size is {self.size} bytes; allowed: above 0, for example 12MB")
        if self.drop is not None and not self.drop >= 0:
            raise UserError(f"--max-drop is {self.drop}; allowed: 0 or more, in Spearman points")
        if self.latency is not None and not self.latency > 0:
            raise UserError(f"--max-latency is {self.latency} ms; allowed: above 0, for example 1ms")
        if self.prefer is not None and self.prefer not in PREFERENCES:
            raise UserError(f"--prefer {self.prefer!r} is unknown; allowed: {', '.join(PREFERENCES)}")

    @property
    def preference(self) -> Preference:
        return self.prefer or ("size" if self.size is None and self.latency is None else "quality")

    def broken(self, size: int, drop: float, latency: float) -> dict[str, float]:
        """By how much each broken limit is exceeded, as a fraction of it; of a limit of 0, in points."""
        found = {}
        for name, limit, value in (("size", self.size, size), ("drop", self.drop, drop),
                                   ("latency", self.latency, latency)):
            if limit is not None and not value <= limit:
                found[name] = (value - limit) / (limit or 1.0)
        return found


def parse_size(text: str) -> int:
    """``12MB`` (10^6), ``11.5MiB`` (2^20) or a number of bytes."""
    number, unit = _parts(text, "--max-size", "12MB, 900kB or 11.5MiB", _BYTES, "b")
    return int(number * unit)


def parse_latency(text: str) -> float:
    """``1ms``, ``800us`` or ``0.02s`` as milliseconds; a bare number is milliseconds."""
    number, unit = _parts(text, "--max-latency", "1ms, 800us or 0.02s", _MILLISECONDS, "ms")
    return number * unit


def _parts(text: str, flag: str, examples: str, units: dict[str, float] | dict[str, int],
           default: str) -> tuple[float, float]:
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-zµ]*)\s*", text)
    unit = units.get(found[2].lower() or default) if found else None
    if found is None or unit is None:
        raise UserError(f"{flag} got {text!r}; it takes a number and a unit, for example {examples}")
    return float(found[1]), float(unit)
