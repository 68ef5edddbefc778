"""`bench` with real processes: fake encoders of known speed, and a tiny bundle beside its checkpoint."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from distilface.benchmarking import BenchConfig, Subject, bench, find_subjects
from distilface.benchmarking.client import Worker, WorkerError
from distilface.benchmarking.kept import forget
from distilface.benchmarking.results import BenchReport
from distilface.errors import GateError, UserError
from distilface.report import ship, write_report
from distilface.report.markdown import to_markdown

pytestmark = pytest.mark.integration

QUICK = BenchConfig(rounds=2, latency_samples=5, load_repeats=1, text_count=20, lengths=(8,), settle_seconds=0,
                    bootstrap=20)
ROOT = Path(__file__).resolve().parents[2]


def fake(name: str, kind: str = "other") -> Subject:
    return Subject(name=name, model=name, folder=None, backend="factory", factory=f"tests.fake_encoders:{name}",
                   kind=kind)


def test_a_faster_encoder_measures_faster() -> None:
    stages: list[tuple[str, int, int]] = []
    config = QUICK.model_copy(update={"sts": Path("smarthome"), "rounds": 3})
    found = bench([fake("fast", "int8-static"), fake("slow", "float32")], config,
                  progress=lambda *step: stages.append(step), command="the command")
    assert found.baseline == "slow"  # the first float32, wherever it stands
    gain = found.subject("fast").latency_at(14).gain
    assert gain is not None and 1.5 < gain.median < 8  # 0.8 ms against 0.2 ms, and what a call costs
    assert found.subject("slow").latency_at(14).p50 >= 0.8
    assert found.subject("slow").best_throughput.sentences_per_second.high <= 1250
    assert found.subject("slow").size_gain is None
    sts = found.subject("fast").sts
    assert sts is not None and sts.change == 0 and sts.sets[0].change_low == 0  # the same vectors
    assert found.command == "the command" and found.text_source == "STS sentences"
    assert BenchReport.from_json(found.to_json()) == found
    assert {"loading", "latency", "throughput", "vectors", "scoring"} <= {stage for stage, _, _ in stages}
    assert all(0 <= done < total for _, done, total in stages)


def test_retrieval_and_threads(tmp_path: Path) -> None:
    """Groups go to every subject, and other thread counts get processes of their own."""
    groups = tmp_path / "groups.tsv"
    groups.write_text("turn on the light\tlight on please\nclose the door\tshut the door\n", encoding="utf-8")
    config = QUICK.model_copy(update={"groups": groups, "last_groups": 1, "threads": 2, "thread_sweep": (1, 2),
                                      "batch_tokens": ()})
    found = bench([fake("fast", "int8-static"), fake("slow", "float32")], config)
    for result in found.subjects:
        assert result.retrieval is not None
        assert (result.retrieval.groups, result.retrieval.recall1) == (1, 100)  # two texts find each other
        assert [row.threads for row in result.throughput] == [None, 1]
        assert all(row.gain is not None for row in result.throughput)
    assert found.groups_source == str(groups)
    page = to_markdown(found)
    assert "## Retrieval" in page and "| fast | default | 1 |" in page and "| fast | default | 2 |" in page
    with pytest.raises(UserError, match="--last 9 is more than the 2 groups"):
        bench([fake("fast")], config.model_copy(update={"last_groups": 9}))


def test_a_bundle_has_a_roofline(tiny_bundle: Path) -> None:
    found = bench(find_subjects(tiny_bundle, "fp32"), QUICK.model_copy(update={"roofline": True, "threads": 1}))
    (result,) = found.subjects
    assert result.roofline is not None and result.roofline.precision == "fp32"
    assert 0 < result.roofline.fraction < 1 and result.roofline.peak == found.peaks["fp32"]
    # At least two tokens a text, each with all weights; at most the model's 64.
    assert 1000 * 2 * 24576 < result.roofline.needed * 1e9 < 1000 * 64 * (24576 + 64 * 128)


def test_errors_of_a_worker_reach_the_user() -> None:
    with pytest.raises(WorkerError, match=r"dies: .*ended with code 7 during 'load'; last line: the allocator gave up"):
        bench([fake("dies")], QUICK)
    with pytest.raises(UserError, match="refuses: this needs a thing: install the thing"):
        bench([fake("refuses")], QUICK)
    with pytest.raises(WorkerError, match="raises: ZeroDivisionError: a bug") as caught:
        bench([fake("raises")], QUICK)
    assert caught.value.exit_code == 1


def test_a_broken_model_fails_before_anything_is_timed() -> None:
    stages: list[str] = []

    def note(stage: str, done: int, total: int) -> None:
        stages.append(stage)

    sts = QUICK.model_copy(update={"sts": Path("smarthome")})
    with pytest.raises(GateError, match="constant, STS set 'smarthome': Spearman is undefined"):
        bench([fake("fast", "float32"), fake("constant")], sts, note)
    with pytest.raises(GateError, match="broken: vectors hold NaN or infinity"):
        bench([fake("fast", "float32"), fake("broken")], QUICK, note)
    assert set(stages) == {"reading files", "vectors"}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is inherited on Linux only")
def test_memory_of_the_parent_is_not_counted() -> None:
    ballast = np.ones(400_000_000 // 8)
    with Worker(fake("fast"), threads=1) as worker:
        peak = worker.ask("memory")["peak_rss"]
    assert ballast.sum() > 0 and 5e6 < peak < 2e8


def test_a_worker_ends_with_its_block() -> None:
    with Worker(fake("fast"), threads=1) as worker:
        process = worker._process
    assert process.returncode == 0
    with pytest.raises(RuntimeError, match="stop"), Worker(fake("fast"), threads=1) as worker:
        process = worker._process
        raise RuntimeError("stop")
    assert process.returncode is not None


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_ctrl_c_ends_the_workers(tmp_path: Path) -> None:
    # A shell's background job starts with SIGINT ignored, and so would this process when the tests run in one.
    script = textwrap.dedent("""
        import signal
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from distilface.benchmarking import BenchConfig, Subject, bench, client
        start = client.Worker.__init__
        def noted(self, *rest):
            start(self, *rest)
            print(self._process.pid, flush=True)
        client.Worker.__init__ = noted
        one = Subject(name="e", model="e", folder=None, backend="factory", factory="tests.fake_encoders:endless")
        bench([one], BenchConfig(load_repeats=1))
    """)
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    time.sleep(1.5)
    parent.send_signal(signal.SIGINT)
    try:
        _, errors = parent.communicate(timeout=20)
        assert "KeyboardInterrupt" in errors
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)
    finally:  # a failure must not leave a process that burns a core under every later test
        parent.kill()
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


def test_a_killed_run_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Killed in its rounds; the same call measures the rest and nothing twice."""
    script = textwrap.dedent("""
        import sys
        from pathlib import Path
        from tests.integration.test_bench import long_run
        long_run(Path(sys.argv[1]))
    """)
    kept = tmp_path / "kept"
    first = subprocess.Popen([sys.executable, "-c", script, str(kept)], cwd=ROOT)
    try:
        _wait_for(kept / "step-latency-2-64.json")
    finally:
        first.kill()
        first.wait()
    before = {file.name: file.stat().st_mtime_ns for file in kept.glob("*-*") if "sitting" not in file.name}
    assert {"step-load-0.json", "step-latency-0-8.json", "vectors-0-texts.npy"} <= before.keys()
    with pytest.raises(UserError, match=r"interrupted run whose settings\.rounds was 12 and is 13 now"):
        long_run(kept, rounds=13)
    found = long_run(kept)
    assert {name: (kept / name).stat().st_mtime_ns for name in before} == before
    steps = [name for name in before if name.startswith("step-")]
    assert [one.steps for one in found.sittings] == [len(steps), len(list(kept.glob("step-*"))) - len(steps)]
    assert found.sittings[0].disturbance is None and found.sittings[1].disturbance is not None
    assert all(len(row.round_p50) == 12 for result in found.subjects for row in result.latency)
    assert {name for name, _ in found.model_dump().items()} == {
        name for name, _ in bench([fake("fast")], QUICK).model_dump().items()}
    page = to_markdown(found)
    assert "measured in 2 sittings" in page and "sitting 1 was killed" in page and "| sitting 2 |" in page
    # What is all there is not measured again, and other settings begin anew only when that was asked for.
    again = long_run(kept)
    assert again.sittings == found.sittings and again.subjects == found.subjects
    caplog.clear()
    anew = bench([fake("fast")], QUICK, keep=kept, anew=True)
    assert len(anew.sittings) == 1 and "dropped what an interrupted run measured" in caplog.text
    forget(kept)
    assert not kept.exists()


def long_run(kept: Path, rounds: int = 12) -> BenchReport:
    config = QUICK.model_copy(update={"rounds": rounds, "sts": Path("smarthome")})
    return bench([fake("fast", "int8-static"), fake("slow", "float32")], config, keep=kept)


def _wait_for(file: Path) -> None:
    end = time.monotonic() + 120
    while not file.is_file():
        assert time.monotonic() < end, f"{file} was never written"
        time.sleep(0.01)


def test_a_run_that_can_not_be_measured_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(GateError, match="NaN"):
        bench([fake("broken")], QUICK, keep=tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "thesis.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match="it holds other things"):
        bench([fake("fast")], QUICK, keep=tmp_path / "kept")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny checkpoint and the bundle made of it, with a dynamic INT8 variant."""
    pytest.importorskip("torch")
    from distilface.exporter import export
    from distilface.quantization import quantize
    from tests.tiny import tiny_checkpoint

    folder = tmp_path_factory.mktemp("bench models")  # a space in the path
    checkpoint = tiny_checkpoint(folder / "checkpoint")
    export(checkpoint, folder / "bundle")
    quantize(folder / "bundle", mode="dynamic", max_drop=100, min_cosine=-1)
    return checkpoint, folder / "bundle"


def test_a_bundle_beside_its_checkpoint(bundle: tuple[Path, Path], tmp_path: Path) -> None:
    checkpoint, folder = bundle
    found = bench([*find_subjects(folder), *find_subjects(checkpoint)],
                  QUICK.model_copy(update={"batch_tokens": (64, 256), "threads": 1}))
    fp32, int8, torch_side = found.subjects
    assert (fp32.name, int8.name, torch_side.name) == ("bundle:fp32", "bundle:int8-dynamic", "checkpoint")
    assert found.baseline == "bundle:fp32" and found.threads == 1
    assert fp32.size_bytes == (folder / "onnx" / "model.onnx").stat().st_size
    assert int8.cosine is not None and int8.cosine.reference == "bundle:fp32" and 0.5 < int8.cosine.minimum <= 1
    assert int8.integer_matmuls == fp32.float_matmuls and int8.size_gain is not None and int8.size_gain > 1
    assert fp32.batch_dependence is not None and fp32.batch_dependence >= 0.999999
    # The texts were built to be exactly this long in the model's own tokens; the limit of 64 is the long length.
    assert [(row.tokens, row.own_tokens) for row in fp32.latency] == [(8, 8.0), (14, 14.0), (64, 64.0)]
    assert found.long_tokens == 64
    assert [row.batch_tokens for row in torch_side.throughput] == [64, 256]
    assert ship(found).name in ("bundle:fp32", "bundle:int8-dynamic")
    assert write_report(found, tmp_path / "out").is_file()


def test_int8_alone_is_still_compared_with_its_fp32(bundle: tuple[Path, Path]) -> None:
    (subject,) = find_subjects(bundle[1], "int8")
    found = bench([subject], QUICK)
    (result,) = found.subjects
    assert result.cosine is not None and result.cosine.reference == "bundle:fp32"
    assert any("no float32 subject" in note for note in found.notes)


def test_a_variant_that_is_not_there_is_refused(bundle: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match="has no variant 'fp16'; it has fp32, int8-dynamic"):
        find_subjects(bundle[1], "fp16")


def test_cuda_is_refused_where_there_is_none(bundle: tuple[Path, Path]) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(UserError, match="finds no CUDA device"):
        bench(find_subjects(bundle[0]), QUICK.model_copy(update={"target": "cuda"}))
