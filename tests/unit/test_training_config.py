"""Every shipped configuration is valid, and every contradiction is refused by the key's name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from distilface.config import dump_config, load_config
from distilface.errors import UserError
from distilface.training.config import TrainConfig

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
BASE = ["model.name=some/model", "data.path=text.txt"]


@pytest.mark.parametrize("file", sorted((CONFIGS / "train").glob("*.yaml")), ids=lambda file: file.name)
def test_shipped_configurations(file: Path) -> None:
    config = load_config(TrainConfig, file)
    assert TrainConfig.model_validate(config.model_dump(mode="json")) == config


def test_the_final_setting_of_the_paper() -> None:
    config = load_config(TrainConfig, CONFIGS / "train" / "distilface.yaml")
    assert (config.model.name, config.model.pooling) == ("distilbert-base-uncased", "mean_last4")
    loop = config.train
    assert (loop.max_length, loop.batch_size, loop.learning_rate, loop.max_steps) == (32, 128, 1e-5, 20000)
    assert config.loss.temperature == 0.05
    assert config.data[0].data_files == "wiki1m_for_simcse.txt"


@pytest.mark.parametrize(("sets", "named"), [
    (["train.max_steps=10", "train.epochs=1"], "max_steps"),
    (["train.warmup_steps=10", "train.warmup_ratio=0.1"], "warmup_ratio"),
    (["eval.patience=3"], "eval.sts"),
    (["eval.patience=3", "eval.sts=dev.tsv", "eval.keep=last"], "keep"),
    (["loss.hard_negative_weight=1"], "hard_negative_weight"),
    (["train.batch_size=1"], "batch_size"),
    (["train.max_length=64", "model.max_seq_length=32"], "train.max_length"),
    (["data.kind=triplets", "data.columns=[a, b]"], "columns"),
    (["loss.temperature=0"], "loss.temperature"),
    (["train.precision=int8"], "train.precision"),
    (["model.head=mlp"], "model.head"),
    (["train.learning_rat=1"], "learning_rate"),
    (["data.kinds=pairs"], "'kind'"),
])
def test_contradictions_name_the_key(sets: list[str], named: str) -> None:
    with pytest.raises(UserError) as caught:
        load_config(TrainConfig, sets=BASE + sets)
    assert named in str(caught.value) and "\n" not in str(caught.value)


def test_one_source_and_many() -> None:
    assert [source.kind for source in load_config(TrainConfig, sets=BASE).data] == ["sentences"]
    two = "data=[{path: a.tsv, kind: groups}, {path: b.tsv, kind: triplets}]"
    many = load_config(TrainConfig, sets=["model.name=m", two, "loss.hard_negative_weight=1"])
    assert [source.kind for source in many.data] == ["groups", "triplets"]


def test_dumped_configuration_loads(tmp_path: Path) -> None:
    config = load_config(TrainConfig, sets=[*BASE, "train.learning_rate=2e-5", "eval.sts=dev.tsv"])
    (tmp_path / "c.yaml").write_text(dump_config(config))
    assert load_config(TrainConfig, tmp_path / "c.yaml") == config


def test_reading_a_configuration_does_not_import_torch() -> None:
    code = "import sys, distilface.training.config, distilface.training; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
