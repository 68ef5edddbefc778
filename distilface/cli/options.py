"""Types of flags that several verbs share."""

# typer reads annotations at run time, so nothing here is postponed.

from pathlib import Path
from typing import Annotated, Optional

import typer

# Under Python 3.10 typer shows ``X | None`` badly in its help; Optional reads well everywhere.
Text = Optional[str]  # noqa: UP045
Number = Optional[int]  # noqa: UP045
File = Optional[Path]  # noqa: UP045
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the output if it exists.")]
Sets = Annotated[Optional[list[str]], typer.Option(  # noqa: UP045
    "--set", help="SECTION.KEY=VALUE, over file and flags; repeat for more.")]
