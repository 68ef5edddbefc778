"""Distillation of tiny encoders: what a student learns, from what, and that runs resume and split as in training."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from distilface.config import load_config
from distilface.distillation import DistillConfig, distill
from distilface.distillation.config import DistillLossConfig
from distilface.distillation.objective import DistillObjective
from distilface.distillation.tokens import TokenLosses
from distilface.encoder import SentenceEncoder
from distilface.errors import GateError, UserError
from distilface.parity import cosines
from distilface.training import TrainResult
from distilface.training.trainer import ContrastiveTrainer, PooledEncoder, gather_columns
from tests.tiny import CORPUS, tiny_checkpoint

pytestmark = pytest.mark.integration
Run = Callable[..., TrainResult]
ROOT = Path(__file__).resolve().parents[2]
TEXTS = [f"{CORPUS[index % 10]} {index}" for index in range(33)]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("teacher") / "model", "bert", layers=4)


@pytest.fixture()
def run(tmp_path: Path, teacher: Path) -> Run:
    """Distil a 4-layer BERT with 33 sentences in batches of 8."""
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))

    def start(*sets: str, out: str = "out", resume: bool = False, overwrite: bool = False) -> TrainResult:
        config = load_config(DistillConfig, sets=[
            f"teacher.name={teacher}", f"teacher.cache={tmp_path / 'cache'}", f"data.path={tmp_path / 'text.txt'}",
            "train.batch_size=8", "train.max_steps=6", "train.log_every=1", "train.learning_rate=1e-3",
            "train.tensorboard=false", *sets])
        return distill(config, tmp_path / out, resume=resume, overwrite=overwrite, progress=False)

    return start


def _fell(result: TrainResult, factor: float) -> bool:
    losses = [loss for _, loss in result.losses]
    return bool(np.mean(losses[-5:]) < factor * np.mean(losses[:5]))


def test_a_layer_dropped_student_comes_nearer_to_its_teacher(run: Run, teacher: Path, tmp_path: Path) -> None:
    result = run("student.keep_layers=[1, 3]", "student.dropout=0", "train.max_steps=60", "loss.similarity=1")
    assert _fell(result, 0.5)
    student = SentenceEncoder.load(tmp_path / "out")
    assert student.num_layers == 2
    start = run("student.keep_layers=[1, 3]", "train.max_steps=1", "train.learning_rate=1e-12", out="start")
    wanted = SentenceEncoder.load(teacher).encode(TEXTS)
    near, far = (cosines(SentenceEncoder.load(tmp_path / name).encode(TEXTS), wanted).mean()
                 for name in ("out", "start"))
    assert 1 - near < 0.5 * (1 - far) and start.steps == 1
    log = json.loads((tmp_path / "out" / "distill_log.json").read_text())
    assert log["steps"] == 60 and (tmp_path / "out" / "distill_config.yaml").is_file()
    assert not (tmp_path / "out.work").exists()


@pytest.mark.parametrize("sets", [
    ["loss.cosine=0", "loss.mse=1"], ["loss.cosine=0", "loss.similarity=1", "loss.matryoshka=[32, 8]"],
    ["loss.cosine=0", "loss.distribution=1"], ["loss.cosine=0", "loss.teacher_contrast=1", "loss.queue=16"],
    ["loss.contrastive=0.1", "train.precision=bf16"], ["loss.matryoshka=[32, 8]"],
    ["loss.cosine=0", "loss.hidden=1", "train.precision=bf16"], ["loss.cosine=0", "loss.attention=1"],
])
def test_every_loss_is_learned(run: Run, sets: list[str]) -> None:
    assert _fell(run("student.layers=2", "train.max_steps=60", *sets), 0.9)


@pytest.mark.parametrize(("hidden", "projection"), [(48, "pca"), (48, "learned"), (16, "learned")])
def test_widths_and_tokenizers_may_differ(run: Run, tmp_path: Path, hidden: int, projection: str) -> None:
    other = tiny_checkpoint(tmp_path / "roberta", "roberta", layers=2, hidden=hidden)
    student = tiny_checkpoint(tmp_path / "student", "distilbert", layers=2)
    result = run(f"teacher.name={other}", f"student.name={student}", "train.max_steps=80",
                 f"loss.projection={projection}", "loss.distribution=0.5", "loss.queue=16")
    assert _fell(result, 0.9)
    assert SentenceEncoder.load(tmp_path / "out").dim == 32
    assert not list((tmp_path / "out").glob("projection*"))  # it served training only


def test_groups_triplets_and_scored_pairs(run: Run, tmp_path: Path) -> None:
    (tmp_path / "groups.tsv").write_text("\n".join(f"light {i}\tlamp {i}\tmusic {i}" for i in range(16)))
    (tmp_path / "scored.tsv").write_text("\n".join(f"light {i}\tlamp {i}\t{i % 4}" for i in range(16)))
    sources = ", ".join(f"{{path: {tmp_path / name}, kind: {kind}}}" for name, kind in (
        ("groups.tsv", "groups"), ("groups.tsv", "triplets"), ("scored.tsv", "scored"), ("text.txt", "sentences")))
    result = run("student.layers=2", f"data=[{sources}]", "loss.contrastive=1", "loss.teacher_contrast=1",
                 "train.max_steps=20")
    assert np.isfinite([loss for _, loss in result.losses]).all()


@pytest.mark.parametrize("sets", [
    ["loss.projection=learned", "loss.teacher_contrast=1", "loss.queue=8"],
    ["loss.projection=pca", "loss.distribution=1", "loss.queue=8", "loss.contrastive=0.1"],
    ["loss.hidden=1", "loss.attention=1"],
])
def test_resume_continues_with_the_same_losses(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                               sets: list[str]) -> None:
    wide = tiny_checkpoint(tmp_path / "wide", "bert", layers=2, hidden=48)
    student = tiny_checkpoint(tmp_path / "student", layers=2)
    sets = [f"teacher.name={wide}", f"student.name={student}", "train.save_every=2", "train.max_steps=9", *sets]
    whole = run(*sets, out="whole")
    plain = ContrastiveTrainer.compute_loss

    def stop(self: ContrastiveTrainer, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 5:
            raise KeyboardInterrupt
        return plain(self, *args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ContrastiveTrainer, "compute_loss", stop)
        run(*sets, out="parts")
    other = tiny_checkpoint(tmp_path / "other", "bert", layers=2, hidden=48, seed=1)
    with pytest.raises(UserError, match=r"teacher\."):
        run(*sets, f"teacher.name={other}", out="parts", resume=True)
    parts = run(*sets, out="parts", resume=True)
    assert parts.losses == whole.losses
    vectors = [SentenceEncoder.load(tmp_path / name).encode(CORPUS) for name in ("whole", "parts")]
    assert (vectors[0] == vectors[1]).all()


def test_the_teacher_works_once(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = run("student.layers=2")
    (cached,) = (tmp_path / "cache" / "teacher").iterdir()
    with monkeypatch.context() as patch:
        patch.setattr("distilface.distillation.teacher.load_any", lambda *_: pytest.fail("the teacher was loaded"))
        assert run("student.layers=2", out="again").losses == first.losses
    cached.write_bytes(cached.read_bytes()[:1000])  # as a full disk or a killed copy leaves it
    assert run("student.layers=2", out="rebuilt").losses == first.losses


def test_a_bundle_or_its_vectors_as_teacher(run: Run, tiny_bundle: Path, checkpoint: Path, tmp_path: Path) -> None:
    from distilface.encoding import encode_to
    from distilface.runtime import Encoder

    student = f"student.name={checkpoint}"
    run(f"teacher.name={tiny_bundle}", "teacher.variant=int8", student)
    encoder = Encoder.load(tiny_bundle)
    with pytest.raises(UserError, match="is a bundle, which has no weights"):
        run(f"teacher.name={tiny_bundle}", "student.layers=1", out="none")
    whole = run(f"teacher.name={tiny_bundle}", student, out="model")
    encode_to(encoder, TEXTS, tmp_path / "v.npy")
    none = "teacher.name=null"
    found = run(none, f"teacher.vectors={tmp_path / 'v.npy'}", student, out="npy")
    np.testing.assert_allclose([x for _, x in found.losses], [x for _, x in whole.losses], rtol=1e-4)
    pytest.importorskip("pyarrow")
    encode_to(encoder, [*TEXTS, "unused"], tmp_path / "v.parquet")
    found = run(none, f"teacher.vectors={tmp_path / 'v.parquet'}", student, out="parquet")
    np.testing.assert_allclose([x for _, x in found.losses], [x for _, x in whole.losses], rtol=1e-4)


def test_selection_by_dev_and_nan(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f"{CORPUS[i % 10]}\t{CORPUS[(i * i) % 10]} now\t{(i * 7) % 5}" for i in range(12)]
    (tmp_path / "dev.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *rows]))
    scores = iter([50.0, 40.0, 45.0, 44.0])
    with monkeypatch.context() as patch:
        patch.setattr("distilface.training.run.dev_score", lambda *_: next(scores))
        assert run("student.layers=2", f"eval.sts={tmp_path / 'dev.tsv'}", "eval.every_steps=2").selected_step == 4
    plain = ContrastiveTrainer.compute_loss

    def poisoned(self: ContrastiveTrainer, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 3:
            next(self.encoder.parameters()).data[:] = float("nan")
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(ContrastiveTrainer, "compute_loss", poisoned)
    with pytest.raises(GateError, match="loss is nan at step 4"):
        run("student.layers=2", out="broken")
    assert not (tmp_path / "broken").exists()


def test_the_verb(tmp_path: Path, teacher: Path, capsys: pytest.CaptureFixture[str],
                  monkeypatch: pytest.MonkeyPatch) -> None:
    from distilface.cli import run as cli

    monkeypatch.setenv("DISTILFACE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    given = ["distill", "--teacher", str(teacher), "--data", str(tmp_path / "text.txt"), "--steps", "2",
             "--batch-size", "8", "--out", str(tmp_path / "out")]
    assert cli(given) == 2 and "student.name is not set" in capsys.readouterr().err
    assert cli([*given, "--keep-layers", "1,x"]) == 2 and "'1,x'" in capsys.readouterr().err
    assert cli([*given, "--keep-layers", "1,3"]) == 0 and "2 steps" in capsys.readouterr().out
    assert SentenceEncoder.load(tmp_path / "out").num_layers == 2
    assert cli(["distill"]) == 2 and "--teacher MODEL" in capsys.readouterr().err


LOSS = DistillLossConfig(similarity=1, distribution=1, teacher_contrast=1, mse=0.1, contrastive=0.5, queue=8,
                         temperature=0.1, projection="learned", hidden=1, attention=1, matryoshka=(32, 8))
SIZES = (4, 3)  # uneven on purpose


def _step(folder: Path, share: range, sizes: list[int], wrap: Callable[[torch.nn.Module], torch.nn.Module]) -> Any:
    """Loss and gradients of examples ``share`` of seven pairs."""
    encoder = SentenceEncoder.load(folder / "student").train()
    texts = [*CORPUS[:7], *(f"{text} please" for text in CORPUS[:7])]
    vectors = np.random.default_rng(0).normal(size=(len(texts), 12)).astype(np.float32)
    teacher = SentenceEncoder.load(folder / "teacher")
    tokens = TokenLosses(LOSS, encoder, teacher, layer_map=(0, 2), heads=4, texts=texts)
    objective = DistillObjective.create(LOSS, vectors, encoder, texts, 0, tokens)
    inner = PooledEncoder(encoder, objective.projection)
    model = wrap(inner)
    feed = encoder.tokenizer.pad(encoder.tokenizer.encode_batch([texts[i + c] for c in (0, 7) for i in share]))
    batch = objective.inputs(np.stack([np.arange(7), np.arange(7, 14)], axis=1), 3)
    batch["exclude"] = torch.zeros(7, 7, dtype=torch.bool)
    out = model(*(torch.from_numpy(feed[name]) for name in ("input_ids", "attention_mask")))
    loss = objective(gather_columns(out, sizes, len(share)), batch)
    loss.backward()
    return loss.item(), {name: item.grad for name, item in inner.named_parameters() if item.grad is not None}


def _process(rank: int, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=(Path(folder) / "port").read_text())
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    share = range(SIZES[0]) if rank == 0 else range(SIZES[0], sum(SIZES))
    loss, gradients = _step(Path(folder), share, list(SIZES), DistributedDataParallel)
    torch.save({"loss": loss, "gradients": gradients}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_gradients_of_two_processes_are_those_of_one(tmp_path: Path) -> None:
    tiny_checkpoint(tmp_path / "student", layers=2, dropout=0.0)
    tiny_checkpoint(tmp_path / "teacher", layers=3, hidden=48)
    (tmp_path / "port").write_text(str(_free_port()))
    torch.multiprocessing.spawn(_process, args=(str(tmp_path),), nprocs=2)
    loss, gradients = _step(tmp_path, range(7), [7], lambda model: model)
    assert {"projection.projection.weight", "projection.tokens.map.weight"} <= gradients.keys()
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert found["loss"] == pytest.approx(loss, rel=1e-6)
        assert found["gradients"].keys() == gradients.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(found["gradients"][name], gradient, rtol=1e-4, atol=5e-6)


SCRIPT = """
import sys
from pathlib import Path
from distilface.config import load_config
from distilface.distillation import DistillConfig, distill
distill(load_config(DistillConfig, sets=sys.argv[2:]), Path(sys.argv[1]), progress=False)
"""


def test_two_processes_run_as_one(tmp_path: Path, teacher: Path) -> None:
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    (tmp_path / "run.py").write_text(SCRIPT)
    student = tiny_checkpoint(tmp_path / "student", layers=2, dropout=0.0, hidden=16)
    sets = [f"teacher.name={teacher}", f"teacher.cache={tmp_path / 'cache'}", f"student.name={student}",
            f"data.path={tmp_path / 'text.txt'}", "train.batch_size=8", "train.max_steps=6", "train.log_every=1",
            "train.learning_rate=1e-3", "train.tensorboard=false", "train.last_batch=keep", "loss.projection=learned",
            "loss.similarity=1", "loss.distribution=1", "loss.teacher_contrast=1", "loss.queue=8"]
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(_free_port())]
    for name, start in (("two", launch), ("one", [])):
        done = subprocess.run([sys.executable, *start, str(tmp_path / "run.py"), str(tmp_path / name), *sets],
                              env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}, capture_output=True,
                              text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
    losses = [[entry["loss"] for entry in json.loads((tmp_path / name / "distill_log.json").read_text())["losses"]]
              for name in ("one", "two")]
    # Adam's first steps follow the sign of a gradient, also of one that is nought up to rounding.
    np.testing.assert_allclose(losses[1], losses[0], rtol=3e-2)
    assert len(list((tmp_path / "cache" / "teacher").iterdir())) == 1
