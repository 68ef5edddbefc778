"""Two gloo processes against one: the same gradients, the same run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from distilface.encoder import SentenceEncoder
from distilface.losses import duplicate_mask
from distilface.training.config import LossConfig
from distilface.training.forward import PooledEncoder, gather_columns
from distilface.training.objective import ContrastiveObjective
from tests.tiny import CORPUS, tiny_checkpoint

pytestmark = pytest.mark.integration
ROOT = Path(__file__).resolve().parents[2]
LOSS = LossConfig(temperature=0.1, symmetric=True, hard_negative_weight=0.3)
SIZES = (4, 3)  # uneven on purpose


def _step(model: torch.nn.Module, encoder: SentenceEncoder, share: range, sizes: list[int]) -> float:
    """Backward pass of examples ``share`` of seven triplets, of which two share their anchor."""
    anchors = [*CORPUS[:6], CORPUS[0]]
    positives = [f"{text} please" for text in CORPUS[:7]]
    negatives = [f"never {text}" for text in CORPUS[3:10]]
    texts = [column[index] for column in (anchors, positives, negatives) for index in share]
    feed = encoder.tokenizer.pad(encoder.tokenizer.encode_batch(texts))
    same = np.array([[0, 10], [1, 11], [2, 12], [3, 13], [4, 14], [5, 15], [0, 16]])
    exclude = torch.from_numpy(duplicate_mask(same, np.arange(20, 27)))
    vectors = model(*(torch.from_numpy(feed[name]) for name in ("input_ids", "attention_mask")))
    loss = ContrastiveObjective(LOSS)(gather_columns(vectors, sizes, len(share)), {"exclude": exclude})
    loss.backward()
    return loss.item()


def _process(rank: int, folder: str, caching: bool) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=(Path(folder) / "port").read_text())
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.set_num_threads(1)
    encoder = SentenceEncoder.load(Path(folder) / "model").train()
    chunk_tokens = (24, 64)[rank] if caching else None  # unlike numbers of chunks
    model = DistributedDataParallel(PooledEncoder(encoder, chunk_tokens=chunk_tokens, caching=caching))
    share = range(SIZES[0]) if rank == 0 else range(SIZES[0], sum(SIZES))
    loss = _step(model, encoder, share, list(SIZES))
    gradients = {name: p.grad for name, p in encoder.named_parameters() if p.grad is not None}
    torch.save({"loss": loss, "gradients": gradients}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("caching", [False, True])
def test_gradients_equal_one_process(tmp_path: Path, caching: bool) -> None:
    tiny_checkpoint(tmp_path / "model", layers=2, dropout=0.0)
    (tmp_path / "port").write_text(str(_free_port()))
    torch.multiprocessing.spawn(_process, args=(str(tmp_path), caching), nprocs=2)
    encoder = SentenceEncoder.load(tmp_path / "model").train()
    loss = _step(PooledEncoder(encoder), encoder, range(7), [7])
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert found["loss"] == pytest.approx(loss, rel=1e-6)
        assert found["gradients"].keys() == {n for n, p in encoder.named_parameters() if p.grad is not None}
        for name, parameter in encoder.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(found["gradients"][name], parameter.grad, rtol=1e-4, atol=1e-6)


SCRIPT = """
import sys
from pathlib import Path
from distilface.config import load_config
from distilface.errors import UserError
from distilface.training import TrainConfig, train
from distilface.training.trainer import ContrastiveTrainer

out, resume, *sets = sys.argv[1:]
if sets[-1].startswith("stop="):
    step = int(sets.pop().removeprefix("stop="))
    plain = ContrastiveTrainer.compute_loss

    def stop(self, *args, **kwargs):
        if self.state.global_step == step:
            sys.exit(7)
        return plain(self, *args, **kwargs)

    ContrastiveTrainer.compute_loss = stop
try:
    train(load_config(TrainConfig, sets=sets), Path(out), resume=resume == "resume", progress=False)
except UserError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
"""


def _launch(tmp_path: Path, start: list[str], out: str, *sets: str,
            resume: bool = False) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "run_train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, *start, str(script), str(tmp_path / out), "resume" if resume else "fresh", *sets]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)


def _torchrun() -> list[str]:
    return ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(_free_port())]


def _losses(folder: Path) -> list[float]:
    return [entry["loss"] for entry in json.loads((folder / "train_log.json").read_text())["losses"]]


@pytest.fixture()
def sets(tmp_path: Path) -> list[str]:
    """Pairs without dropout, so that two processes can be compared with one; 35 in batches of 8, the last one of 3."""
    tiny_checkpoint(tmp_path / "model", layers=2, dropout=0.0)
    pairs = [f"{CORPUS[index % 10]} {index}\t{index} {CORPUS[index % 10]}" for index in range(35)]
    (tmp_path / "pairs.tsv").write_text("\n".join(pairs))
    dev = [f"{CORPUS[i % 10]}\t{CORPUS[(i * i) % 10]} now\t{(i * 7) % 5}" for i in range(12)]
    (tmp_path / "dev.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *dev]))
    return [f"model.name={tmp_path / 'model'}", f"data.path={tmp_path / 'pairs.tsv'}", "data.kind=pairs",
            "train.batch_size=8", "train.max_steps=8", "train.log_every=1", "train.last_batch=keep",
            "train.learning_rate=1e-3", "train.save_every=3", f"eval.sts={tmp_path / 'dev.tsv'}", "eval.every_steps=5"]


def test_two_processes_run_and_resume_as_one(tmp_path: Path, sets: list[str]) -> None:
    one = _launch(tmp_path, ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1"], "one", *sets)
    assert one.returncode == 0, one.stderr
    # On two processes with cached gradients as well; on one in one piece.
    sets += ["train.gradient_caching=true", "train.chunk_tokens=40"]
    stopped = _launch(tmp_path, _torchrun(), "two", *sets, "stop=4")
    assert stopped.returncode != 0 and (tmp_path / "two.work" / "checkpoint-3" / "rng_state_1.pth").is_file()
    refused = _launch(tmp_path, [], "two", *sets, resume=True)
    assert refused.returncode == 2 and "processes was 2" in refused.stderr
    two = _launch(tmp_path, _torchrun(), "two", *sets, resume=True)
    assert two.returncode == 0, two.stderr
    assert not (tmp_path / "two.work").exists()
    assert json.loads((tmp_path / "two" / "train_log.json").read_text())["processes"] == 2
    np.testing.assert_allclose(_losses(tmp_path / "two"), _losses(tmp_path / "one"), rtol=2e-4)
    vectors = [SentenceEncoder.load(tmp_path / name).encode(CORPUS) for name in ("one", "two")]
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-3)
