"""Where what was computed once is kept for the next run."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str, asked: str | None = None) -> Path:
    """Folder ``name`` in ``asked``, else in ``$DISTILFACE_CACHE``, else in ``~/.cache/distilface``; may not exist."""
    return Path(asked or os.environ.get("DISTILFACE_CACHE") or Path.home() / ".cache" / "distilface") / name
