"""The SentEval folder with its quirks, and scores aggregated by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from distilface.data import DataSource
from distilface.errors import GateError, UserError
from distilface.evaluation import (
    STS_SETS,
    StsPairs,
    dev_score,
    evaluate_sts,
    load_scored,
    load_sick,
    load_sts,
    load_sts_benchmark,
)
from distilface.evaluation.sts_data import SUBSETS

stats = pytest.importorskip("scipy.stats")


class ByAngle:
    """Encodes the number that ends a text as an angle in degrees."""

    def __init__(self) -> None:
        self.calls = 0

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.calls += 1
        angles = np.radians([float(text.split()[-1]) for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small SentEval folder: three judged pairs a subset, and every quirk of the real one."""
    for number, (name, subsets) in enumerate(SUBSETS.items()):
        home = tmp_path / "STS" / f"{name}-en-test"
        home.mkdir(parents=True)
        for index, subset in enumerate(subsets):
            angles = [10 + number, 40 + 5 * index, 20]
            lines = [f'"{subset} 0\t{name} {angle}' for angle in angles]
            gold = ["4.0", "1.5", "2"] if index % 2 else ["4.5", "0", "3"]
            if name in ("STS15", "STS16"):  # pairs that were not judged
                lines.insert(1, "never seen 77\tnor this 78")
                gold.insert(1, "")
            if name == "STS16":
                lines = [f"{line}\tsource note\tsource note" for line in lines]
            (home / f"STS.input.{subset}.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            (home / f"STS.gs.{subset}.txt").write_text("".join(f"{score}\n" for score in gold), encoding="utf-8")
    (tmp_path / "STS/STS12-en-test/STS.gs.ALL.txt").write_text("5\n" * 15)
    (tmp_path / "STS/STS13-en-test/STS.gs.SMT.txt").write_text("5\n" * 3)
    benchmark = tmp_path / "STS" / "STSBenchmark"
    benchmark.mkdir()
    rows = ["news\tf\t2012\t1\t5.0\tSays \"stop 0\tSays stop 5", "news\tf\t2012\t2\t1\t\"quoted\" 0\tx 80\tlicence",
            "news\tf\t2012\t3\t2.5\ta 0\tb 40"]
    for split in ("train", "dev", "test"):
        (benchmark / f"sts-{split}.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    sick = tmp_path / "SICK"
    sick.mkdir()
    for file in ("SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt"):
        (sick / file).write_bytes(b"pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\r\n"
                                  b"1\ta 0\tb 3\t4.9\tNEUTRAL\r\n2\tc 0\td 60\t1.2\tNEUTRAL\r\n"
                                  b"3\te 0\tf 50\t1.1\tENTAILMENT\r\n")
    return tmp_path


def test_quirks(folder: Path) -> None:
    sets = {item.name: item for item in load_sts(folder)}
    assert tuple(sets) == STS_SETS
    assert [len(sets[name]) for name in STS_SETS] == [15, 9, 18, 15, 15, 3, 3]
    assert [subset.name for subset in sets["STS13"].subsets] == ["FNWN", "headlines", "OnWN"]
    judged = sets["STS16"].subsets[1]
    assert judged.sentences1 == ('"headlines 0',) * 3
    assert judged.sentences2 == ("STS16 14", "STS16 45", "STS16 20")
    assert judged.gold.tolist() == [4.0, 1.5, 2.0]
    benchmark = load_sts_benchmark(folder, "dev")
    assert benchmark.sentences1 == ('Says "stop 0', '"quoted" 0', "a 0")
    assert benchmark.sentences2[1] == "x 80"
    assert benchmark.gold.tolist() == [5, 1, 2.5]
    sick = load_sick(folder)
    assert (sick.sentences1[0], sick.sentences2[2], sick.gold.tolist()) == ("a 0", "f 50", [4.9, 1.2, 1.1])


def test_aggregations_by_hand(folder: Path) -> None:
    # One more pair in a subset of STS12, so that weights differ; it is judged and predicted out of order.
    home = folder / "STS" / "STS12-en-test"
    with (home / "STS.input.MSRpar.txt").open("a") as file:
        file.write("late 0\tlate 90\n")
    with (home / "STS.gs.MSRpar.txt").open("a") as file:
        file.write("5\n")
    predicted = [[-10.0, -(40 + 5 * index), -20.0] for index in range(5)]  # cosine falls as the angle grows
    gold = [[4.0, 1.5, 2.0] if index % 2 else [4.5, 0.0, 3.0] for index in range(5)]
    predicted[0].append(-90.0)
    gold[0].append(5.0)
    each = [stats.spearmanr(g, p).statistic for g, p in zip(gold, predicted, strict=True)]
    expected = {"mean": np.mean(each), "wmean": np.average(each, weights=[4, 3, 3, 3, 3]),
                "all": stats.spearmanr(np.concatenate(gold), np.concatenate(predicted)).statistic}
    assert each[0] == pytest.approx(-0.2) and each[1:] == pytest.approx([1, 1, 1, 1])
    for aggregation, value in expected.items():
        scores = evaluate_sts(ByAngle(), folder, aggregation=aggregation)  # type: ignore[arg-type]
        assert scores["STS12"].spearman == pytest.approx(100 * value)
        assert [subset.spearman for subset in scores["STS12"].subsets] == pytest.approx([100 * one for one in each])
        assert scores["STS12"].pairs == 16
        cosines = np.cos(np.radians([5.0, 80, 40]))
        assert scores["STSBenchmark"].pearson == pytest.approx(100 * stats.pearsonr([5, 1, 2.5], cosines).statistic)
        by_name = {item.name: item.spearman for item in scores.sets}
        assert scores.avg7 == pytest.approx(sum(by_name.values()) / 7)
        assert scores.avg5 == pytest.approx(
            sum(by_name[name] for name in ("STS12", "STS13", "STS14", "STS15", "STSBenchmark")) / 5)


def test_averages_only_when_every_member_is_there(folder: Path) -> None:
    encoder = ByAngle()
    five = evaluate_sts(encoder, folder, ("STS12", "STS13", "STS14", "STS15", "STSBenchmark"))
    assert encoder.calls == 1
    assert five.avg7 is None and five.avg5 is not None
    one = evaluate_sts(encoder, folder, ["SICKRelatedness"])
    assert (one.avg7, one.avg5) == (None, None)
    assert one.as_dict()["sets"][0]["name"] == "SICKRelatedness"
    with pytest.raises(KeyError):
        one["STS12"]


def test_constant_predictions_are_undefined(folder: Path) -> None:
    class Constant:
        def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
            return np.ones((len(texts), 3), dtype=np.float32)

    with pytest.raises(GateError, match="STSBenchmark-test: Spearman is undefined: all 3 predicted scores are equal"):
        evaluate_sts(Constant(), folder, ["STSBenchmark"])
    with pytest.raises(GateError, match="STSBenchmark-dev: Spearman is undefined"):
        dev_score(Constant(), folder)


def append(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(line)


@pytest.mark.parametrize(("file", "line", "expected"), [
    ("STS/STSBenchmark/sts-test.csv", "a\tb\t2012\t4\t3\tno second\n", "line 4: 6 tab-separated columns, at least 7"),
    ("STS/STSBenchmark/sts-test.csv", "news\tf\t2012\t4\tx\ta\tb\n", "line 4: expected a number as score, got 'x'"),
    ("SICK/SICK_test_annotated.txt", "4\ta\tb\n", "line 5: 3 tab-separated columns, at least 5"),
    ("SICK/SICK_test_annotated.txt", "4\ta\tb\tnan\tNEUTRAL\n", "line 5: expected a number as score, got 'nan'"),
    ("STS/STS12-en-test/STS.input.MSRpar.txt", "late\tone\n", "4 lines and STS.gs.MSRpar.txt 3"),
    ("STS/STS14-en-test/STS.gs.images.txt", "4\n", "3 lines and STS.gs.images.txt 4"),
])
def test_ragged_and_bad_lines(folder: Path, file: str, line: str, expected: str) -> None:
    append(folder / file, line)
    with pytest.raises(UserError) as caught:
        load_sts(folder)
    assert expected in str(caught.value)


@pytest.mark.parametrize(("line", "expected"), [
    ("alone\n", "line 4: 1 tab-separated columns, at least 2 needed"),
    ("a\tb\tc\n", "line 4: 3 tab-separated columns where line 1 has 2"),
])
def test_ragged_input_line(folder: Path, line: str, expected: str) -> None:
    append(folder / "STS/STS12-en-test/STS.input.MSRpar.txt", line)
    append(folder / "STS/STS12-en-test/STS.gs.MSRpar.txt", "3\n")
    with pytest.raises(UserError, match=expected):
        load_sts(folder, ["STS12"])


def test_missing_pieces(folder: Path) -> None:
    (folder / "STS/STS14-en-test/STS.input.images.txt").unlink()
    with pytest.raises(UserError, match=r"no such file: .*STS\.input\.images\.txt; the SentEval folder is incomplete"):
        load_sts(folder)
    with pytest.raises(UserError, match="not a SentEval folder"):
        load_sts(folder / "STS")
    with pytest.raises(UserError, match="unknown STS set 'STS17'; the sets are STS12, "):
        load_sts(folder, ["STS12", "STS17"])
    with pytest.raises(UserError, match="no STS set named"):
        load_sts(folder, [])
    with pytest.raises(UserError, match="unknown split 'validation'; the splits are train, dev, test"):
        load_sts_benchmark(folder, "validation")
    with pytest.raises(UserError, match="unknown aggregation 'median'; choose one of all, mean, wmean"):
        evaluate_sts(ByAngle(), folder, aggregation="median")  # type: ignore[arg-type]


def test_dev_score_from_folder_file_and_pairs(folder: Path, tmp_path: Path) -> None:
    expected = 100 * stats.spearmanr([5, 1, 2.5], [-5, -80, -40]).statistic
    assert dev_score(ByAngle(), folder) == pytest.approx(expected)
    tsv = tmp_path / "dev.tsv"
    tsv.write_text("score\tsentence1\tsentence2\n5\ta 0\tb 5\n1\ta 0\tc 30\n4\ta 0\td 50\n")
    half = 100 * stats.spearmanr([5, 1, 4], [-5, -30, -50]).statistic
    assert half == pytest.approx(50)
    assert dev_score(ByAngle(), tsv) == pytest.approx(half)
    assert dev_score(ByAngle(), load_scored(tsv)) == pytest.approx(half)
    tsv.write_text("a 0\tb 5\t5\na 0\tc 30\t1\na 0\td 50\t4\n")
    assert dev_score(ByAngle(), DataSource(path=str(tsv), header=False)) == pytest.approx(half)
    tsv.write_text("l\tr\ts\na 0\tb 5\t5\na 0\tc 30\t1\na 0\td 50\t4\n")
    assert dev_score(ByAngle(), DataSource(path=str(tsv), columns=("l", "r", "s"))) == pytest.approx(half)
    with pytest.raises(UserError, match="no column 'sentence1'; it has 'l', 'r', 's'"):
        dev_score(ByAngle(), tsv)


def test_hub_dev_split_is_validation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    asked = []

    def load_dataset(name: str, config: str | None, *, data_files: str | None, split: str) -> object:
        asked.append((name, split))
        return datasets.Dataset.from_dict({"id": [1], "score": [0.5], "sentence1": ["a"], "sentence2": ["b"]})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr("distilface.data.hub.socket.getaddrinfo", lambda *_: [])
    monkeypatch.chdir(tmp_path)
    pairs = load_scored("sentence-transformers/stsb")
    load_scored(DataSource(path="sentence-transformers/stsb", split="train"))
    assert asked == [("sentence-transformers/stsb", "validation"), ("sentence-transformers/stsb", "train")]
    assert (pairs.sentences1, pairs.sentences2, pairs.gold.tolist()) == (("a",), ("b",), [0.5])


@pytest.mark.shared
def test_facts_of_the_real_sets(shared_data: Path) -> None:
    folder = shared_data / "senteval"
    sets = load_sts(folder)
    assert [len(item) for item in sets] == [3108, 1500, 3750, 3000, 1186, 1379, 4927]
    assert len({text for item in sets for subset in item.subsets
                for text in (*subset.sentences1, *subset.sentences2)}) == 26_083
    assert [len(load_sts_benchmark(folder, split)) for split in ("train", "dev", "test")] == [5749, 1500, 1379]
    assert [len(load_sick(folder, split)) for split in ("train", "dev", "test")] == [4500, 500, 4927]
    assert isinstance(load_scored(folder), StsPairs)
