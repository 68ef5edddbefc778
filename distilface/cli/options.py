"""Types of flags that several verbs share."""

# typer reads annotations at run time, so nothing here is postponed.

from pathlib import Path
from typing import Annotated, Optional

import typer

from distilface.errors import UserError

# Under Python 3.10 typer shows ``X | None`` badly in its help; Optional reads well everywhere.
Text = Optional[str]  # noqa: UP045
Number = Optional[int]  # noqa: UP045
File = Optional[Path]  # noqa: UP045
Names = Optional[list[str]]  # noqa: UP045
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the output if it exists.")]
Sets = Annotated[Optional[list[str]], typer.Option(  # noqa: UP045
    "--set", help="SECTION.KEY=VALUE, over file and flags; repeat for more.")]


def numbers(text: str, flag: str) -> list[int]:
    """``1,3,5`` as numbers."""
    try:
        return [int(item) for item in text.split(",")]
    except ValueError:
        raise UserError(f"{flag} got {text!r}; it takes numbers separated by commas, for example 1,3,5") from None
