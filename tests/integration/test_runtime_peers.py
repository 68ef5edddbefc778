"""What the runtime shares with other libraries: the same int8 and binary vectors, the same vectors from OpenVINO."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from distilface.artifact import VARIANT_FILES, Bundle
from distilface.cli import run
from distilface.errors import UserError
from distilface.parity import FP32_FLOOR, INVARIANT, batch_dependence, cosines
from distilface.precision import Scales, with_precision
from distilface.runtime import Encoder
from distilface.tokenizer import Tokenizer
from tests.unit.test_precision import unit

pytestmark = pytest.mark.integration


def test_int8_and_binary_are_those_of_sentence_transformers() -> None:
    quantize = pytest.importorskip("sentence_transformers.util.quantization").quantize_embeddings
    sample, vectors = unit(200, 50), unit(80, 50, seed=1)
    scales = Scales.fit(sample)
    ranges = np.stack([scales.low, scales.high])
    np.testing.assert_array_equal(with_precision(vectors, "int8", scales), quantize(vectors, "int8", ranges=ranges))
    np.testing.assert_array_equal(scales.encode(sample), quantize(sample, "int8", calibration_embeddings=sample))
    np.testing.assert_array_equal(with_precision(vectors, "binary"), quantize(vectors, "ubinary"))


# ----------------------------------------------------------------- OpenVINO


@pytest.fixture(scope="module")
def openvino() -> None:
    pytest.importorskip("openvino", reason="OpenVINO is not installed")


@pytest.mark.usefixtures("openvino")
@pytest.mark.parametrize("variant", list(VARIANT_FILES))
@pytest.mark.parametrize("threads", [1, 2])
def test_openvino_gives_the_golden_vectors(full_bundle: Path, variant: str, threads: int) -> None:
    """In float32, whatever the processor has: bfloat16 would not reach the fp32 floor."""
    bundle = Bundle.open(full_bundle)
    golden = bundle.golden()
    encoder = Encoder.load(full_bundle, variant, threads=threads, backend="openvino")
    expected = np.array([item.vector for item in golden], dtype=np.float32)
    floor = FP32_FLOOR if variant == "fp32" else bundle.variant(variant).cosine_floor
    texts = [item.text for item in golden] * 5
    alone = np.concatenate([encoder.embed_batch([item.ids]) for item in golden])
    assert (alone.shape, alone.dtype) == ((len(golden), 32), np.float32)
    assert cosines(alone, expected).min() >= floor
    other = Encoder.load(full_bundle, variant, threads=1)
    assert cosines(alone, np.concatenate([other.embed_batch([item.ids]) for item in golden])).min() >= 0.9999
    assert cosines(encoder.encode(texts, batch_tokens=64), np.tile(expected, (5, 1))).min() >= floor
    if bundle.variant(variant).batch_invariant:
        assert batch_dependence(encoder) >= INVARIANT
    assert (encoder.backend, encoder.backend_reason) == ("openvino", "asked for")


@pytest.mark.usefixtures("openvino")
def test_openvino_from_eight_threads_a_fork_and_a_pickle(tiny_bundle: Path) -> None:
    encoder = Encoder.load(tiny_bundle, threads=2, backend="openvino")
    texts = ["turn on the light", "play music", "a"] * 10
    expected = encoder.encode(texts)
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda number: encoder.encode(texts, batch_tokens=32 if number % 2 else 512), range(24)):
            np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(pickle.loads(pickle.dumps(encoder)).encode(texts), expected, atol=1e-5)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.allclose(encoder.encode(texts, batch_tokens=32), expected, atol=1e-5) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.usefixtures("openvino")
def test_openvino_memory_is_flat_after_many_shapes(tiny_bundle: Path) -> None:
    code = f"""if True:
        import os, random
        from distilface import Encoder
        encoder = Encoder.load({str(tiny_bundle)!r}, backend="openvino", threads=2)
        generator = random.Random(0)
        for _ in range(800):
            encoder.encode(["a " * generator.randint(1, 62) for _ in range(generator.randint(1, 8))])
        page = os.sysconf("SC_PAGE_SIZE") / 1e6
        before = int(open("/proc/self/statm").read().split()[1]) * page
        for _ in range(300):
            encoder.encode(["a " * 10] * 4)
        print(int(open("/proc/self/statm").read().split()[1]) * page - before)"""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 20


@pytest.mark.usefixtures("openvino")
def test_bench_measures_both_backends_side_by_side(tiny_bundle: Path, tmp_path: Path,
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    model = f"{tiny_bundle}:int8"
    assert run(["bench", model, f"{model}@openvino", f"{tiny_bundle}:fp32", "--out", str(tmp_path / "r"), "--quick",
                "--set", "lengths=[16]", "--set", "rounds=1", "--set", "latency_samples=5", "--threads", "1"]) == 0
    report = json.loads((tmp_path / "r" / "report.json").read_text(encoding="utf-8"))
    assert [(item["name"], item["backend"]) for item in report["subjects"]] == [
        ("tiny:int8-static", "onnxruntime"), ("tiny:int8-static@openvino", "openvino"), ("tiny:fp32", "onnxruntime")]
    assert report["subjects"][1]["cosine"]["minimum"] >= Bundle.open(tiny_bundle).variant("int8").cosine_floor
    assert "int8-static@openvino" in capsys.readouterr().out


@pytest.mark.usefixtures("openvino")
def test_a_graph_that_openvino_cannot_read_is_one_line(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no graph")
    with pytest.raises(UserError, match=r"OpenVINO .* can't load .*; upgrade openvino, or use backend='onn") as caught:
        Encoder(tmp_path / "bad.onnx", Tokenizer.load(tiny_bundle), backend="openvino")
    assert "\n" not in str(caught.value)
