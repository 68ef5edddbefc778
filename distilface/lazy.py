"""Names of a package that are loaded on first use, so that importing it stays fast and free of what they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def loader(package: str, home: Mapping[str, str], check: Callable[[str], None] | None = None) -> Callable[[str], Any]:
    """A package's ``__getattr__`` (PEP 562).

    Args:
        home: the module of each name.
        check: called with the name before its module is loaded; raises where that can't work.
    """

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(home)}")
        if check is not None:
            check(name)
        return getattr(import_module(home[name]), name)

    return load
