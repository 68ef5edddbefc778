"""What the trials found: rows, two tidy tables, the winning configuration, and the model that is kept."""

from __future__ import annotations

import csv
import json
import logging
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from distilface.artifact import atomic_file
from distilface.config import dump_config
from distilface.sweeping.config import SweepConfig
from distilface.sweeping.space import Choices, Setting, label
from distilface.sweeping.study import DEATHS, PLACE, REASON, RUNS, current, is_lost
from distilface.sweeping.workers import taking_turns
from distilface.tokenizer import write_json

TRIALS_FILE, CURVES_FILE, BEST_FILE, MODEL_FOLDER = "trials.csv", "curves.csv", "best.yaml", "best"
WORKERS_FOLDER, TRIALS_FOLDER = ".workers", "trials"
_MARK = "sweep_trial.json"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """One training run.

    Attributes:
        score: dev Spearman in points of the step that was kept; for a run that was stopped, the best so far.
        curve: step and dev Spearman of every evaluation; step 0 is the model before training.
        seconds: of the run, evaluations included; of a run that was gone on with, since then.
    """

    seed: int
    score: float
    best_step: int
    seconds: float
    curve: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Row:
    """One setting.

    Attributes:
        state: ``complete``, ``pruned``, ``failed``, ``running`` or ``waiting``.
        score: mean dev Spearman over the seeds; only of a complete trial.
        reason: why it failed.
        place: the output folder that its model went to.
    """

    index: int
    state: str
    setting: Setting
    runs: tuple[Run, ...]
    score: float | None
    reason: str | None
    place: str | None

    @property
    def best_run(self) -> Run | None:
        """The run of the best seed."""
        return max(self.runs, key=lambda run: run.score, default=None)


_STATES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed",
           TrialState.RUNNING: "running", TrialState.WAITING: "waiting"}


def read_rows(study: optuna.Study, config: SweepConfig) -> list[Row]:
    """Every setting that was started, by index."""
    rows = []
    for index, trial in current(study.get_trials(deepcopy=False)).items():
        if trial.params and (not is_lost(trial) or trial.user_attrs.get(DEATHS, 0) >= config.retries):
            rows.append(_row(index, trial, config))
    return rows


def _row(index: int, trial: FrozenTrial, config: SweepConfig) -> Row:
    setting = {}
    for key, values in config.space.items():
        if key in trial.params:
            stored = trial.params[key]
            known = not isinstance(values, Choices) or stored in values.labels()
            setting[key] = values.value(stored) if known else stored
    runs = [Run(run["seed"], run["score"], run["best_step"], run["seconds"], tuple(map(tuple, run["curve"])))
            for run in trial.user_attrs.get(RUNS, ())]
    reason = trial.user_attrs.get(REASON)
    if trial.state == TrialState.FAIL and reason is None:
        reason = f"its process ended {trial.user_attrs.get(DEATHS, 0) + 1} times"
    score = fmean(run.score for run in runs) if trial.state == TrialState.COMPLETE else None
    return Row(index, _STATES[trial.state], setting, tuple(runs), score, reason, trial.user_attrs.get(PLACE))


def best_row(rows: Iterable[Row]) -> Row | None:
    """The complete trial with the best score, the first of equals."""
    return max((row for row in rows if row.score is not None), key=lambda row: (row.score or 0.0, -row.index),
               default=None)


def write_tables(out: Path, config: SweepConfig, rows: Sequence[Row]) -> None:
    """trials.csv (a line for each run), curves.csv (a line for each evaluation) and best.yaml."""
    trials: list[list[Any]] = []
    curves: list[list[Any]] = []
    for row in rows:
        values = [_cell(row.setting.get(key)) for key in config.space]
        for run in row.runs:
            trials.append([row.index, row.state, *values, run.seed, run.score, run.best_step, round(run.seconds, 1),
                           _cell(row.score), _cell(row.reason)])
            curves += [[row.index, run.seed, step, score] for step, score in run.curve]
        if not row.runs or row.state == "failed":
            trials.append([row.index, row.state, *values, "", "", "", "", "", _cell(row.reason)])
    _write_csv(out / TRIALS_FILE, ["trial", "state", *config.space, "seed", "dev_spearman", "best_step", "seconds",
                                   "trial_mean", "reason"], trials)
    _write_csv(out / CURVES_FILE, ["trial", "seed", "step", "dev_spearman"], curves)
    best = best_row(rows)
    if best is not None and best.best_run is not None:
        runs = f"mean over {len(best.runs)} seeds" if len(best.runs) > 1 else "one seed"
        header = f"# Trial {best.index} of a sweep: dev Spearman {best.score:.2f} ({runs}).\n"
        with atomic_file(out / BEST_FILE) as file:
            file.write_text(header + dump_config(config.resolve(best.setting, best.best_run.seed)), encoding="utf-8",
                            newline="\n")


def _cell(value: Any) -> Any:
    return "" if value is None else label(value)


def _write_csv(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    with atomic_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


def run_folder(out: Path, index: int, seed: int) -> Path:
    """Where a run of a trial is trained."""
    return out / TRIALS_FOLDER / f"{index:04d}-seed-{seed}"


def keep_best(out: Path, config: SweepConfig, study: optuna.Study) -> None:
    """Move the best model so far to ``best/``, and delete those of every other finished trial of this folder."""
    with taking_turns(out / WORKERS_FOLDER):
        rows = read_rows(study, config)
        best = best_row(rows)
        target, old = out / MODEL_FOLDER, out / f".{MODEL_FOLDER}.old"
        if best is not None and best.best_run is not None:
            source = run_folder(out, best.index, best.best_run.seed)
            if config.keep_model and source.is_dir():
                write_json(source / _MARK, {"trial": best.index, "seed": best.best_run.seed, "setting": best.setting,
                                            "dev_spearman": best.best_run.score})
                shutil.rmtree(old, ignore_errors=True)
                if target.exists():
                    target.rename(old)
                source.rename(target)
            elif target.is_dir() and _marked(target) != best.index:  # a worker with another folder has the best now
                shutil.rmtree(target, ignore_errors=True)
            shutil.rmtree(old, ignore_errors=True)
        done = {row.index for row in rows if row.state in ("complete", "pruned", "failed")}
        for folder in (out / TRIALS_FOLDER).glob("[0-9]*-seed-*"):  # a dot leads what a worker is still writing
            if int(folder.name.partition("-")[0]) in done:
                shutil.rmtree(folder, ignore_errors=True)


def _marked(folder: Path) -> int | None:
    try:
        return int(json.loads((folder / _MARK).read_text(encoding="utf-8"))["trial"])
    except (OSError, ValueError, KeyError):
        return None
