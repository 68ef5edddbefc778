"""distilface: train a small sentence encoder, compress it, prove it, ship it.

The names at the door are loaded on first use, so importing the package stays fast and free of torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distilface.errors import DistilfaceError, GateError, UserError
    from distilface.runtime import Encoder

__version__ = "0.1.0"
__all__ = ["DistilfaceError", "Encoder", "GateError", "UserError", "__version__"]

_HOME = {
    "Encoder": "distilface.runtime",
    "DistilfaceError": "distilface.errors",
    "UserError": "distilface.errors",
    "GateError": "distilface.errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'distilface' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_HOME[name]), name)
