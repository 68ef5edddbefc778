"""Memory of the runtime, measured in a process of its own: flat over shapes, bounded for many long texts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")]

_PRELUDE = """
import json, os, random, sys
import numpy as np
from distilface.runtime import Encoder
encoder = Encoder.load(sys.argv[1], sys.argv[2])
def peak_gigabytes():  # not ru_maxrss, which starts at the size of the process that forked this one
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024 / 1e9
def megabytes():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
"""


def _measure(code: str, *arguments: str) -> Any:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run([sys.executable, "-c", _PRELUDE + code, *arguments], env=environment, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("variant", ["fp32", "int8-static"])
def test_memory_is_flat_after_many_shapes(tiny_bundle: Path, variant: str) -> None:
    grown = _measure("""
generator = random.Random(0)
for _ in range(2000):
    encoder.encode(["a " * generator.randint(1, 62) for _ in range(generator.randint(1, 8))])
before = megabytes()
for _ in range(500):
    encoder.encode(["a " * 10] * 4)
print(json.dumps(megabytes() - before))
""", str(tiny_bundle), variant)
    assert grown < 20


def test_three_hundred_long_texts_and_one_short(tmp_path: Path) -> None:
    """512 tokens each. In one batch of 256 the scores of a single layer alone would take 1 GB."""
    from distilface.exporter import export
    from tests.tiny import tiny_checkpoint

    export(tiny_checkpoint(tmp_path / "checkpoint", layers=1, max_length=512), tmp_path / "bundle")
    peak, nearest = _measure("""
texts = ["light " * 510] * 150 + ["a short one"] + ["music " * 510] * 150
vectors = encoder.encode(texts)
light, short, music = (encoder.encode([text])[0] for text in (texts[0], texts[150], texts[-1]))
nearest = np.argmax(vectors @ np.stack([light, short, music]).T, axis=1).tolist()
print(json.dumps([peak_gigabytes(), nearest]))
""", str(tmp_path / "bundle"), "fp32")
    assert peak < 1.5
    assert nearest == [0] * 150 + [1] + [2] * 150
