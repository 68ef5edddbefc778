"""The errors a user meets, each one line: what was received, what is allowed, what to do next.

Exit codes: 2 for a mistake the user can correct, 1 for a check that failed on its merits.
"""

from __future__ import annotations

import errno
import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

INSTALL = "pip install 'distilface[{extra}]'"
FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a disk or a quota that is full, and of a file that may not grow."""


class DistilfaceError(Exception):
    """Base of every error that ends a command with one line instead of a traceback."""

    exit_code = 1


class UserError(DistilfaceError):
    """A wrong argument, file, name or environment: the user can correct it. Exit code 2."""

    exit_code = 2


class GateError(DistilfaceError):
    """The work was done and its result is not good enough to ship. Exit code 1."""

    exit_code = 1


def first_fault(error: ValidationError) -> str:
    """Where the first value that does not fit stands, and why: ``subjects.0.size: Input should be ...``."""
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import ``module`` or raise a `UserError` naming the extra that brings it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        raise UserError(f"{purpose} needs the package '{missing}', which is not installed: "
                        f"{INSTALL.format(extra=extra)}") from error
