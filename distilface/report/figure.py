"""How every picture looks, and the PNG of a figure."""

from __future__ import annotations

import io
from typing import Any

# Okabe & Ito's colours, which differ for colour-blind readers too, less the yellow that fades on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7F6FC0", "#8C8C8C")
INK, SOFT, GRID = "#1d2733", "#8c96a0", "#d9dfe5"
WIDTH, DPI = 6.4, 150  # inches, dots an inch


def style(ink: str = INK, grid: str = GRID) -> dict[str, Any]:
    """Matplotlib's settings, in these colours."""
    return {
        "font.family": "sans-serif", "font.size": 11, "axes.edgecolor": grid, "axes.labelcolor": ink,
        "text.color": ink, "xtick.color": ink, "ytick.color": ink, "grid.color": grid, "grid.linewidth": 0.8,
        "axes.grid": True, "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False,
        "legend.frameon": False, "xtick.major.size": 0, "ytick.major.size": 0, "axes.titlesize": 12,
        "axes.titleweight": "bold", "axes.titlelocation": "left",
    }


def png(figure: Any) -> bytes:
    """The picture's bytes, the same for the same figure."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=DPI, metadata={"Software": None})
    return stream.getvalue()


def room(axes: Any, axis: str = "y") -> None:
    """Never less than a point of Spearman across: noise must not look like a cliff."""
    low, high = (axes.get_ylim if axis == "y" else axes.get_xlim)()
    missing = 1.0 - (high - low)
    if missing > 0:
        (axes.set_ylim if axis == "y" else axes.set_xlim)(low - missing / 2, high + missing / 2)
    axes.ticklabel_format(axis=axis, useOffset=False)
