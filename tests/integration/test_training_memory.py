"""Gradient caching: a batch of 4,096 in the memory of one of 64, each run in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import CORPUS, tiny_checkpoint

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")]

_CODE = """
import sys
from pathlib import Path
from distilface.config import load_config
from distilface.training import TrainConfig, train
train(load_config(TrainConfig, sets=sys.argv[2:]), Path(sys.argv[1]), progress=False)
# not ru_maxrss, which starts at the size of the process that forked this one
print(next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) // 1024)
"""


def test_memory_does_not_grow_with_the_batch(tmp_path: Path) -> None:
    model = tiny_checkpoint(tmp_path / "model", layers=3, hidden=96)
    texts = [f"{CORPUS[index % 10]} {index}" for index in range(4096)]
    (tmp_path / "text.txt").write_text("\n".join(texts))

    def megabytes(batch: int, caching: bool) -> int:
        sets = [f"model.name={model}", f"data.path={tmp_path / 'text.txt'}", "train.max_steps=1",
                "train.tensorboard=false", "train.chunk_tokens=2048", f"train.batch_size={batch}",
                f"train.gradient_caching={caching}"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        done = subprocess.run([sys.executable, "-c", _CODE, str(tmp_path / f"{batch}-{caching}"), *sets],
                              env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    small = megabytes(64, caching=False)
    assert megabytes(2048, caching=False) - small > 900  # what the test is to catch
    assert megabytes(4096, caching=True) - small < 300
