"""The README says what is: generated tables, verbs that exist, flags that exist, files that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.tables import filled
from distilface.cli import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
            for line in block.replace("\\\n", " ").splitlines() if line.startswith("distilface ")]


def test_tables_are_what_the_result_files_say() -> None:
    assert filled(README) == README, "run: python -m benchmarks.tables"


def test_no_number_stands_outside_a_generated_table_that_looks_measured() -> None:
    prose = re.sub(r"<!-- table:.*?<!-- /table -->", "", README, flags=re.DOTALL)
    asked = re.sub(r"--max-(?:size|latency) \w+", "", prose)  # a limit that the user sets
    assert not re.findall(r"\d+(?:\.\d+)? ?(?:ms|sentences/s|MB)\b", asked)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_flag_exists(command: str) -> None:
    words = shlex.split(command.split(" #")[0])
    help_text = CliRunner().invoke(app, [words[1], "--help"], env={"COLUMNS": "200"}).output
    assert f"Usage: distilface {words[1]}" in help_text or f" {words[1]} [OPTIONS]" in help_text
    for flag in [word for word in words[2:] if word.startswith("--")]:
        assert flag in help_text, f"{flag} of {words[1]}"


def test_it_names_both_make_targets_and_they_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in ("demo", "test"):
        assert f"make {target}" in README
        assert f"\n{target}: " in makefile


def test_every_recipe_and_config_it_names_exists() -> None:
    for name in ("distilface.yaml", "simcse-unsup.yaml", "simcse-sup.yaml"):
        assert name in README
        assert (ROOT / "configs" / "train" / name).is_file()
    assert (ROOT / "benchmarks" / "gpu.sh").is_file()


def test_ci_calls_the_readmes_test_command() -> None:
    assert "\nmake test" in README
    assert "\nmake test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
