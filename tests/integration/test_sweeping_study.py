"""Workers around one storage: who gets which setting, what becomes of one left behind, and what is written."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from distilface.config import load_config
from distilface.errors import UserError
from distilface.sweeping import SweepConfig
from distilface.training import TrainConfig
from tests.unit.test_sweeping import RATES, sweep_config

optuna = pytest.importorskip("optuna")

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore:Heartbeat of storage")]


class Worker:
    """One process's view of a sweep whose trials take no time: it takes a setting, and finishes or loses it."""

    def __init__(self, config: SweepConfig, out: Path) -> None:
        from distilface.sweeping.study import open_study
        from distilface.sweeping.workers import Presence

        self.config = config
        self.study = open_study(config, out)
        self.presence = Presence(out / ".workers")

    def take(self) -> tuple[Any, int, dict[str, Any]]:
        """A trial, its index, its setting."""
        from distilface.sweeping.study import WORKER, places, suggest

        trial = self.study.ask()
        trial.set_user_attr(WORKER, self.presence.name)
        return trial, places(self.study.get_trials())[trial.number][0], suggest(trial, self.config.space)

    def finish(self, trial: Any, score: float = 1.0) -> None:
        from distilface.sweeping.study import PLACE, RUNS

        trial.set_user_attr(RUNS, [{"seed": 42, "score": score, "best_step": 2, "seconds": 0.5,
                                    "curve": [[0, 0.0], [2, score]]}])
        trial.set_user_attr(PLACE, "somewhere")
        self.study.tell(trial, score)

    def mend(self) -> None:
        from distilface.sweeping.study import mend

        mend(self.study, self.config, self.presence)

    def die(self) -> None:
        """As the system does: the file is unlocked, and stays."""
        self.presence._file.close()


def test_two_workers_and_a_death_give_each_cell_exactly_one_result(tmp_path: Path) -> None:
    config = sweep_config(space={**RATES, "model.pooling": ["cls", "mean"]})
    first, second = Worker(config, tmp_path), Worker(config, tmp_path)
    left = first.take()
    others = [second.take(), first.take()]
    first.die()
    for trial, *_ in others:
        second.finish(trial)  # the second of them: a result that came in just before the death
    second.mend()
    second.mend()
    third = Worker(config, tmp_path)
    third.mend()
    again = third.take()
    assert (again[1], again[2]) == (left[1], left[2]) == (0, {"train.learning_rate": 1e-5, "model.pooling": "cls"})
    rest = [again, second.take(), third.take(), second.take()]
    for trial, *_ in rest:
        third.finish(trial)
    done = [trial for trial in third.study.get_trials() if trial.state == optuna.trial.TrialState.COMPLETE]
    cells = Counter(tuple(trial.params.values()) for trial in done)
    assert len(cells) == 6 and set(cells.values()) == {1}
    states = Counter(trial.state for trial in third.study.get_trials())
    assert states == {optuna.trial.TrialState.COMPLETE: 6, optuna.trial.TrialState.FAIL: 1}


def test_a_setting_queued_by_two_workers_at_once_counts_once(tmp_path: Path) -> None:
    from distilface.sweeping.study import current, queue_again

    worker = Worker(sweep_config(), tmp_path)
    trial, index, _ = worker.take()
    worker.study.tell(trial, state=optuna.trial.TrialState.FAIL)
    lost = worker.study.get_trials()[0]
    queue_again(worker.study, lost, index, 0, died=True)
    queue_again(worker.study, lost, index, 0, died=True)
    assert [trial.number for trial in current(worker.study.get_trials()).values()] == [1]
    assert worker.take()[1] == 0  # the first of the two
    assert [worker.take()[0].number for _ in range(2)] == [2, 3]
    assert {place: trial.number for place, trial in current(worker.study.get_trials()).items()} == {0: 1, 1: 3}


def test_a_setting_whose_process_keeps_dying_is_given_up(tmp_path: Path) -> None:
    from distilface.sweeping.results import read_rows

    config = sweep_config(retries=1)
    for _ in range(2):
        worker = Worker(config, tmp_path)
        assert worker.take()[1] == 0
        worker.die()
        Worker(config, tmp_path).mend()
    (row,) = read_rows(worker.study, config)
    assert (row.state, row.reason) == ("failed", "its process ended 2 times")
    assert Worker(config, tmp_path).take()[1] == 1


def test_samplers_draw_by_index_whoever_asks(tmp_path: Path) -> None:
    config = sweep_config(space={"train.learning_rate": {"low": 1e-5, "high": 1e-3, "log": True},
                                 "train.batch_size": {"low": 2, "high": 64, "int": True}}, sampler="random", trials=4)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    alone = Worker(config, tmp_path / "a")
    drawn = [alone.take()[2] for _ in range(4)]
    assert len({str(setting) for setting in drawn}) == 4
    assert all(1e-5 <= item["train.learning_rate"] <= 1e-3 and 2 <= item["train.batch_size"] <= 64 for item in drawn)
    pair = [Worker(config, tmp_path / "b"), Worker(config, tmp_path / "b")]
    assert [pair[turn % 2].take()[2] for turn in range(4)] == drawn


def test_another_sweep_under_the_same_name_is_refused(tmp_path: Path) -> None:
    Worker(sweep_config(), tmp_path)
    with pytest.raises(UserError, match=r"can't go on: .* has space\.train\.learning_rate\.choices \[1e-05, 3e-05, "):
        Worker(sweep_config(space={"train.learning_rate": [1e-5]}), tmp_path)
    with pytest.raises(UserError, match=r"base\.train\.max_steps None, and now it is 5"):
        Worker(sweep_config(sets=("base.train.max_steps=5",)), tmp_path)


def test_a_storage_that_can_not_be_used_is_one_line_without_its_password() -> None:
    from distilface.sweeping.study import open_study

    for url in ("nonsense", "postgresql://me:secret@nowhere.invalid/db"):
        with pytest.raises(UserError, match=r"storage .* can't be used") as caught:
            open_study(sweep_config(storage=url), Path())
        assert "\n" not in str(caught.value) and "secret" not in str(caught.value)


def test_tables_are_tidy_and_the_best_configuration_is_one(tmp_path: Path) -> None:
    from distilface.sweeping.results import best_row, read_rows, write_tables

    config = sweep_config(space={**RATES, "model.pooling": ["cls", "mean"]})
    worker = Worker(config, tmp_path)
    for score in (60.0, 71.25, 71.25):
        worker.finish(worker.take()[0], score)
    worker.take()
    rows = read_rows(worker.study, config)
    best = best_row(rows)
    assert best is not None and best.index == 1  # the first of equals
    write_tables(tmp_path, config, rows)
    with (tmp_path / "trials.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["state"] for line in lines] == ["complete", "complete", "complete", "running"]
    assert (lines[1]["train.learning_rate"], lines[1]["model.pooling"], lines[1]["seed"], lines[1]["dev_spearman"],
            lines[1]["best_step"]) == ("1e-05", "mean", "42", "71.25", "2")
    assert (tmp_path / "curves.csv").read_text().splitlines()[:3] == [
        "trial,seed,step,dev_spearman", "0,42,0,0.0", "0,42,2,60.0"]
    assert load_config(TrainConfig, tmp_path / "best.yaml") == config.resolve(best.setting, 42)


def test_the_best_model_is_kept_and_the_others_are_not(tmp_path: Path) -> None:
    from distilface.sweeping.results import keep_best, run_folder

    worker = Worker(sweep_config(), tmp_path)
    for index, (score, kept) in enumerate(((70.0, "0"), (60.0, "0"), (80.0, "2"))):
        trial = worker.take()[0]
        folder = run_folder(tmp_path, index, 42)
        folder.mkdir(parents=True)
        (folder / "model").write_text(str(index))
        worker.finish(trial, score)
        keep_best(tmp_path, worker.config, worker.study)
        assert (tmp_path / "best" / "model").read_text() == kept
        assert list((tmp_path / "trials").iterdir()) == []
