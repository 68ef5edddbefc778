"""The trials in Optuna's storage: which setting each one has, who runs it, and what happens to those left behind.

A setting has an index from 0. A trial that a sampler made takes the next one: its index is the number of such trials
before it, which every worker counts alike, so no two workers ever share a setting. (Optuna's own `GridSampler` can hand
out a cell twice when two workers meet at the end of the grid, or when a trial was repeated.) A setting whose worker
died is queued again as a trial that names index and attempt; of several with the same attempt the first one counts, so
it does no harm if two workers queue it at once.
"""

from __future__ import annotations

import datetime
import logging
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import sqlalchemy
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from distilface.errors import UserError
from distilface.sweeping.config import SweepConfig
from distilface.sweeping.space import Choices, Setting, Values, cells, label
from distilface.sweeping.workers import Presence

HEARTBEAT, GRACE = 30, 120
"""Seconds between two signs of life in the storage, and after which a worker that gives none is given up."""
CREATION_ATTEMPTS = 5
INDEX, ATTEMPT, DEATHS, WORKER, RUNS, REASON, PLACE = (
    "index", "attempt", "deaths", "worker", "runs", "reason", "place")
"""User attributes of a trial."""
_PLAN = "plan"

logger = logging.getLogger(__name__)


def open_study(config: SweepConfig, out: Path) -> optuna.Study:
    """The study of this sweep, made by the first worker.

    Raises:
        UserError: a storage that can't be opened, or that holds another sweep of this name.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    optuna.logging.disable_default_handler()
    url = config.storage or f"sqlite:///{(out / 'sweep.db').resolve().as_posix()}"
    engine: dict[str, Any] = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {"pool_pre_ping": True}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            study = _first_or_joined(lambda: optuna.create_study(
                study_name=config.name, storage=optuna.storages.RDBStorage(
                    url, engine_kwargs=engine, heartbeat_interval=HEARTBEAT, grace_period=GRACE),
                direction="maximize", load_if_exists=True, sampler=PlannedSampler(config), pruner=_pruner(config)))
        except (ImportError, sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.OptunaError) as error:
            shown = hidden(url)
            why = " ".join(str(error).split()).replace(url, shown)[:200]
            raise UserError(f"storage {shown!r} can't be used ({type(error).__name__}: {why}); it takes a database URL "
                            "such as sqlite:///sweep.db or postgresql://user:password@host/database") from None
    stored = study.user_attrs.get(_PLAN)
    if stored is None:
        study.set_user_attr(_PLAN, config.plan)
    else:
        check_same_plan(stored, config.plan, f"sweep {config.name!r} in {hidden(url)}")
    return study


def _first_or_joined(create: Callable[[], optuna.Study]) -> optuna.Study:
    """Create a study, again where another worker set up the same new database at that moment: then it is there."""
    for attempt in range(CREATION_ATTEMPTS - 1):
        try:
            return create()
        except (optuna.exceptions.StorageInternalError, sqlalchemy.exc.IntegrityError,
                sqlalchemy.exc.OperationalError) as error:
            if isinstance(error, sqlalchemy.exc.OperationalError) and "already exists" not in str(error):
                raise
        time.sleep(0.1 * 2**attempt)
    return create()


def hidden(url: str) -> str:
    """A database URL without its password."""
    try:
        return sqlalchemy.engine.make_url(url).render_as_string(hide_password=True)
    except sqlalchemy.exc.ArgumentError:
        return url


def check_same_plan(stored: Any, plan: Any, where: str) -> None:
    """Refuse to go on with a sweep over something else."""
    before, now = dict(_leaves(stored)), dict(_leaves(plan))
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            raise UserError(f"can't go on: {where} has {key} {before.get(key)!r}, and now it is {now.get(key)!r}; set "
                            "it back, or start another sweep with another --out (and another name where they share a "
                            "storage)")


def _leaves(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in _leaves(item, f"{prefix}.{key}" if prefix else key)]
    return [(prefix, value)]


def _pruner(config: SweepConfig) -> optuna.pruners.BasePruner:
    if config.pruner == "none":
        return optuna.pruners.NopPruner()
    return optuna.pruners.MedianPruner(n_startup_trials=config.pruner_startup, n_warmup_steps=config.pruner_warmup)


class PlannedSampler(optuna.samplers.BaseSampler):
    """The cell of a grid that belongs to a trial's index; or Optuna's sampler, seeded by the index.

    So workers never draw alike, and a sweep that was interrupted draws what it would have drawn.
    """

    def __init__(self, config: SweepConfig) -> None:
        self._config = config
        self._cells = list(cells(config.space)) if config.sampler == "grid" else []
        self._cell: Setting = {}
        self._inner: optuna.samplers.BaseSampler | None = None

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        index = places(study.get_trials(deepcopy=False))[trial.number][0]
        if self._cells:
            self._cell = self._cells[index % len(self._cells)]  # an index over the end is given up before it is used
            return
        seed = int(np.random.SeedSequence([self._config.seed, index]).generate_state(1)[0])
        if self._config.sampler == "tpe":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                self._inner = optuna.samplers.TPESampler(
                    seed=seed, n_startup_trials=self._config.sampler_startup, constant_liar=True)
        else:
            self._inner = optuna.samplers.RandomSampler(seed)
        self._inner.before_trial(study, trial)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {} if self._inner is None else self._inner.infer_relative_search_space(study, trial)

    def sample_relative(self, study: optuna.Study, trial: FrozenTrial,
                        search_space: dict[str, BaseDistribution]) -> dict[str, Any]:
        return {} if self._inner is None else self._inner.sample_relative(study, trial, search_space)

    def sample_independent(self, study: optuna.Study, trial: FrozenTrial, param_name: str,
                           param_distribution: BaseDistribution) -> Any:
        if self._inner is None:
            return label(self._cell[param_name])
        return self._inner.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(self, study: optuna.Study, trial: FrozenTrial, state: TrialState,
                    values: Sequence[float] | None) -> None:
        if self._inner is not None:
            self._inner.after_trial(study, trial, state, values)


def suggest(trial: optuna.Trial, space: dict[str, Values]) -> Setting:
    """The setting of a trial."""
    setting: Setting = {}
    for key, values in space.items():
        if isinstance(values, Choices):
            setting[key] = values.value(trial.suggest_categorical(key, values.labels()))
        elif values.int:
            setting[key] = trial.suggest_int(key, int(values.low), int(values.high), step=int(values.step or 1),
                                             log=values.log)
        else:
            setting[key] = trial.suggest_float(key, values.low, values.high, step=values.step, log=values.log)
    return setting


def places(trials: Sequence[FrozenTrial]) -> dict[int, tuple[int, int]]:
    """Index and attempt by trial number."""
    found: dict[int, tuple[int, int]] = {}
    fresh = 0
    for trial in sorted(trials, key=lambda item: item.number):
        if ATTEMPT in trial.user_attrs:
            found[trial.number] = (trial.user_attrs[INDEX], trial.user_attrs[ATTEMPT])
        else:
            found[trial.number] = (fresh, 0)
            fresh += 1
    return found


def current(trials: Sequence[FrozenTrial]) -> dict[int, FrozenTrial]:
    """The trial that counts, by index: the last attempt, and the first of those that say they are it."""
    latest: dict[int, tuple[int, FrozenTrial]] = {}
    numbers = places(trials)
    for trial in sorted(trials, key=lambda item: item.number):
        index, attempt = numbers[trial.number]
        if index not in latest or attempt > latest[index][0]:
            latest[index] = (attempt, trial)
    return {index: latest[index][1] for index in sorted(latest)}


def is_lost(trial: FrozenTrial) -> bool:
    """Whether a trial ended without a result or a reason: its process did."""
    return trial.state == TrialState.FAIL and REASON not in trial.user_attrs


def queue_again(study: optuna.Study, trial: FrozenTrial, index: int, attempt: int, died: bool) -> None:
    """Queue a setting once more, with what was finished of it."""
    kept = {name: trial.user_attrs[name] for name in (RUNS,) if name in trial.user_attrs}
    study.add_trial(optuna.trial.create_trial(
        state=TrialState.WAITING, params=trial.params, distributions=trial.distributions,
        intermediate_values=trial.intermediate_values,
        user_attrs={**kept, INDEX: index, ATTEMPT: attempt + 1, DEATHS: trial.user_attrs.get(DEATHS, 0) + died}))


def mend(study: optuna.Study, config: SweepConfig, presence: Presence) -> None:
    """Give up the trials whose workers died, and queue their settings again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        optuna.storages.fail_stale_trials(study)
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        worker = trial.user_attrs.get(WORKER)
        started = trial.datetime_start
        silent = worker is None and started is not None and (
            datetime.datetime.now() - started > datetime.timedelta(seconds=5 * GRACE))
        if silent or (worker is not None and presence.is_dead(worker)):
            study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
    trials = study.get_trials(deepcopy=False)
    numbers = places(trials)
    for index, trial in current(trials).items():
        if index < config.total and is_lost(trial) and trial.user_attrs.get(DEATHS, 0) < config.retries:
            logger.info("trial %d was left behind by a process that ended; it is queued again", index)
            queue_again(study, trial, index, numbers[trial.number][1], died=True)
