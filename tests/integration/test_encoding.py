"""Many texts for real: memory that stays flat; a kill, an interrupt and a full disk in the middle; a Ray cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from distilface.errors import UserError
from distilface.runtime import Encoder
from distilface.shards import ShardSet

parquet = pytest.importorskip("pyarrow.parquet")
arrow = pytest.importorskip("pyarrow")
pytestmark = [pytest.mark.integration, pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")]

ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}


def write_inputs(folder: Path, files: int, rows: int) -> list[Path]:
    """``files`` Parquet files of ``rows`` texts, each text once."""
    paths = [folder / f"in{number}.parquet" for number in range(files)]
    for number, path in enumerate(paths):
        texts = [f"light {number} {row} in the kitchen" for row in range(rows)]
        parquet.write_table(arrow.table({"text": texts}), path, row_group_size=5000)
    return paths


def command(bundle: Path, inputs: list[Path], out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "distilface", "encode", str(bundle), *map(str, inputs), "--column", "text", "--out",
            f"{out}/", "--threads", "1", *options]


def texts_of(out: Path) -> list[str]:
    return [text for name in ShardSet.open(out).vector_files()
            for text in parquet.read_table(out / name, columns=["text"]).column(0).to_pylist()]


def assert_all_once(bundle: Path, out: Path, files: int, rows: int) -> None:
    texts = texts_of(out)
    assert texts == [f"light {number} {row} in the kitchen" for number in range(files) for row in range(rows)]
    shards = ShardSet.open(out)
    assert shards.complete
    last = parquet.read_table(out / shards.vector_files()[-1])
    vectors = np.array(last.column("vector").to_pylist()[-5:], dtype=np.float32)
    np.testing.assert_allclose(vectors, Encoder.load(bundle, threads=1).encode(texts[-5:]), atol=1e-5)


def wait_for(condition: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def records(out: Path) -> int:
    return len(list(out.glob("0*-*.json")))


def test_memory_is_flat_over_the_number_of_texts(tiny_bundle: Path, tmp_path: Path) -> None:
    code = """if True:
        import sys
        from distilface.encoding import encode_folder
        from distilface.runtime import Encoder
        encode_folder(Encoder.load(sys.argv[1], threads=1), [sys.argv[2]], sys.argv[3], column="text")
        print(next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1e3)"""
    peaks = []
    for rows in (20_000, 80_000):
        (path,) = write_inputs(tmp_path, 1, rows)
        words = [sys.executable, "-c", code, str(tiny_bundle), str(path), str(tmp_path / f"out{rows}")]
        done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        peaks.append(float(done.stdout))
    assert peaks[1] - peaks[0] < 8  # megabytes; the texts and vectors of the difference alone would take 13


def test_search_in_a_large_file_takes_little_memory(tmp_path: Path) -> None:
    np.save(tmp_path / "c.npy", np.random.default_rng(0).standard_normal((400_000, 64), dtype=np.float32))  # 102 MB
    code = """if True:
        import sys
        import numpy as np
        from distilface.search import search
        def peak():
            return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1e3
        queries = np.random.default_rng(1).standard_normal((5, 64), dtype=np.float32)
        search(queries, queries, 10)
        before = peak()
        search(queries, sys.argv[1], 10, block_bytes=1 << 22)
        print(peak() - before)"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "c.npy")], env=ENVIRONMENT, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 40


@pytest.mark.parametrize(("how", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_stopped_in_the_middle_it_goes_on_with_nothing_lost_or_doubled(
        tiny_bundle: Path, tmp_path: Path, how: signal.Signals, code: int) -> None:
    inputs, out = write_inputs(tmp_path, 3, 7000), tmp_path / "out"
    words = command(tiny_bundle, inputs, out, "--shard-rows", "2000")
    reset = ("import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
             "os.execv(sys.argv[1], sys.argv[1:])")
    with subprocess.Popen([sys.executable, "-c", reset, *words], env=ENVIRONMENT, stderr=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as process:
        wait_for(lambda: records(out) >= 3 or process.poll() is not None)
        process.send_signal(how)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    kept = records(out)
    assert 3 <= kept < 12
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"21000 vectors of 32 dimensions in 12 shards, {12 - kept} of them made now" in done.stdout
    assert_all_once(tiny_bundle, out, 3, 7000)
    assert not list(out.glob(".*"))


@pytest.mark.parametrize("format", ["npy", "parquet"])
def test_a_file_that_can_not_grow_is_one_line_and_leaves_no_half(tiny_bundle: Path, tmp_path: Path,
                                                                 format: str) -> None:
    """A limit on the size of files meets the same errors as a full disk."""
    inputs, out = write_inputs(tmp_path, 1, 9000), tmp_path / "out"
    words = command(tiny_bundle, inputs, out, "--format", format)
    limited = ("import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000,) * 2); "
               "os.execv(sys.argv[1], sys.argv[1:])")
    done = subprocess.run([sys.executable, "-c", limited, *words], env=ENVIRONMENT, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert f"File too large ({out}{os.sep}00000-00000." in last
    assert last.endswith("; make room or write elsewhere, and run it again")
    assert [path.name for path in out.iterdir()] == ["distilface.json"]
    assert subprocess.run(words, env=ENVIRONMENT, capture_output=True, check=False).returncode == 0
    assert ShardSet.open(out).complete


# ----------------------------------------------------------------- Ray


def _ray_workers() -> list[int]:
    """Processes of Ray actors that descend from this one."""
    parents, found = {}, []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                title = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if title.startswith(b"ray::") and b"MapWorker" in title:
                found.append(int(folder.name))

    def ours(pid: int) -> bool:
        while pid > 1 and pid != os.getpid():
            pid = parents.get(pid, 0)
        return pid == os.getpid()

    return [pid for pid in found if ours(pid)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A local cluster of two processors; its workers import the package from here."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])
        ray.init(num_cpus=2, logging_level="ERROR", log_to_driver=False, include_dashboard=False)
        yield
        ray.shutdown()


@pytest.mark.usefixtures("cluster")
def test_ray_loses_and_doubles_nothing_when_a_worker_is_killed(tiny_bundle: Path, tmp_path: Path) -> None:
    from distilface.encoding import encode_folder

    inputs, out = write_inputs(tmp_path, 2, 12_000), tmp_path / "out"
    encoder = Encoder.load(tiny_bundle, threads=1)
    killed: list[int] = []

    def kill_one() -> None:
        wait_for(lambda: records(out) >= 2, 300)
        victims = _ray_workers()
        os.kill(victims[0], signal.SIGKILL)
        killed.append(victims[0])

    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    result = encode_folder(encoder, inputs, out, column="text", shard_rows=1000, engine="ray", actors=2)
    killer.join()
    assert killed
    assert (result.rows, result.shards, result.encoded) == (24_000, 24, 24)
    assert_all_once(tiny_bundle, out, 2, 12_000)
    # What the cluster began goes on without it.
    (out / "00001-00003.json").unlink()
    assert encode_folder(encoder, inputs, out, column="text", shard_rows=1000).encoded == 1


@pytest.mark.usefixtures("cluster")
def test_what_an_actor_meets_is_the_users_error(tiny_bundle: Path, tmp_path: Path) -> None:
    from distilface.encoding import encode_folder

    inputs = write_inputs(tmp_path, 1, 50)
    encoder = Encoder.load(tiny_bundle, threads=1)
    encoder.folder = tmp_path / "nowhere"
    with pytest.raises(UserError, match="nowhere' does not exist") as caught:
        encode_folder(encoder, inputs, tmp_path / "out", column="text", engine="ray", actors=1)
    assert "\n" not in str(caught.value)
