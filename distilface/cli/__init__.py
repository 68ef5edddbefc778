"""The command line: parse, call one function that is also the Python API, print. Heavy imports wait for their verb."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

import typer

from distilface.cli import compressing, making, measuring, probing, quantizing, serving, sweeping
from distilface.errors import FULL_DISK, DistilfaceError

app = typer.Typer(
    name="distilface", help="Train a small sentence encoder, compress it, prove it, ship it.",
    add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
for verb in (making.train, making.distill, sweeping.sweep, measuring.evaluate, probing.probe, making.shrink,
             making.export, quantizing.quantize, compressing.compress, measuring.verify, measuring.bench,
             serving.encode, serving.push, serving.pull, making.demo):
    app.command()(verb)


# typer carries its own copy of click in some versions and imports click in others; its public classes lead to both.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_ClickException: type[Exception] = _UsageError.__mro__[1]


@app.callback(invoke_without_command=True)
def _options(context: typer.Context,
             version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from distilface import __version__

        typer.echo(f"distilface {__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code: 0 done, 1 a failed check, 2 a user's mistake, 130 interrupted."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    logging.getLogger("distilface").setLevel(logging.INFO)
    try:
        # Not app(...): its wrapper turns an interrupt and a closed pipe into exits of its own.
        command = typer.main.get_command(app)
        with command.make_context("distilface", list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as done:
        return int(done.exit_code)
    except DistilfaceError as error:
        return _fail(str(error), error.exit_code)
    except _ClickException as error:
        place = getattr(error, "ctx", None)
        where = f" (see: {place.command_path} --help)" if place is not None else ""
        return _fail(f"{error.format_message()}{where}", 2)  # type: ignore[attr-defined]
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone; nothing more to say
        return 0
    except OSError as error:  # a full disk, a folder that vanished: what no check beforehand can rule out
        where = f" ({error.filename})" if error.filename else ""
        if error.errno in FULL_DISK:
            return _fail(f"{os.strerror(error.errno)}{where}; make room or write elsewhere, and run it again", 2)
        return _fail(f"{error.strerror or error}{where}", 2)
    return 0


def _fail(message: str, code: int) -> int:
    line = " ".join(message.split())
    print(f"distilface: error: {line}", file=sys.stderr)  # noqa: T201  the one place that speaks to the terminal
    return code
