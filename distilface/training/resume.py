"""Going on with an interrupted run, and refusing to go on with another one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distilface.config import differences
from distilface.errors import UserError
from distilface.training.trainer import find_checkpoint

RUN_FILE = "run.json"


def enter(work: Path, processes: int, resume: bool, overwrite: bool) -> Path | None:
    """Clear or find the work of an earlier run; the checkpoint to go on from, if any."""
    if resume:
        if not (work / RUN_FILE).is_file():
            raise UserError(f"nothing to resume: {str(work)!r} does not exist; run without --resume")
        stored = json.loads((work / RUN_FILE).read_text(encoding="utf-8"))
        check_same_run({"processes": stored["processes"]}, {"processes": processes})
        return find_checkpoint(work, processes)
    if work.exists():
        if not overwrite:
            raise UserError(f"{str(work)!r} holds an interrupted run; pass --resume to go on, "
                            "or --overwrite to start over")
        if int(os.environ.get("RANK", "0")) == 0:
            shutil.rmtree(work)
    return None


def check_same_run(stored: Mapping[str, Any], run: Mapping[str, Any]) -> None:
    """Refuse to resume another run: its schedule, order of examples or negatives would differ."""
    for key, before, now in differences(json.loads(json.dumps(run)), stored):
        hint = "start as many processes as before" if key == "processes" else "set it back or start over (--overwrite)"
        raise UserError(f"can't resume: {key} was {before!r} in the interrupted run and is {now!r} now; {hint}")
