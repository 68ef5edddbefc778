"""Training runs of a two-layer encoder: what is written, kept, refused and resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from distilface.config import load_config
from distilface.encoder import SentenceEncoder
from distilface.errors import UserError
from distilface.training import TrainConfig, TrainResult, train
from distilface.training.objective import ContrastiveObjective
from distilface.training.trainer import PooledEncoder, gather_columns
from tests.tiny import CORPUS, tiny_checkpoint

Run = Callable[..., TrainResult]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "model", layers=2)


@pytest.fixture()
def run(tmp_path: Path, checkpoint: Path) -> Run:
    """Train on 33 short sentences in batches of 8."""
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"{CORPUS[index % 10]} {index}" for index in range(33)))

    def start(*sets: str, out: str = "out", resume: bool = False, overwrite: bool = False) -> TrainResult:
        config = load_config(TrainConfig, sets=[
            f"model.name={checkpoint}", f"data.path={text}", "train.batch_size=8", "train.max_steps=6",
            "train.log_every=1", "train.learning_rate=1e-3", "train.tensorboard=false", *sets])
        return train(config, tmp_path / out, resume=resume, overwrite=overwrite, progress=False)

    return start


def test_output_folder(run: Run, tmp_path: Path) -> None:
    result = run()
    assert result.steps == result.selected_step == 6 and result.dev == () and len(result.losses) == 6
    out = tmp_path / "out"
    encoder = SentenceEncoder.load(out)
    assert np.allclose(np.linalg.norm(encoder.encode(CORPUS), axis=1), 1, atol=1e-5)
    assert encoder.max_seq_length == 64  # the deployed limit, not the training length
    written = yaml.safe_load((out / "train_config.yaml").read_text())
    assert written["model"]["pooling"] == "mean_last" and written["train"]["precision"] == "fp32"
    log = json.loads((out / "train_log.json").read_text())
    assert log["data"][0]["examples"] == 33 and len(log["data"][0]["sha256"]) == 64
    assert [entry["step"] for entry in log["losses"]] == [1, 2, 3, 4, 5, 6] and log["selected_by"].startswith("last")
    assert not (tmp_path / "out.work").exists()
    with pytest.raises(UserError, match="not empty"):
        run()
    run(overwrite=True)


def test_two_views_differ_in_training_only(checkpoint: Path) -> None:
    encoder = SentenceEncoder.load(checkpoint)
    ids = encoder.tokenizer.encode_batch(CORPUS)
    feed = {name: torch.from_numpy(array) for name, array in encoder.tokenizer.pad(ids + ids).items()}
    model = PooledEncoder(encoder)
    for training, in ((True,), (False,)):
        model.train(training)
        views = torch.nn.functional.normalize(model(**feed), dim=-1).chunk(2)
        difference = (views[0] - views[1]).abs().amax(dim=1)
        assert (difference > 1e-3).all() if training else (difference < 1e-6).all()


def test_refusals(run: Run, tmp_path: Path, checkpoint: Path) -> None:
    with pytest.raises(UserError, match="fp16 needs a CUDA device"):
        run("train.precision=fp16", "train.device=cpu")
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="no CUDA device"):
            run("train.device=cuda")
    with pytest.raises(UserError, match="max_length 65 is over the 64"):
        run("train.max_length=65")
    dry = tiny_checkpoint(tmp_path / "dry", layers=2, dropout=0.0)
    with pytest.raises(UserError, match="no dropout"):
        run(f"model.name={dry}")
    with pytest.raises(UserError, match="no such file"):
        run("data.path=missing.txt")
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.work").exists()


def test_columns_are_split_and_the_objective_reads_them() -> None:
    torch.manual_seed(0)
    from distilface.losses import info_nce
    from distilface.training.config import LossConfig

    anchors, positives, negatives = torch.randn(3, 5, 4)
    exclude = torch.zeros(5, 10, dtype=torch.bool)
    columns = gather_columns(torch.cat([anchors, positives, negatives]), [5], 5)
    together = ContrastiveObjective(LossConfig(temperature=0.1))(columns, {"exclude": exclude})
    assert together.item() == pytest.approx(info_nce(anchors, positives, negatives, temperature=0.1).item())
