"""The command line as a user meets it: one line for a mistake, the right exit code, nothing half written."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest

from distilface.cli import run


def outcome(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = run(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


MISTAKES = [
    (["nosuchverb"], "No such command"),
    (["export"], "Missing argument"),
    (["quantize", "nowhere"], "--int8"),
    (["quantize", "nowhere", "--int8"], "does not exist"),
    (["verify", "."], "no bundle"),
    (["encode", "nowhere", "-"], "does not exist"),
    (["train"], "--model MODEL"),
    (["train", "--kind", "pairs", "--model", "m"], "--data"),
    (["train", "--model", "m", "--data", "d.txt", "--kind", "groupz"], "groups"),
    (["train", "--model", "m", "--data", "d.txt", "--set", "train.lerning_rate=1"], "did you mean 'learning_rate'"),
    (["train", "--model", "m", "--data", "d.txt", "--set", "nonsense"], "section.key=value"),
    (["train", "--model", "m", "--data", "d.txt", "--steps", "3", "--set", "train.epochs=1"], "both set"),
    (["train", "--config", "nowhere.yaml"], "nowhere.yaml"),
    (["bench", "./nowhere"], "does not exist"),
    (["bench", ".", "--fail-on", "speed>3"], "unknown metric"),
    (["bench", ".", "--fail-on", "p50>+10%"], "give one: --compare OLD.json"),
    (["evaluate", "./nowhere", "--data", "."], "does not exist"),
    (["sweep", "--config", "nowhere.yaml"], "nowhere.yaml"),
    (["sweep"], "--config"),
    (["evaluate", "m"], "give --data FOLDER"),
    (["evaluate", "m", "--groups", "nowhere.tsv"], "nowhere.tsv"),
    (["evaluate", "m", "--groups", "g.tsv", "--geometry"], "--geometry belongs to the STS sets"),
    (["evaluate", "m", "--groups", "g.tsv", "--sets", "STS12"], "--sets belongs to the STS sets"),
    (["evaluate", "m", "--data", ".", "--last", "3"], "--last 3 belongs to --groups"),
]


@pytest.mark.parametrize(("arguments", "expected"), MISTAKES, ids=lambda value: " ".join(value)[:50])
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], expected: str, tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = outcome(arguments, capsys)
    errors = [line for line in err.splitlines() if line.startswith("distilface: error: ")]
    assert (code, out, len(errors)) == (2, "", 1)
    assert expected in errors[0]
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir()), "nothing may be left behind"


def test_without_a_verb_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = outcome([], capsys)
    assert code == 0
    for verb in ("train", "sweep", "evaluate", "probe", "shrink", "export", "quantize", "verify", "bench", "encode",
                 "demo"):
        assert f"\n  {verb} " in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    from distilface import __version__

    assert outcome(["--version"], capsys)[:2] == (0, f"distilface {__version__}\n")


def test_verify_passes_and_an_altered_file_fails_with_exit_code_1(bundle_copy: Path,
                                                                 capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = outcome(["verify", str(bundle_copy)], capsys)
    assert code == 0
    assert "FAIL" not in out

    (bundle_copy / "config.json").write_text("{}", encoding="utf-8")
    code, out, err = outcome(["verify", str(bundle_copy)], capsys)
    assert code == 1
    assert "FAIL  files" in out
    assert "config.json" in err


def test_encode_to_every_format_gives_the_same_vectors(tiny_bundle: Path, tmp_path: Path,
                                                       capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["turn on the light", "", "Hello, World!", "turn on the light"]
    source = tmp_path / "texts.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    for name in ("vectors.npy", "vectors.jsonl", "vectors.parquet"):
        code, out, _ = outcome(["encode", str(tiny_bundle), str(source), "--column", "text", "--variant", "int8",
                                "--out", str(tmp_path / name)], capsys)
        assert code == 0
        assert f"4 vectors of {np.load(tmp_path / 'vectors.npy').shape[1]} dimensions" in out
    array = np.load(tmp_path / "vectors.npy", allow_pickle=False)
    assert (array.dtype, array.shape[0]) == (np.float32, 4)
    np.testing.assert_allclose(np.linalg.norm(array, axis=1), 1, atol=1e-5)
    np.testing.assert_array_equal(array[0], array[3])
    lines = [json.loads(line) for line in (tmp_path / "vectors.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["text"] for line in lines] == texts
    np.testing.assert_allclose([line["vector"] for line in lines], array, atol=1e-6)
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(tmp_path / "vectors.parquet").to_pydict()
    assert table["text"] == texts
    np.testing.assert_array_equal(np.array(table["vector"], dtype=np.float32), array)


def test_encode_reads_standard_input_and_writes_lines(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch,
                                                      capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO("play music\nKantō\n".encode()))))
    code, out, _ = outcome(["encode", str(tiny_bundle), "-"], capsys)
    assert code == 0
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["play music", "Kantō"]


@pytest.mark.parametrize(("options", "expected"), [
    (["--variant", "int4"], "it has fp32"),
    (["--provider", "cuda"], "install onnxruntime-gpu"),
    (["--column", "nope"], "no column 'nope'"),
    (["--threads", "0"], "1 or more"),
    (["--out", "vectors.xyz"], "npy, jsonl, parquet"),
    (["--batch-tokens", "0"], "1 or more"),
    (["--special-tokens", "keep"], "parse, escape"),
])
def test_encode_mistakes(options: list[str], expected: str, tiny_bundle: Path, tmp_path: Path,
                         monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n', encoding="utf-8")
    code, _, err = outcome(["encode", str(tiny_bundle), "in.jsonl", "--out", "v.npy", *options], capsys)
    assert code == 2
    assert expected in err
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_an_existing_output_is_refused_without_overwrite(tiny_bundle: Path, tmp_path: Path,
                                                         capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in.txt").write_text("a\n", encoding="utf-8")
    (tmp_path / "v.npy").write_bytes(b"precious")
    arguments = ["encode", str(tiny_bundle), str(tmp_path / "in.txt"), "--out", str(tmp_path / "v.npy")]
    code, _, err = outcome(arguments, capsys)
    assert (code, (tmp_path / "v.npy").read_bytes()) == (2, b"precious")
    assert "--overwrite" in err
    assert outcome([*arguments, "--overwrite"], capsys)[0] == 0
    assert np.load(tmp_path / "v.npy").shape[0] == 1


def test_quantize_of_a_variant_that_exists_is_refused(bundle_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = outcome(["quantize", str(bundle_copy), "--int8", "--mode", "dynamic"], capsys)
    assert code == 2
    assert "already has int8-dynamic" in err


def test_an_interrupt_is_one_line_and_130(monkeypatch: pytest.MonkeyPatch, tiny_bundle: Path,
                                          capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("distilface.verification.verify", interrupted)
    code, _, err = outcome(["verify", str(tiny_bundle)], capsys)
    assert code == 130
    assert err.splitlines()[-1] == "distilface: error: interrupted"


@pytest.mark.parametrize("arguments", [
    ["quantize", "B", "--int8", "--max-drop", "-1"], ["quantize", "B", "--int8", "--min-cosine", "2"],
    ["quantize", "B", "--int8", "--column", "text"], ["quantize", "B", "--int8", "--out", "B/sub"],
    ["bench", "B", "--fail-on", "drop>0.3"], ["bench", "B", "--fail-on", "recall<50"],
    ["bench", "B", "--fail-on", "p50[nobody]>3"], ["evaluate", "B", "--data", ".", "--sets", ""],
    ["export", "B", "--out", "o", "--pooling", "cls"],
    ["encode", "B", "in.txt", "--out", "in.txt", "--format", "npy", "--overwrite"],
    ["encode", "B", "in.txt", "--out", "in.txt/v.npy"], ["evaluate", "B", "--data", ".", "--json", "in.txt/s.json"],
    ["quantize", "B", "--int8", "--out", "in.txt/q"], ["bench", "B", "--out", "in.txt/r"],
], ids=lambda value: " ".join(value))
def test_impossible_arguments_and_places(arguments: list[str], bundle_copy: Path, tmp_path: Path,
                                         monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("a\n", encoding="utf-8")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    words = [str(bundle_copy) + word[1:] if word in ("B", "B/sub") else word for word in arguments]
    code, _, err = outcome(words, capsys)
    assert code == 2
    assert "Traceback" not in err
    assert (tmp_path / "in.txt").read_text(encoding="utf-8") == "a\n"
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_a_reader_that_goes_away_is_no_failure(tiny_bundle: Path, tmp_path: Path) -> None:
    import subprocess
    import sys

    (tmp_path / "in.txt").write_text("turn on the light\n" * 9000, encoding="utf-8")
    command = [sys.executable, "-m", "distilface", "encode", str(tiny_bundle), str(tmp_path / "in.txt")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith('{"text"')
        process.stdout.close()
        errors = process.stderr.read()
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
