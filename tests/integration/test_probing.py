"""Probes of tiny encoders from end to end: what is written, kept after an interruption, refused, and read by shrink."""

from __future__ import annotations

import csv
import gc
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distilface.cli import run as run_command
from distilface.config import load_config
from distilface.encoder import SentenceEncoder
from distilface.errors import GateError, UserError
from distilface.probing import ProbeConfig, ProbeResult, probe, tasks
from distilface.probing.classification import Classifier, fine_tune, load_labelled
from distilface.probing.config import LabelsConfig
from distilface.probing.rates import ProbeTrainer
from distilface.shrinking import shrink
from distilface.shrinking.layers import read_ranking
from distilface.training.config import LoopConfig
from tests.tiny import ARCHITECTURES, CORPUS, tiny_checkpoint

pytestmark = pytest.mark.integration
Run = Callable[..., ProbeResult]
QUESTIONS = ("is", "how")


@pytest.fixture(scope="module", autouse=True)
def _quick_collection() -> Iterator[None]:
    """A run ends with a full garbage collection, which takes longer than these few steps unless old objects are left
    out of it."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text, scored pairs and labelled texts: is it a question or a command?"""
    folder = tmp_path_factory.mktemp("data")
    (folder / "text.txt").write_text("\n".join(f"{CORPUS[index % 10]} {index}" for index in range(40)))
    pairs = [f"{CORPUS[i % 10]}\t{CORPUS[(i * i) % 10]} now\t{(i * 7) % 5}" for i in range(24)]
    (folder / "dev.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *pairs]))
    labelled = [f"{CORPUS[i % 8]} {i}\t{'question' if CORPUS[i % 8].split()[0] in QUESTIONS else 'command'}"
                for i in range(80)]
    (folder / "labels.tsv").write_text("\n".join(labelled))
    (folder / "labels_dev.tsv").write_text("\n".join(labelled[::3]))
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("model") / "m", layers=3)


@pytest.fixture()
def run(tmp_path: Path, files: Path, model: Path) -> Run:
    """Progressive, two seeds, four steps a cell, unless told otherwise."""

    def start(*sets: str, out: str = "out", overwrite: bool = False) -> ProbeResult:
        config = load_config(ProbeConfig, sets=[
            "probe=progressive", f"model.name={model}", f"data.path={files / 'text.txt'}",
            f"eval.sts={files / 'dev.tsv'}", "train.batch_size=8", "train.max_steps=4", "train.learning_rate=1e-3",
            "grid.seeds=[0, 1]", *sets])
        return probe(config, tmp_path / out, overwrite)

    return start


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "results.csv").open(newline="") as stream:
        return [{key: value for key, value in row.items() if key != "seconds"} for row in csv.DictReader(stream)]


def test_an_interrupted_grid_goes_on_and_ends_as_if_nothing_had_happened(
        run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    whole = run(out="whole")
    assert (whole.cells, whole.run) == (8, 8)
    fits: list[Path] = []

    def fit(config: Any, task: Any, out: Path, **kwargs: Any) -> Any:
        fits.append(out)
        if len(fits) == 4:
            raise KeyboardInterrupt
        return tasks_fit(config, task, out, **kwargs)

    tasks_fit = tasks.fit
    monkeypatch.setattr(tasks, "fit", fit)
    with caplog.at_level(logging.INFO), pytest.raises(KeyboardInterrupt):
        run()
    assert "3 of 8 cells are done" in caplog.text
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["cells", "probe.json", "probe_config.yaml"]
    assert len(list((tmp_path / "out" / "cells").iterdir())) == 3
    assert run().run == 5 and len(fits) == 4 + 5
    assert run().run == 0 and len(fits) == 9
    assert table(tmp_path / "out") == table(tmp_path / "whole")
    assert len({row["score"] for row in table(tmp_path / "whole")}) > 4, "settings differ"


def test_what_a_grid_leaves_behind(run: Run, tmp_path: Path, model: Path) -> None:
    result = run("probe=localized", "grid.window=1", "grid.sizes=[16]", "train.max_steps=1")
    assert result.cells == 2 * (1 + 3 + 1 + 3) and result.run == result.cells
    assert {path.name for path in result.out.iterdir()} >= {
        "cells", "probe.json", "probe_config.yaml", "results.csv", "ranking.json", "scores.png", "scores.svg",
        "ranking.png", "ranking.svg"} and not (result.out / "work").exists()
    for name in ("scores", "ranking"):
        assert (result.out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "</svg>" in (result.out / f"{name}.svg").read_text()
    assert {row["size"] for row in table(result.out)} == {"16"}
    ranked = read_ranking(result.out / "ranking.json")
    assert sorted(ranked) == [0, 1, 2] == sorted(item.layer for item in result.ranking)
    shrunk = shrink(model, tmp_path / "small", layers=2, ranking=result.out / "ranking.json")
    assert shrunk.layers == tuple(sorted(ranked[:2]))


def test_another_grid_is_not_mixed_in(run: Run, tmp_path: Path, files: Path,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    run("grid.seeds=[0]", "train.max_steps=1")
    refused = {"train.max_steps": ["train.max_steps=2"], "grid.seeds": ["grid.seeds=[1]", "train.max_steps=1"],
               "probe": ["probe=localized", "train.max_steps=1"]}
    for key, sets in refused.items():
        with pytest.raises(UserError, match=key.replace(".", r"\.")):
            run("grid.seeds=[0]", *sets)
    text = tmp_path / "copy.txt"
    text.write_text((files / "text.txt").read_text())
    run("grid.seeds=[0]", "train.max_steps=1", f"data.path={text}", out="copied")
    text.write_text(text.read_text() + "\none more")
    with pytest.raises(UserError, match=r"contents\.data"):
        run("grid.seeds=[0]", "train.max_steps=1", f"data.path={text}", out="copied")
    assert run("grid.seeds=[0]", "train.max_steps=2", overwrite=True).run == 4
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="not empty"):
        run(out="mine")
    with pytest.raises(UserError, match="did not write"):
        run(out="mine", overwrite=True)
    (tmp_path / "out" / "probe.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        run()


@pytest.mark.parametrize(("sets", "named"), [
    (["grid.sizes=[16, 41]"], "holds 40"),
    (["eval.limit=25"], "holds 24 pairs"),
    (["train.max_length=65"], "65 is over the 64 tokens"),
    (["probe=permutation", "grid.orders=6"], "5 other orders"),
    (["loss.hard_negative_weight=1"], "hard_negative_weight"),
    (["data.path=nowhere.txt"], "nowhere.txt"),
    (["data.path='-'"], "standard input can be read once"),
])
def test_what_does_not_fit_is_refused_before_the_first_cell(run: Run, tmp_path: Path, sets: list[str],
                                                            named: str) -> None:
    with pytest.raises(UserError, match=named):
        run(*sets)
    assert not (tmp_path / "out").exists()


def test_several_processes_are_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="one process"):
        run()


def test_a_broken_cell_names_itself_and_keeps_the_others(run: Run, monkeypatch: pytest.MonkeyPatch,
                                                         tmp_path: Path) -> None:
    with pytest.raises(GateError, match=r"cell progressive 3, size None, seed 0: loss is .*; 0 of 8 cells are done"):
        run("train.learning_rate=1e38", "train.max_grad_norm=0")
    assert (tmp_path / "out" / "probe.json").is_file() and not (tmp_path / "out" / "work").exists()


def test_re_initialised_layers_alone_learn_faster(run: Run, monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    """With a factor of almost 0 they stay where they were drawn, while the others move."""
    moved: list[dict[str, float]] = []

    class Watched(ProbeTrainer):
        def train(self, *args: Any, **kwargs: Any) -> Any:
            before = {name: value.detach().clone() for name, value in self.encoder.named_parameters()}
            done = super().train(*args, **kwargs)
            moved.append({name: float((value.detach() - before[name]).abs().max())
                          for name, value in self.encoder.named_parameters()})
            return done

    monkeypatch.setattr(tasks, "ProbeTrainer", Watched)
    run("probe=localized", "grid.window=1", "grid.inverse=false", "grid.seeds=[0]",
        "reinit.learning_rate_factor=1e-6")
    for index, changes in enumerate(moved[1:]):
        for name, change in changes.items():
            if f"layer.{index}." in name:
                assert change < 1e-6, name
            elif "layer." in name and not name.endswith("k_lin.bias"):
                assert change > 1e-4, name
    assert len(moved) == 4 and all(change > 1e-4 for name, change in moved[0].items() if "q_lin.weight" in name)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_can_be_probed(run: Run, tmp_path: Path, architecture: str) -> None:
    folder = tiny_checkpoint(tmp_path / "m", architecture, layers=2)
    result = run(f"model.name={folder}", "grid.seeds=[0]", "train.max_steps=1", "reinit.keep_layernorms=true",
                 "probe=localized", "grid.window=2", "grid.inverse=false")
    assert result.cells == 2 and sorted(item.layer for item in result.ranking) == [0, 1]


def test_a_classifier_learns(files: Path, model: Path, tmp_path: Path) -> None:
    encoder = SentenceEncoder.load(model)
    labels = LabelsConfig(train=files / "labels.tsv", dev=files / "labels_dev.tsv")
    train, dev, names = load_labelled(labels, encoder.tokenizer.with_limit(32))
    assert names == ["command", "question"] and (len(train), len(dev)) == (80, 27)
    loop = LoopConfig(batch_size=16, max_steps=80, learning_rate=3e-3, seed=1)
    scores = fine_tune(encoder, train, dev, 2, loop, tmp_path / "w", fast=(2,), factor=2.0)
    assert scores["accuracy"] > 95 and scores["matthews"] > 90
    again = fine_tune(SentenceEncoder.load(model), train, dev, 2, loop, tmp_path / "w", fast=(2,), factor=2.0)
    assert again == scores
    few = fine_tune(SentenceEncoder.load(model), train, dev, 2, loop.model_copy(update={"max_steps": 1}),
                    tmp_path / "w", size=16)
    assert few["accuracy"] < scores["accuracy"]
    with pytest.raises(GateError, match=r"loss is .* lower train\.learning_rate"):
        fine_tune(SentenceEncoder.load(model), train, dev, 2,
                  loop.model_copy(update={"learning_rate": 1e38, "max_grad_norm": 0.0}), tmp_path / "w")


def test_a_classifiers_answer_does_not_depend_on_its_batch(model: Path) -> None:
    encoder = SentenceEncoder.load(model)
    torch.manual_seed(0)
    classifier = Classifier(encoder, 4)
    rows = encoder.tokenizer.encode_batch([*CORPUS, " ".join(CORPUS)])
    alone = [int(classifier.predict([row])[0]) for row in rows]
    np.testing.assert_array_equal(classifier.predict(rows, batch_tokens=64), alone)


def test_classification_on_the_command_line(files: Path, model: Path, tmp_path: Path,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    base = ["probe", "permutation", str(model), "--steps", "3", "--batch-size", "8", "--seeds", "0", "--orders", "2",
            "--sizes", "16,80", "--labels", str(files / "labels.tsv"), "--out", str(tmp_path / "out")]
    (tmp_path / "unknown.tsv").write_text("open it\tcommand\nwho is there\twho\nwhy\twhy\n")
    assert run_command([*base, "--dev", str(tmp_path / "unknown.tsv")]) == 2
    assert "'who', 'why'; known: 'command', 'question'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert run_command([*base, "--dev", str(files / "labels_dev.tsv")]) == 0
    printed = capsys.readouterr().out
    assert "original order" in printed and "layers from most to least worth keeping" in printed
    rows = table(tmp_path / "out")
    assert len(rows) == 3 * 2 * 2 and {row["metric"] for row in rows} == {"accuracy", "matthews"}
    assert len(json.loads((tmp_path / "out" / "ranking.json").read_text())) == 3


def test_layerwise_on_the_command_line(files: Path, model: Path, tmp_path: Path,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run_command(["probe", "layerwise", str(model), "--sts", str(files / "dev.tsv"), "--out", str(out)]) == 0
    rows = table(out)
    assert len(rows) == 4 * 3 and [row["score"] == "" for row in rows].count(True) == 1
    assert (out / "scores.png").is_file() and sorted(read_ranking(out / "ranking.json")) == [0, 1, 2]
    assert "layer 3, mean" in capsys.readouterr().out


@pytest.mark.shared
def test_layerwise_of_minilm_agrees_with_its_known_score(minilm: Path, shared_data: Path, tmp_path: Path) -> None:
    """A trained encoder is best at its last layer; its score there is what evaluation says."""
    from distilface.evaluation import dev_score, load_scored

    config = load_config(ProbeConfig, sets=["probe=layerwise", f"model.name={minilm}", "eval.limit=100",
                                            f"eval.sts={shared_data / 'senteval'}"])
    scores = {item.label: item.mean for item in probe(config, tmp_path / "out").summaries}
    pairs = load_scored(shared_data / "senteval")
    head = type(pairs)(pairs.name, pairs.sentences1[:100], pairs.sentences2[:100], pairs.gold[:100])
    assert scores["layer 6, mean"] == pytest.approx(dev_score(SentenceEncoder.load(minilm), head), abs=1e-3)
    assert max(scores, key=scores.__getitem__) == "layer 6, mean"
