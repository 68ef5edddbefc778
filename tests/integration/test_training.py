"""Training runs of a two-layer encoder: what is written, kept, refused and resumed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distilface.config import load_config
from distilface.encoder import SentenceEncoder
from distilface.errors import GateError, UserError
from distilface.training import TrainConfig, TrainResult, train
from distilface.training.trainer import ContrastiveTrainer
from tests.tiny import CORPUS, tiny_checkpoint

Run = Callable[..., TrainResult]


pytestmark = pytest.mark.integration


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


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve scored pairs."""
    file = tmp_path_factory.mktemp("dev") / "dev.tsv"
    rows = [f"{CORPUS[i % 10]}\t{CORPUS[(i * i) % 10]} now\t{(i * 7) % 5}" for i in range(12)]
    file.write_text("\n".join(["sentence1\tsentence2\tscore", *rows]))
    return file


def stop_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Kill the process, as a user would, in the middle of a step."""
    plain = ContrastiveTrainer.compute_loss

    def interrupt(self: ContrastiveTrainer, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step + 1 == step:
            raise KeyboardInterrupt
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(ContrastiveTrainer, "compute_loss", interrupt)


def test_training_learns_to_find_the_positive(run: Run) -> None:
    losses = [loss for _, loss in run("train.max_steps=60").losses]
    assert np.mean(losses[-10:]) < 0.5 * np.mean(losses[:5])


@pytest.mark.parametrize(("sets", "first"), [
    (["train.gradient_accumulation=2", "train.warmup_steps=2"], 4),
    (["train.gradient_accumulation=2", "train.gradient_caching=true", "train.chunk_tokens=50"], 4),
    (["model.head=train_only", "train.precision=bf16", "train.weight_decay=0.1"], 6),
    (["model.head=kept", "model.pooling=cls", "train.schedule=cosine"], 7),  # in the second epoch of 4 batches
])
def test_resume_continues_with_the_same_losses(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dev: Path,
                                               sets: list[str], first: int) -> None:
    sets = [*sets, f"eval.sts={dev}", "eval.every_steps=4", "train.save_every=2", "train.max_steps=9"]
    whole = run(*sets, out="whole")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_at(patch, first + 1)
        run(*sets, out="parts")
    assert not (tmp_path / "parts").exists()
    parts = run(*sets, out="parts", resume=True)
    assert parts.losses == whole.losses and parts.dev == whole.dev
    assert parts.selected_step == whole.selected_step
    vectors = [SentenceEncoder.load(tmp_path / name).encode(CORPUS) for name in ("whole", "parts")]
    assert (vectors[0] == vectors[1]).all()


def test_resume_refuses_another_run_and_a_missing_one(run: Run, monkeypatch: pytest.MonkeyPatch,
                                                      tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to resume"):
        run(resume=True)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_at(patch, 5)
        run("train.save_every=2")
    with pytest.raises(UserError, match="--resume to go on"):
        run("train.save_every=2")
    with pytest.raises(UserError, match=r"train\.learning_rate was 0\.001 .* is 0\.5"):
        run("train.save_every=2", "train.learning_rate=0.5", resume=True)
    with (tmp_path / "text.txt").open("a") as file:
        file.write("\none more")
    with pytest.raises(UserError, match=r"data\.0\.examples was 33"):
        run("train.save_every=2", resume=True)
    run("train.save_every=2", overwrite=True)


def test_a_half_written_checkpoint_is_passed_over(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = run("train.save_every=2", out="whole")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_at(patch, 5)
        run("train.save_every=2")
    (tmp_path / "out.work" / "checkpoint-4" / "trainer_state.json").write_text('{"glob')
    assert run("train.save_every=2", resume=True).losses == whole.losses


def test_checkpoints_are_encoders_and_hold_no_foreign_pickles(run: Run, monkeypatch: pytest.MonkeyPatch,
                                                              tmp_path: Path) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_at(patch, 5)
        run("train.save_every=2", "model.head=train_only")
    folder = tmp_path / "out.work" / "checkpoint-4"
    assert SentenceEncoder.load(folder).head is None
    pickled = {file.name for file in folder.iterdir() if file.suffix in (".pt", ".pth", ".bin")}
    assert pickled == {"optimizer.pt", "scheduler.pt", "rng_state.pth"}
    loaded = []
    plain = torch.load
    with monkeypatch.context() as patch:
        def spy(file: Any, *args: Any, **kwargs: Any) -> Any:
            loaded.append(kwargs.get("weights_only", True))
            return plain(file, *args, **kwargs)

        patch.setattr(torch, "load", spy)
        run("train.save_every=2", "model.head=train_only", resume=True)
    assert len(loaded) >= 3 and all(loaded)


@pytest.mark.parametrize(("method", "when", "said"), [
    ("compute_loss", "before", "loss is nan at step 4"),
    ("training_step", "after", "no finite numbers after step 4"),  # the loss was fine, what is to be saved is not
])
def test_nan_stops_at_once_and_keeps_the_last_good_checkpoint(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                                              method: str, when: str, said: str) -> None:
    plain = getattr(ContrastiveTrainer, method)

    def poisoned(self: ContrastiveTrainer, *args: Any, **kwargs: Any) -> Any:
        result = plain(self, *args, **kwargs) if when == "after" else None
        if self.state.global_step == 3:
            next(self.encoder.parameters()).data[:] = float("nan")
        return plain(self, *args, **kwargs) if when == "before" else result

    monkeypatch.setattr(ContrastiveTrainer, method, poisoned)
    with pytest.raises(GateError) as caught:
        run("train.save_every=2")
    assert said in str(caught.value) and "learning_rate" in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
    (kept,) = (tmp_path / "out.work").glob("checkpoint-*")
    assert kept.name == "checkpoint-2" and np.isfinite(SentenceEncoder.load(kept).encode(CORPUS)).all()


def test_a_learning_rate_that_explodes_is_named(run: Run, tmp_path: Path) -> None:
    with pytest.raises(GateError, match=r"learning_rate 1e\+38"):
        run("train.learning_rate=1e38", "train.max_grad_norm=0", "train.schedule=constant")
    assert not (tmp_path / "out").exists()


def test_the_best_dev_checkpoint_is_kept(run: Run, tmp_path: Path, dev: Path, monkeypatch: pytest.MonkeyPatch,
                                         caplog: pytest.LogCaptureFixture) -> None:
    scores = iter([50.0, 40.0, 45.0, 44.0])
    vectors = []

    def scripted(encoder: SentenceEncoder, _: Any) -> float:
        vectors.append(encoder.encode(CORPUS))
        return next(scores)

    monkeypatch.setattr("distilface.training.run.dev_score", scripted)
    with caplog.at_level(logging.WARNING):
        result = run(f"eval.sts={dev}", "eval.every_steps=2")
    assert result.dev == ((0, 50.0), (2, 40.0), (4, 45.0), (6, 44.0))
    assert (result.selected_step, result.dev_selected, result.dev_start) == (4, 45.0, 50.0)
    assert "fell from 50.00 to 45.00" in caplog.text
    kept = SentenceEncoder.load(tmp_path / "out").encode(CORPUS)
    assert np.allclose(kept, vectors[2], atol=1e-6) and not np.allclose(kept, vectors[3], atol=1e-4)


def test_the_last_checkpoint_is_kept_on_demand(run: Run, tmp_path: Path, dev: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    scores, vectors = iter([50.0, 60.0, 55.0, 54.0]), []

    def scripted(encoder: SentenceEncoder, _: Any) -> float:
        vectors.append(encoder.encode(CORPUS))
        return next(scores)

    monkeypatch.setattr("distilface.training.run.dev_score", scripted)
    result = run(f"eval.sts={dev}", "eval.every_steps=2", "eval.keep=last")
    assert (result.selected_step, result.dev_selected) == (6, 54.0)
    kept = SentenceEncoder.load(tmp_path / "out").encode(CORPUS)
    assert np.allclose(kept, vectors[3], atol=1e-6) and not np.allclose(kept, vectors[1], atol=1e-4)


def test_early_stopping(run: Run, dev: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([1.0, 5.0, 4.0, 6.0, 5.5, 5.9, 9.0])
    monkeypatch.setattr("distilface.training.run.dev_score", lambda *_: next(scores))
    result = run(f"eval.sts={dev}", "eval.every_steps=1", "eval.patience=2")
    assert result.steps == 5 and result.selected_step == 3


def test_the_last_step_is_evaluated_whatever_the_rhythm(run: Run, dev: Path) -> None:
    assert [step for step, _ in run(f"eval.sts={dev}", "eval.every_steps=4").dev] == [0, 4, 6]


def test_epochs_count_batches(run: Run) -> None:
    assert run("train.max_steps=null", "train.epochs=2").steps == 8  # 33 sentences: 4 batches of 8, one is dropped
    assert run("train.max_steps=null", "train.last_batch=keep", out="kept").steps == 4  # the 33rd joins a batch


@pytest.mark.parametrize("head", ["none", "train_only", "kept"])
def test_heads(run: Run, tmp_path: Path, head: str) -> None:
    run(f"model.head={head}", "train.max_steps=2")
    encoder = SentenceEncoder.load(tmp_path / "out")
    assert encoder.head_mode == ("kept" if head == "kept" else "none")
    assert not list((tmp_path / "out").glob("*head*"))


@pytest.mark.parametrize("pooling", ["mean_second_last", "concat_last4", "max_last2"])
def test_poolings_train(run: Run, checkpoint: Path, tmp_path: Path, pooling: str) -> None:
    if pooling == "concat_last4":
        checkpoint = tiny_checkpoint(tmp_path / "four", layers=4)
    result = run(f"model.name={checkpoint}", f"model.pooling={pooling}", "train.max_steps=2")
    assert np.isfinite([loss for _, loss in result.losses]).all()
    assert SentenceEncoder.load(tmp_path / "out").pooling == pooling


def test_mixture_of_sources(run: Run, tmp_path: Path) -> None:
    (tmp_path / "groups.tsv").write_text("\n".join(f"light {i}\tlamp {i}\tmusic {i}" for i in range(16)))
    groups, text = tmp_path / "groups.tsv", tmp_path / "text.txt"
    sources = f"[{{path: {text}}}, {{path: {groups}, kind: groups}}, {{path: {groups}, kind: triplets}}]"
    result = run(f"data={sources}", "train.max_steps=8", "loss.hard_negative_weight=0.5", "loss.symmetric=true")
    assert result.steps == 8 and np.isfinite([loss for _, loss in result.losses]).all()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_cached_gradients_train_the_same_model(run: Run, tmp_path: Path, precision: str) -> None:
    sets = ["train.chunk_tokens=50", "train.gradient_accumulation=2", f"train.precision={precision}",
            "loss.matryoshka=[8,32]"]
    plain = run(*sets, out="plain")
    cached = run(*sets, "train.gradient_caching=true", out="cached")
    np.testing.assert_allclose([loss for _, loss in cached.losses], [loss for _, loss in plain.losses], rtol=1e-3)
    vectors = [SentenceEncoder.load(tmp_path / name).encode(CORPUS) for name in ("plain", "cached")]
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-3)


def test_a_second_run_tokenises_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run(out="first")
    monkeypatch.setattr("distilface.training.token_cache.load_examples", lambda *_: pytest.fail("tokenised again"))
    assert run(out="second").losses == first.losses
