"""Sweeps of a two-layer encoder: outputs, the best configuration, pruning, failures, kills, several workers."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from distilface.cli import run
from distilface.errors import GateError, UserError
from distilface.sweeping import load_sweep
from distilface.training import trainer as training
from tests.tiny import CORPUS

optuna = pytest.importorskip("optuna")

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
Make = Callable[..., Path]


@pytest.fixture()
def make(tmp_path: Path, checkpoint: Path) -> Make:
    """Write a sweep's YAML over 33 sentences and 12 scored pairs; returns its path."""
    text, dev = tmp_path / "text.txt", tmp_path / "dev.tsv"
    text.write_text("\n".join(f"{CORPUS[index % 10]} {index}" for index in range(33)))
    rows = [f"{CORPUS[i % 10]}\t{CORPUS[(i * i) % 10]} now\t{(i * 7) % 5}" for i in range(12)]
    dev.write_text("\n".join(["sentence1\tsentence2\tscore", *rows]))

    def write(space: dict[str, Any], train: dict[str, Any] | None = None, base: dict[str, Any] | None = None,
              **values: Any) -> Path:
        loop = {"batch_size": 8, "max_steps": 6, "tensorboard": False, "device": "cpu", **(train or {})}
        start = base or {"model": {"name": str(checkpoint)}}
        file = tmp_path / "sweep.yaml"
        file.write_text(yaml.safe_dump({
            "base": {**start, "data": str(text), "train": loop, "eval": {"sts": str(dev), "every_steps": 2}},
            "space": space, **values}, sort_keys=False))
        return file

    return write


def start(file: Path, out: Path) -> Any:
    from distilface.sweeping import sweep

    return sweep(load_sweep(file), out)


def table(out: Path) -> list[dict[str, str]]:
    with (out / "trials.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def process(file: Path, out: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "distilface", "sweep", "--config", str(file), "--out", str(out)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def trials(out: Path) -> list[Any]:
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{out / 'sweep.db'}")
    return list(study.get_trials(deepcopy=False))


def test_a_grid_from_the_command_line_and_what_it_leaves(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                         capsys: pytest.CaptureFixture[str]) -> None:
    file = make({"train.learning_rate": [1e-3, 1e-2], "model.pooling": ["cls", "mean_last4"]})
    out = tmp_path / "out"
    command = ["sweep", "--config", str(file), "--out", str(out)]
    assert run(command) == 0
    shown = capsys.readouterr().out
    assert {path.name for path in out.iterdir() if not path.name.startswith(".")} == {
        "best", "best.yaml", "curves.csv", "plots", "summary.html", "sweep.db", "sweep_config.yaml", "trials.csv"}
    assert {path.name for path in (out / "plots").iterdir()} == {"steps.png", "learning_rate.png", "pooling.png"}
    rows = table(out)
    assert [(row["trial"], row["state"]) for row in rows] == [
        ("0", "complete"), ("1", "failed"), ("2", "complete"), ("3", "failed")]
    assert "reads 4 layers" in rows[1]["reason"]  # the encoder has two layers and the embedding output
    best = max((row for row in rows if row["dev_spearman"]), key=lambda row: float(row["dev_spearman"]))
    assert f"Trial {best['trial']} is best" in shown and str(out / "best") in shown
    assert run(["train", "--config", str(out / "best.yaml"), "--out", str(tmp_path / "again")]) == 0
    log = json.loads((tmp_path / "again" / "train_log.json").read_text(encoding="utf-8"))
    scores = {entry["step"]: entry["spearman"] for entry in log["dev"]}
    assert scores[int(best["best_step"])] == float(best["dev_spearman"])
    assert (out / "best" / "model.safetensors").read_bytes() == (tmp_path / "again" / "model.safetensors").read_bytes()

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("a finished trial was run again")

    monkeypatch.setattr("distilface.sweeping.trial.train", never)
    before = (out / "trials.csv").read_bytes()
    assert run(command) == 0
    assert (out / "trials.csv").read_bytes() == before
    make({"train.learning_rate": [1e-3], "model.pooling": ["cls"]})
    assert run(command) == 2
    assert "can't go on" in capsys.readouterr().err


def test_a_folder_that_another_worker_writes_is_left_alone(make: Make, tmp_path: Path) -> None:
    """Its name starts with a dot until it is complete."""
    from distilface.sweeping.results import keep_best

    file, out = make({"train.learning_rate": [1e-3]}), tmp_path / "out"
    start(file, out)
    unfinished = out / "trials" / ".0000-seed-0-abc"
    unfinished.mkdir(parents=True)
    keep_best(out, load_sweep(file), optuna.load_study(study_name="sweep", storage=f"sqlite:///{out / 'sweep.db'}"))
    assert unfinished.is_dir()


def test_a_mistake_of_the_first_trial_ends_the_sweep_and_can_be_put_right(make: Make, tmp_path: Path) -> None:
    file = make({"train.learning_rate": [1e-3]})
    text = (tmp_path / "text.txt").rename(tmp_path / "elsewhere.txt")
    with pytest.raises(UserError, match=r"trial 0 \(train\.learning_rate=0\.001\): no such file"):
        start(file, tmp_path / "out")
    text.rename(tmp_path / "text.txt")
    assert [row.state for row in start(file, tmp_path / "out").rows] == ["complete"]


def test_bad_runs_are_stopped_by_their_dev_scores(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Median of the trials before at step 2 is 60, then 61: 55 is below, 70 is not."""
    script = iter([50.0, 60.0, 61.0, 62.0,  50.0, 55.0,  50.0, 70.0, 59.0, 58.0])
    monkeypatch.setattr("distilface.training.run.dev_score", lambda model, dev: next(script))
    steps = []
    plain = training.ContrastiveTrainer.compute_loss

    def count(self: Any, *args: Any, **kwargs: Any) -> Any:
        steps.append(self.args.learning_rate)
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(training.ContrastiveTrainer, "compute_loss", count)
    file = make({"train.learning_rate": [1e-3, 1e-4, 1e-5]}, pruner_startup=1)
    result = start(file, tmp_path / "out")
    assert [row.state for row in result.rows] == ["complete", "pruned", "complete"]
    assert Counter(steps) == {1e-3: 6, 1e-4: 2, 1e-5: 6}
    assert result.best.index == 2 and (result.best.score, result.best.best_run.best_step) == (70.0, 2)
    pruned = table(tmp_path / "out")[1]
    assert (pruned["state"], pruned["dev_spearman"], pruned["best_step"], pruned["trial_mean"]) == (
        "pruned", "55.0", "2", "")
    assert next(script, None) is None


def test_a_diverged_trial_fails_with_its_reason_and_the_sweep_goes_on(make: Make, tmp_path: Path) -> None:
    file = make({"train.learning_rate": [1e38, 1e-3]}, {"max_steps": 4})
    result = start(file, tmp_path / "out")
    assert [row.state for row in result.rows] == ["failed", "complete"]
    assert result.rows[0].reason.startswith("seed 42: loss is nan at step")
    with pytest.raises(GateError, match=r"no trial of 1 succeeded; trial 0: seed 42: loss is nan"):
        start(make({"train.learning_rate": [1e38]}, {"max_steps": 4}), tmp_path / "none")


def test_a_killed_sweep_goes_on_as_if_nothing_had_happened(make: Make, tmp_path: Path) -> None:
    space = {"train.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}
    file = make(space, {"max_steps": 16}, sampler="random", trials=2, pruner="none")
    whole = start(file, tmp_path / "whole")
    out = tmp_path / "parts"
    worker = process(file, out)
    try:
        while not ((out / "trials" / "0001-seed-42.work" / "checkpoint-4").is_dir() and trials(out)[1].user_attrs):
            assert worker.poll() is None, worker.communicate()[0]
            time.sleep(0.02)
        worker.send_signal(signal.SIGKILL)
    finally:
        worker.kill()
        worker.communicate()
    first = trials(out)
    assert [trial.state.name for trial in first] == ["COMPLETE", "RUNNING"]
    parts = start(file, out)
    after = trials(out)
    assert [trial.state.name for trial in after] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert after[0].datetime_complete == first[0].datetime_complete
    assert [(row.setting, row.score, row.runs[0].curve) for row in parts.rows] == [
        (row.setting, row.score, row.runs[0].curve) for row in whole.rows]
    assert (out / "best" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "best" / "model.safetensors").read_bytes()


def test_two_workers_share_a_grid(make: Make, tmp_path: Path) -> None:
    file = make({"train.learning_rate": [1e-4, 1e-3], "loss.temperature": [0.05, 0.1]}, pruner="none")
    out = tmp_path / "out"
    other = process(file, out)
    try:
        while not (out / "sweep_config.yaml").is_file():
            assert other.poll() is None, other.communicate()[0]
            time.sleep(0.02)
        result = start(file, out)
        output = other.communicate(timeout=300)[0]
    finally:
        other.kill()
    assert other.returncode == 0, output
    done = trials(out)
    complete = [trial for trial in done if trial.state.name == "COMPLETE"]
    assert Counter(tuple(sorted(trial.params.items())) for trial in complete) == Counter(
        (("loss.temperature", temperature), ("train.learning_rate", rate))
        for rate in (1e-4, 1e-3) for temperature in (0.05, 0.1))
    assert len({trial.user_attrs["worker"] for trial in complete}) == 2
    assert not [trial for trial in done if trial.state.name == "FAIL" and trial.params]
    assert len(result.rows) == 4 and json.loads((out / "best" / "sweep_trial.json").read_text())["trial"] == (
        result.best.index)


def test_workers_that_start_at_once_make_one_study(make: Make, tmp_path: Path) -> None:
    """Four set up the same new database at the same moment; the losers of that race join in."""
    file = make({"loss.temperature": [0.05, 0.1]})
    code = ("import sys, time\nfrom pathlib import Path\nfrom distilface.sweeping import load_sweep\n"
            "from distilface.sweeping.study import open_study\nconfig = load_sweep(Path(sys.argv[1]))\n"
            "print('ready', flush=True)\ninput()\nprint(open_study(config, Path(sys.argv[2])).study_name)")
    command, pipe = [sys.executable, "-c", code, str(file), str(tmp_path)], subprocess.PIPE
    workers = [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(4)]
    for worker in workers:
        assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("\n")
        worker.stdin.flush()
    found = [worker.communicate(timeout=120) for worker in workers]
    assert [output for output, _ in found] == [f"{load_sweep(file).name}\n"] * 4, [error[-300:] for _, error in found]


def test_distillation_over_seeds_and_its_best_configuration(make: Make, tmp_path: Path, checkpoint: Path) -> None:
    teacher = {"name": str(checkpoint), "cache": str(tmp_path / "cache")}
    file = make({"student.layers": [1, 2]}, {"max_steps": 2}, {"teacher": teacher, "student": {"dropout": 0.1}},
                method="distill", seeds=[3, 4])
    result = start(file, tmp_path / "out")
    assert [(row.state, [item.seed for item in row.runs]) for row in result.rows] == [("complete", [3, 4])] * 2
    for row in result.rows:
        assert row.score == pytest.approx(sum(item.score for item in row.runs) / 2)
    assert run(["distill", "--config", str(tmp_path / "out" / "best.yaml"), "--out", str(tmp_path / "again")]) == 0
    config = yaml.safe_load((tmp_path / "again" / "distill_config.yaml").read_text(encoding="utf-8"))
    assert config["student"]["layers"] == result.best.setting["student.layers"]
    assert config["train"]["seed"] == result.best.best_run.seed


@pytest.mark.parametrize(("name", "narrow"), [
    ("distilface", ["space.model.pooling=[mean_last2]", "space.train.batch_size=[8]", "space.loss.temperature=[0.05]",
                    "space.train.learning_rate=[1e-3]"]),
    ("small", ["trials=1", "space.train.batch_size=[8]", "space.model.pooling=[cls]"]),
])
def test_shipped_sweeps_run(name: str, narrow: list[str], make: Make, tmp_path: Path, checkpoint: Path) -> None:
    from distilface.sweeping import sweep

    make({"train.batch_size": [8]})  # for its text and pairs
    config = load_sweep(ROOT / "configs" / "sweep" / f"{name}.yaml", [
        f"base.model.name={checkpoint}", f"base.data={{path: {tmp_path / 'text.txt'}}}",
        f"base.eval={{sts: {tmp_path / 'dev.tsv'}}}", "base.train.max_steps=2", "base.train.precision=fp32",
        "base.train.tensorboard=false", "base.train.device=cpu", *narrow])
    assert [row.state for row in sweep(config, tmp_path / "out").rows] == ["complete"]
