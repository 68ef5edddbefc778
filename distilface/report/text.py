"""Numbers as a reader wants them: three significant digits, a unit, a sign where it matters."""

from __future__ import annotations

NONE = "–"
MEGABYTE = 1_000_000


def significant(value: float, digits: int = 3) -> str:
    """``value`` with at least ``digits`` significant digits, never in exponent form: 0.0712, 7.12, 71.2, 7,123."""
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".split("e")[1])  # of the rounded value: 9.996 is 10.0
    return f"{value:,.{max(0, digits - 1 - exponent)}f}"


def megabytes(size: float | None) -> str:
    """Bytes as decimal megabytes."""
    return NONE if size is None else f"{significant(size / MEGABYTE)} MB"


def milliseconds(value: float | None) -> str:
    """Milliseconds; from ten seconds on, seconds."""
    if value is None:
        return NONE
    return f"{significant(value)} ms" if value < 10_000 else f"{significant(value / 1000)} s"


def times(gain: float | None) -> str:
    """A gain over the baseline: ``3.95×``; far below 1, two significant digits: ``0.0013×``."""
    return NONE if gain is None else f"{factor(gain)}×"


def factor(gain: float) -> str:
    """The number of `times` alone."""
    return f"{gain:.2f}" if gain >= 0.1 else significant(gain, 2)


def rate(value: float | None) -> str:
    """Sentences a second."""
    return NONE if value is None else f"{significant(value)}/s"


def points(value: float | None) -> str:
    """A correlation times 100, two decimals."""
    return NONE if value is None else f"{value:.2f}"


def signed(value: float | None) -> str:
    """A change in points with its sign; a typographic minus."""
    return NONE if value is None else f"{value:+.2f}".replace("-", "−")


def cosine(value: float | None) -> str:
    """A cosine with four decimals, cut rather than rounded: 0.99996 must not read as 1."""
    return NONE if value is None else f"{min(1.0, int(value * 10_000 + 1e-6) / 10_000):.4f}"


def set_name(name: str) -> str:
    """An STS set as tables call it."""
    return {"STSBenchmark": "STS-B", "SICKRelatedness": "SICK-R"}.get(name, name)


def count(value: int | None) -> str:
    """A count of parameters: 22.7 M."""
    if value is None:
        return NONE
    return f"{significant(value / 1e6)} M" if value >= 1_000_000 else f"{value:,}"
