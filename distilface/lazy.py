"""Names of a package that are loaded on first use, so that importing it stays fast and free of what they need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from distilface.errors import require


class Need(NamedTuple):
    """Packages without which a name can't work, the extra that brings them, and what they are for."""

    modules: tuple[str, ...]
    extra: str
    purpose: str


def loader(package: str, home: Mapping[str, str], needs: Sequence[Need] = (),
           without: str | None = None) -> Callable[[str], Any]:
    """A package's ``__getattr__`` (PEP 562).

    Args:
        home: the module of each name.
        needs: asked for before a name's module is loaded, a `UserError` naming the extra where one is missing.
        without: the module whose names need nothing: the configuration.
    """

    def load(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(home)}")
        if home[name] != without:
            for need in needs:
                for module in need.modules:
                    require(module, need.extra, need.purpose)
        return getattr(import_module(home[name]), name)

    return load
