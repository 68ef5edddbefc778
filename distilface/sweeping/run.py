"""`distilface sweep`: from a space of settings to the best one, by one worker or many."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import optuna
from optuna.trial import TrialState

from distilface.artifact import atomic_file, check_output
from distilface.config import dump_config, read_yaml
from distilface.errors import GateError, UserError
from distilface.evaluation import load_scored
from distilface.sweeping.config import SweepConfig
from distilface.sweeping.plots import make_plots
from distilface.sweeping.results import (
    TRIALS_FOLDER,
    WORKERS_FOLDER,
    Row,
    best_row,
    keep_best,
    read_rows,
    write_tables,
)
from distilface.sweeping.study import (
    ATTEMPT,
    check_same_plan,
    current,
    hidden,
    is_lost,
    mend,
    open_study,
    places,
    queue_again,
)
from distilface.sweeping.summary import to_html
from distilface.sweeping.trial import News, Objective, TrialFailed, TrialVoid
from distilface.sweeping.workers import Presence

CONFIG_FILE, SUMMARY_FILE, PLOTS_FOLDER = "sweep_config.yaml", "summary.html", "plots"
_POLL = 1.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Status:
    """How far the sweep is, over all workers, and how far this worker's trial (None before its first evaluation)."""

    finished: int
    total: int
    best: Row | None
    news: News | None


@dataclass(frozen=True)
class SweepResult:
    """What was found: every setting that was started, and the best (None if none is complete)."""

    out: Path
    rows: tuple[Row, ...]
    best: Row | None


def sweep(config: SweepConfig, out: str | Path, progress: Callable[[Status], None] | None = None) -> SweepResult:
    """Train and score the settings of a space, and write tables, plots, the best configuration and the best model.

    Started again on the same ``out`` (or storage), it goes on: finished trials are never run again, those of a process
    that died are queued again. Started while it runs, it shares the work. It returns when every trial is finished,
    those of other workers included.

    ``out`` holds trials.csv, curves.csv, best.yaml, plots/*.png, summary.html, sweep_config.yaml, the model ``best``,
    and unless ``config.storage`` says otherwise sweep.db, Optuna's storage.

    Raises:
        UserError: on a setting, text or storage that can't be used, before any training; and where the first trial
            to end can't be run at all.
        GateError: when every trial failed.
    """
    config.check()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("a sweep runs each trial in one process, and this is one of several of torchrun's; start "
                        "distilface sweep once for each worker instead")
    base = config.resolve(config.example)
    assert base.eval.sts is not None
    load_scored(base.eval.sts)
    out = Path(out)
    fresh = not out.exists()
    _enter(config, out, [source.path for source in base.data])
    try:
        study = open_study(config, out)
    except UserError:
        if fresh:
            shutil.rmtree(out)
        raise
    presence = Presence(out / WORKERS_FOLDER)
    quiet = logging.getLogger("distilface.training")
    level = quiet.level
    quiet.setLevel(logging.WARNING)  # what every trial does again is no news
    try:
        _work(study, config, out, presence, progress or (lambda status: None))
        presence.tidy()
    finally:
        quiet.setLevel(level)
        presence.close()
        rows = read_rows(study, config)
        write_tables(out, config, rows)
    _finish(out, config, rows)
    best = best_row(rows)
    if best is None:
        reason = next((row.reason for row in rows if row.reason), "none is complete")
        raise GateError(f"no trial of {len(rows)} succeeded; trial {rows[0].index if rows else 0}: {reason}; see "
                        f"{str(out / 'trials.csv')!r}")
    return SweepResult(out, tuple(rows), best)


def _enter(config: SweepConfig, out: Path, sources: list[str]) -> None:
    """Make the folder, or make sure that it is this sweep's."""
    file = out / CONFIG_FILE
    if not file.is_file():
        if out.is_dir() and any(out.iterdir()):
            raise UserError(f"output folder {str(out)!r} is not empty and holds no sweep to go on with; choose another "
                            "--out")
        check_output(out, False, sources)
        out.parent.mkdir(parents=True, exist_ok=True)
        # Made beside and renamed, so that a second worker finds no folder or a whole one.
        fresh = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".partial", dir=out.parent))
        try:
            fresh.chmod(0o755)
            (fresh / CONFIG_FILE).write_text(_dump(config), encoding="utf-8", newline="\n")
            fresh.rename(out)
        except OSError:
            if not file.is_file():  # not because another worker was faster
                raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    stored = SweepConfig.model_validate(read_yaml(file))
    check_same_plan(stored.plan, config.plan, str(out))
    if stored.name != config.name or (stored.storage or "") != hidden(config.storage or ""):
        raise UserError(f"{str(out)!r} belongs to sweep {stored.name!r} in storage {stored.storage!r}, not to "
                        f"{config.name!r} in {hidden(config.storage or '')!r}; choose another --out")
    with atomic_file(file) as temporary:
        temporary.write_text(_dump(config), encoding="utf-8", newline="\n")


def _dump(config: SweepConfig) -> str:
    """The configuration without the storage's password."""
    return dump_config(config.model_copy(update={"storage": config.storage and hidden(config.storage)}))


def _work(study: optuna.Study, config: SweepConfig, out: Path, presence: Presence,
          progress: Callable[[Status], None]) -> None:
    """Run trials until none is left, then wait for those of other workers."""
    def tell(news: News | None) -> None:
        rows = read_rows(study, config)
        finished = sum(row.state in ("complete", "pruned", "failed") for row in rows)
        progress(Status(finished, config.total, best_row(rows), news))

    objective = Objective(config, out, presence.name, tell)
    while True:
        mend(study, config, presence)
        tell(None)
        trials = study.get_trials(deepcopy=False)
        wanted = [trial.state for index, trial in current(trials).items() if index < config.total]
        fresh = sum(ATTEMPT not in trial.user_attrs for trial in trials)
        if TrialState.WAITING in wanted or fresh < config.total:
            _run_one(study, objective)
            keep_best(out, config, study)
            write_tables(out, config, read_rows(study, config))
        elif TrialState.RUNNING in wanted:
            time.sleep(_POLL)
        else:
            return


def _run_one(study: optuna.Study, objective: Objective) -> None:
    """One trial of Optuna's choice. What interrupts it puts its setting back into the queue."""
    objective.number = None
    try:
        study.optimize(objective, n_trials=1, catch=(TrialFailed, TrialVoid), gc_after_trial=True)
    except (Exception, KeyboardInterrupt) as error:
        trials = study.get_trials(deepcopy=False)
        ours = [trial for trial in trials if trial.number == objective.number]
        if isinstance(error, ValueError) and ours and ours[0].state.is_finished():
            return  # Optuna can't store a result: another worker took this one for dead and has queued it again
        for trial in ours:
            if is_lost(trial):
                index, attempt = places(trials)[trial.number]
                logger.warning("trial %d is queued again: the same command goes on with it", index)
                queue_again(study, trial, index, attempt, died=False)
        raise


def _finish(out: Path, config: SweepConfig, rows: list[Row]) -> None:
    """Plots, page, and no leftovers."""
    plots = make_plots(config, rows)
    for plot in plots:
        with atomic_file(out / PLOTS_FOLDER / f"{plot.name}.png") as file:
            file.write_bytes(plot.png)
    with atomic_file(out / SUMMARY_FILE) as file:
        file.write_text(to_html(config, rows, plots, out), encoding="utf-8", newline="\n")
    if not any(row.state in ("running", "waiting") for row in rows):
        shutil.rmtree(out / TRIALS_FOLDER, ignore_errors=True)
