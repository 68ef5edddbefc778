"""distilface: train a small sentence encoder, compress it, prove it, ship it.

The names at the door are loaded on first use, so importing the package stays fast and free of torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distilface.lazy import loader

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

__getattr__ = loader(__name__, _HOME)
