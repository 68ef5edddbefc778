"""One trial: its setting trained once with every seed, its dev scores reported as they come."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna
from optuna.exceptions import TrialPruned, UpdateFinishedTrialError

from distilface.distillation import DistillConfig, distill
from distilface.errors import DistilfaceError, UserError
from distilface.sweeping.config import SweepConfig, describe
from distilface.sweeping.results import run_folder
from distilface.sweeping.space import Setting
from distilface.sweeping.study import PLACE, REASON, RUNS, WORKER, current, places, suggest
from distilface.training import TrainConfig, TrainResult, train
from distilface.training.resume import RUN_FILE
from distilface.training.trainer import find_checkpoint


class TrialFailed(Exception):
    """The trial counts as failed, its reason noted; the sweep goes on."""


class TrialVoid(Exception):
    """The trial is not wanted: another one has its place, or there are enough."""


@dataclass(frozen=True)
class News:
    """How far a trial is: ``step`` of ``steps``, and the dev Spearman there."""

    index: int
    seed: int
    step: int
    steps: int
    score: float


class Objective:
    """What Optuna calls for each trial.

    Args:
        tell: called after each dev evaluation.
    """

    def __init__(self, config: SweepConfig, out: Path, worker: str, tell: Callable[[News], None]) -> None:
        self._config = config
        self._out = out
        self._worker = worker
        self._tell = tell
        self.number: int | None = None

    def __call__(self, trial: optuna.Trial) -> float:
        """Mean dev Spearman over the seeds, in points.

        Raises:
            TrialPruned, TrialFailed, TrialVoid: what became of the trial instead.
            UserError: a mistake that the first trial shows, so likely of every trial.
        """
        self.number = trial.number
        trials = trial.study.get_trials(deepcopy=False)
        index = places(trials)[trial.number][0]
        if index >= self._config.total or current(trials)[index].number != trial.number:
            raise TrialVoid
        try:
            trial.set_user_attr(WORKER, self._worker)
            trial.set_user_attr(PLACE, str(self._out.resolve()))
            return self._score(trial, index, suggest(trial, self._config.space))
        except UpdateFinishedTrialError:  # given up for dead by another worker, which runs it again
            raise TrialVoid from None

    def _score(self, trial: optuna.Trial, index: int, setting: Setting) -> float:
        runs: list[dict[str, Any]] = list(trial.user_attrs.get(RUNS, ()))
        for seed in self._config.seeds or (self._config.resolve(setting).train.seed,):
            if seed in {run["seed"] for run in runs}:  # finished before an interruption
                continue
            curve: dict[int, float] = {}
            start = time.perf_counter()
            ended = TrialPruned()
            try:
                result = self._train(trial, index, setting, seed, curve, decides=not runs)
                curve = dict(result.dev)
            except TrialPruned as error:
                ended = error
                result = None
            except UpdateFinishedTrialError:
                raise
            except (DistilfaceError, RuntimeError, MemoryError) as error:
                if isinstance(error, UserError) and self._nothing_ended(trial):
                    raise UserError(f"trial {index} ({describe(setting)}): {error}") from error
                kind = "" if isinstance(error, DistilfaceError) else f"{type(error).__name__}: "
                trial.set_user_attr(REASON, f"seed {seed}: {kind}{' '.join(str(error).split())}"[:1000])
                raise TrialFailed from error
            steps = [(score, -step) for step, score in curve.items() if step > 0]
            score, step = max(steps)
            runs.append({"seed": seed, "score": score, "best_step": -step,
                         "seconds": time.perf_counter() - start, "curve": sorted(curve.items())})
            trial.set_user_attr(RUNS, runs)
            if result is None:
                raise ended
        return fmean(run["score"] for run in runs)

    def _train(self, trial: optuna.Trial, index: int, setting: Setting, seed: int, curve: dict[int, float],
               decides: bool) -> TrainResult:
        reported = set(trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values)

        def on_evaluation(step: int, steps: int, score: float) -> None:
            curve[step] = score
            self._tell(News(index, seed, step, steps, score))
            if not decides or step == 0:  # the score before training says nothing about the setting
                return
            if step not in reported:
                reported.add(step)
                trial.report(score, step)
            if step < steps and trial.should_prune():
                raise TrialPruned

        config = self._config.resolve(setting, seed)
        folder = run_folder(self._out, index, seed)
        resume = _can_go_on(folder)
        if isinstance(config, DistillConfig):
            return distill(config, folder, resume, overwrite=True, progress=False, on_evaluation=on_evaluation)
        assert isinstance(config, TrainConfig)
        return train(config, folder, resume, overwrite=True, progress=False, on_evaluation=on_evaluation)

    def _nothing_ended(self, trial: optuna.Trial) -> bool:
        others = trial.study.get_trials(deepcopy=False)
        return not any(other.user_attrs.get(RUNS) or other.user_attrs.get(REASON) for other in others)


def _can_go_on(folder: Path) -> bool:
    """Whether an interrupted run of this folder left a checkpoint; without one, its leftovers are removed."""
    work = folder.with_name(f"{folder.name}.work")
    try:
        if (work / RUN_FILE).is_file():
            find_checkpoint(work, 1)
            return True
    except UserError:
        pass
    shutil.rmtree(work, ignore_errors=True)
    return False
