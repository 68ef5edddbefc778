"""Sweeps without training: what a space may say, and how results are shown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from distilface.config import build_config
from distilface.errors import UserError
from distilface.sweeping import SweepConfig, load_sweep
from distilface.training import TrainConfig

CONFIGS = Path(__file__).parents[2] / "configs" / "sweep"
BASE: dict[str, Any] = {"model": {"name": "m"}, "data": "text.txt", "eval": {"sts": "dev.tsv"}}
RATES = {"train.learning_rate": [1e-5, 3e-5, 1e-4]}


def sweep_config(sets: tuple[str, ...] = (), **values: Any) -> SweepConfig:
    config = build_config(SweepConfig, {"base": BASE, "space": RATES} | values, sets, "s.yaml")
    config.check()
    return config


def test_nested_and_dotted_keys_and_yaml_exponents_are_the_same_space() -> None:
    nested = sweep_config(space={"train": {"learning_rate": ["1e-5", "3e-5", 1e-4]}})
    assert nested.space == sweep_config().space
    by_set = sweep_config(sets=("space.train.learning_rate=[1e-5,3e-5,1e-4]",), space={"loss.symmetric": [True]})
    assert by_set.total == 3 and by_set.space["train.learning_rate"] == nested.space["train.learning_rate"]


def test_a_cell_becomes_a_configuration() -> None:
    config = sweep_config(space={**RATES, "loss.matryoshka": [[16], [8, 16]], "model.pooling": ["cls"]})
    run = config.resolve({"train.learning_rate": 3e-5, "loss.matryoshka": [8, 16], "model.pooling": "cls"}, seed=7)
    assert isinstance(run, TrainConfig)
    assert (run.train.learning_rate, run.loss.matryoshka, run.model.pooling) == (3e-5, (8, 16), "cls")
    assert run.train.seed == 7 and config.total == 6


@pytest.mark.parametrize(("values", "expected"), [
    ({"space": {"train.lerning_rate": [1]}}, "unknown key 'train.lerning_rate'; did you mean 'train.learning_rate'?"),
    ({"space": {"learning_rate": [1]}}, "did you mean 'train.learning_rate'?"),
    ({"space": {"loss": [1]}}, "'loss' is a section"),
    ({"space": {"eval.sts": ["a", "b"]}}, "'eval.sts' is what scores are made on"),
    ({"space": {"train.seed": [1, 2]}}, "list the seeds under seeds"),
    ({"space": {}}, "names keys to vary"),
    ({"space": {"train.batch_size": 32}}, "train.batch_size: got 32; it takes a list"),
    ({"space": {"train.batch_size": []}}, "at least one value"),
    ({"space": {"train.batch_size": [32, 32]}}, "train.batch_size: names 32 twice"),
    ({"space": {"train.batch_size": {"low": 2, "hgh": 8}}}, "unknown option 'hgh'; did you mean 'high'?"),
    ({"space": {"train.batch_size": {"low": 2}}}, "high is missing"),
    ({"space": {"train.learning_rate": {"low": 0, "high": 1, "log": True}}}, "starts above 0, got low 0"),
    ({"space": {"train.learning_rate": {"low": 2, "high": 1}}}, "low 2 is not below high 1"),
    ({"space": {"train.learning_rate": {"low": "a", "high": 1}}}, "low takes a number, got 'a'"),
    ({"space": {"train.learning_rate": {"low": 1, "high": 2, "log": True, "step": 1}}}, "log and step are both set"),
    ({"space": {"train.warmup_ratio": {"low": 0, "high": 0.5, "step": 0.2}}}, "step 0.2 does not lead from 0 to 0.5"),
    ({"space": {"train.batch_size": {"low": 2.5, "high": 8, "int": True}}}, "not all whole numbers"),
    ({"space": {"train.learning_rate": {"low": 1e-5, "high": 1e-3}}}, "learning_rate is a range, and sampler is grid"),
    ({"space": {"train.batch_size": {"low": 16, "high": 64}}, "sampler": "tpe", "trials": 2}, "add int: true"),
    ({"space": {"train.batch_size": {"low": 1, "high": 64, "int": True}}, "sampler": "tpe", "trials": 2},
     "space: train.batch_size: 1 is not allowed: batch_size 1 leaves no negatives"),
    ({"space": {"train.batch_size": [64, 1]}}, "space: train.batch_size: 1 is not allowed"),
    ({"space": {"model.pooling": ["cls", "meen"]}}, "model.pooling: unknown pooling 'meen'; did you mean 'mean'?"),
    ({"space": {"model.max_seq_length": [16, 64]}}, "train.max_length 32 is over model.max_seq_length 16"),
    ({"space": {"train.max_length": [16, 64], "model.max_seq_length": [32, 128]}},
     "space: train.max_length=64, model.max_seq_length=32: train.max_length 64 is over"),
    ({"trials": 2}, "trials is 2, but the grid has 3 cells"),
    ({"space": {f"train.{key}": list(range(1, 30)) for key in ("max_steps", "log_every", "save_every")}},
     "a grid of 24,389 cells"),
    ({"sampler": "tpe"}, "trials is not set"),
    ({"seeds": [1, 2, 1]}, "seeds names a seed twice"),
    ({"sampler": "gird"}, "sampler: Input should be 'grid', 'tpe' or 'random'"),
    ({"base": {key: BASE[key] for key in ("model", "data")}}, "base: eval.sts is not set"),
    ({"base": BASE | {"trian": {}}}, "base: unknown key 'trian'; did you mean 'train'?"),
    ({"base": "nowhere.yaml"}, "'nowhere.yaml' does not exist"),
    ({"method": "distill"}, "base: "),
])
def test_a_mistake_is_one_line_that_names_the_key(values: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        sweep_config(**values)
    assert expected in str(caught.value) and "\n" not in str(caught.value)


def test_base_is_found_beside_the_file_and_reached_by_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(BASE | {"train": {"max_steps": 5}}), encoding="utf-8")
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({"base": "base.yaml", "space": RATES}), encoding="utf-8")
    monkeypatch.chdir("/")
    config = load_sweep(tmp_path / "sweep.yaml", ["base.train.max_steps=9"])
    assert config.resolve({}).train.max_steps == 9


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda file: file.stem)
def test_shipped_sweeps_are_valid(file: Path) -> None:
    config = load_sweep(file)
    assert {"train.learning_rate", "loss.temperature", "train.batch_size", "model.pooling"} <= set(config.space)


def test_the_sweep_in_the_readme_is_one(tmp_path: Path) -> None:
    readme = (CONFIGS.parents[1] / "README.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```yaml\n(# sweep\.yaml\n.*?)```", readme, re.DOTALL)
    (tmp_path / "sweep.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(BASE), encoding="utf-8")
    config = load_sweep(tmp_path / "sweep.yaml", ["base.train.max_steps=500"])
    assert (config.total, config.resolve(config.example).train.max_steps) == (30, 500)


def test_reading_a_configuration_imports_neither_torch_nor_optuna() -> None:
    code = ("import sys, distilface.sweeping as s; s.SweepConfig, s.load_sweep\n"
            "print(sorted({'torch', 'transformers', 'optuna', 'matplotlib', 'scipy'} & set(sys.modules)))")
    environment = os.environ | {"PYTHONPATH": str(CONFIGS.parents[1])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_distilled_student_can_have_its_layers_varied_though_the_base_does_not_name_them() -> None:
    base = {"teacher": {"name": "t"}, "data": "text.txt", "eval": {"sts": "dev.tsv"}}
    config = sweep_config(method="distill", base=base, space={"student.layers": [2, 3]})
    assert [config.resolve({"student.layers": layers}, 1).student.layers for layers in (2, 3)] == [2, 3]
    with pytest.raises(UserError, match=r"space: student\.layers: 0 is not allowed"):
        sweep_config(method="distill", base=base, space={"student.layers": [2, 0]})


def test_plots_and_page_show_complete_and_pruned_trials() -> None:
    pytest.importorskip("optuna")
    from distilface.sweeping.plots import make_plots
    from distilface.sweeping.results import Row, Run, best_row
    from distilface.sweeping.summary import ranking, to_html, verdict

    config = sweep_config(space={**RATES, "model.pooling": ["cls", "mean"]}, seeds=[1, 2])

    def row(index: int, rate: float, pooling: str, state: str, *scores: float) -> Row:
        runs = tuple(Run(seed, score, 4, 1.5, ((0, 50.0), (2, score - 1), (4, score)))
                     for seed, score in enumerate(scores, 1))
        mean = sum(scores) / len(scores) if state == "complete" else None
        reason = "seed 1: loss is <nan>" if state == "failed" else None
        return Row(index, state, {"train.learning_rate": rate, "model.pooling": pooling}, runs, mean, reason, None)

    rows = [row(0, 1e-5, "cls", "complete", 60.0, 61.0), row(1, 1e-5, "mean", "complete", 71.0, 73.0),
            row(2, 3e-5, "cls", "pruned", 58.0), row(3, 1e-4, "mean", "failed"),
            row(4, 1e-4, "cls", "complete", 72.0, 72.0)]
    best = best_row(rows)
    assert best is not None and best.index == 1  # 72.00 twice: the first of equals
    assert verdict(rows).startswith("Trial 1 is best with a dev Spearman of 72.00, mean over 2 seeds")
    header, cells = ranking(config, rows)
    assert [cell[0] for cell in cells] == ["1", "4", "0", "2", "3"]
    assert dict(zip(header, cells[0], strict=True))["range over seeds"] == "2.00"
    assert dict(zip(header, cells[3], strict=True))["dev Spearman"] == "(58.00)"
    plots = make_plots(config, rows)
    assert [plot.name for plot in plots] == ["steps", "learning_rate", "pooling"]
    assert all(plot.png.startswith(b"\x89PNG") for plot in plots)
    assert plots[1].alt == ("Best score at each train.learning_rate: 1e-05: 72.00, 0.0001: 72.00. The best trial has "
                            "train.learning_rate=1e-05.")
    assert "mean: 72.00, cls: 72.00" in plots[2].alt or "cls: 72.00, mean: 72.00" in plots[2].alt
    page = to_html(config, rows, plots, Path("runs/sweep"))
    assert page.count("data:image/png;base64,") == 3 and "http" not in page and "loss is &lt;nan&gt;" in page
