"""Probing, without training: the grid, re-initialisation, layer-wise scores, ranking, table."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from distilface.cli import run as run_command
from distilface.config import dump_config, load_config
from distilface.data import read_labelled
from distilface.encoder import SentenceEncoder
from distilface.errors import UserError
from distilface.evaluation import StsPairs, accuracy, dev_score, matthews
from distilface.probing.config import KINDS, ProbeConfig, ReinitConfig
from distilface.probing.grid import Cell, CellStore, plan
from distilface.probing.layerwise import POOLINGS, layer_vectors, layerwise
from distilface.probing.ranking import additive_values, rank
from distilface.probing.rates import scale_rates
from distilface.probing.reinit import layers_in, permute, reinitialise
from distilface.probing.results import COLUMNS, interval, summarise, tidy, write_tables
from tests.tiny import ARCHITECTURES, CORPUS, tiny_checkpoint

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "probe"
BASE = ["probe=progressive", "model.name=m", "data.path=t.txt", "eval.sts=dev.tsv"]


def config(*sets: str) -> ProbeConfig:
    return load_config(ProbeConfig, sets=[*BASE, *sets])


@pytest.fixture(scope="module")
def encoder(checkpoint: Path) -> SentenceEncoder:
    return SentenceEncoder.load(checkpoint)


# configuration


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda file: file.name)
def test_shipped_configurations(file: Path, kind: str) -> None:
    if (kind == "layerwise") != (file.name == "layerwise.yaml"):
        with pytest.raises(UserError, match=r"data|labels"):
            load_config(ProbeConfig, file, overrides={"probe": kind})
        return
    loaded = load_config(ProbeConfig, file, overrides={"probe": kind})
    assert ProbeConfig.model_validate(loaded.model_dump(mode="json")) == loaded


@pytest.mark.parametrize(("sets", "named"), [
    (["probe=sideways"], "probe"),
    (["data=[]"], "data and labels are both missing"),
    (["labels={train: a.tsv, dev: b.tsv}"], "both set"),
    (["labels.train=a.tsv"], "labels.dev"),
    (["data=[]", "labels={train: a.tsv, dev: b.tsv}"], "eval.sts is set"),
    (["eval.sts=null"], "eval.sts is missing"),
    (["eval.sts=null", "eval.limit=10"], "limit"),
    (["probe=layerwise"], "data is set"),
    (["probe=permutation", "reinit.keep_layernorms=true"], "reinit is set"),
    (["grid.window=2"], "grid.window"),
    (["probe=localized", "grid.orders=3"], "grid.orders"),
    (["grid.seeds=[]"], "grid.seeds"),
    (["grid.seeds=[1, 1]"], "seeds names a value twice"),
    (["grid.sizes=[32]"], "grid.sizes names 32"),
    (["grid.sizes=[64]", "data.limit=100"], "data.limit"),
    (["train.seed=7"], "grid.seeds"),
    (["reinit.weights=tiny"], "reinit.weights"),
    (["reinit.learning_rate_factor=0"], "learning_rate_factor"),
    (["grid.seed=[1]"], "did you mean 'seeds'"),
])
def test_contradictions_name_the_key(sets: list[str], named: str) -> None:
    with pytest.raises(UserError) as caught:
        config(*sets)
    assert named in str(caught.value) and "\n" not in str(caught.value)


def test_a_dumped_configuration_loads_and_torch_stays_out(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(dump_config(config("grid.seeds=[5]")))
    assert load_config(ProbeConfig, tmp_path / "c.yaml") == config("grid.seeds=[5]")
    code = "import sys, distilface.probing, distilface.probing.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("arguments", "expected"), [
    (["probe"], "PROBE"),
    (["probe", "sideways", "m"], "allowed: layerwise, progressive, localized, permutation"),
    (["probe", "layerwise"], "--config"),
    (["probe", "progressive", "m"], "both missing"),
    (["probe", "progressive", "m", "--data", "t.txt"], "eval.sts"),
    (["probe", "progressive", "m", "--kind", "pairs"], "--data"),
    (["probe", "progressive", "m", "--dev", "d.tsv"], "--labels"),
    (["probe", "progressive", "m", "--columns", "a,b"], "--labels"),
    (["probe", "progressive", "m", "--labels", "d.tsv"], "labels.dev"),
    (["probe", "progressive", "m", "--data", "t.txt", "--sts", "d.tsv", "--seeds", "one"], "--seeds"),
    (["probe", "layerwise", "./nowhere", "--sts", "d.tsv"], "./nowhere"),
])
def test_a_mistake_on_the_command_line(arguments: list[str], expected: str, tmp_path: Path,
                                       monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(arguments) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("distilface: error: ")]
    assert len(errors) == 1 and expected in errors[0]
    assert not list(tmp_path.iterdir())


# grid


def test_progressive_keeps_ever_fewer_first_layers() -> None:
    cells = plan(config("grid.seeds=[7, 8]", "grid.sizes=[64, 100]"), 3)
    assert len(cells) == 4 * 2 * 2
    assert [(cell.position, cell.reinitialised) for cell in cells[:4]] == [
        (3, ()), (2, (2,)), (1, (1, 2)), (0, (0, 1, 2))]
    assert [(cell.seed, cell.size) for cell in cells[::4]] == [(7, 64), (7, 100), (8, 64), (8, 100)]


def test_localized_windows_and_their_inverse() -> None:
    cells = plan(config("probe=localized", "grid.window=2", "grid.seeds=[0]"), 4)
    assert [(cell.variant, cell.reinitialised) for cell in cells] == [
        ("all", ()), ("reinitialised", (0, 1)), ("reinitialised", (1, 2)), ("reinitialised", (2, 3)),
        ("none", (0, 1, 2, 3)), ("kept", (2, 3)), ("kept", (0, 3)), ("kept", (0, 1))]
    assert cells[1].key == cells[7].key, "re-initialising 0-1 and keeping only 2-3 is one run"
    assert len(plan(config("probe=localized", "grid.inverse=false", "grid.seeds=[0]"), 4)) == 1 + 2
    with pytest.raises(UserError, match="wider than the encoder's 2 layers"):
        plan(config("probe=localized"), 2)


def test_permutations_are_distinct_and_the_same_every_time() -> None:
    wanted = config("probe=permutation", "grid.orders=5", "grid.seeds=[0]")
    orders = [cell.order for cell in plan(wanted, 3)]
    assert orders[0] == (0, 1, 2) and len(set(orders)) == 6 and orders == [cell.order for cell in plan(wanted, 3)]
    assert orders != [cell.order for cell in plan(config("probe=permutation", "grid.orders=5", "grid.seeds=[0]",
                                                         "grid.order_seed=1"), 3)]
    with pytest.raises(UserError, match="only 5 other orders"):
        plan(config("probe=permutation", "grid.orders=6"), 3)


def test_the_store_gives_back_what_it_holds_and_drops_damaged_files(tmp_path: Path,
                                                                    caplog: pytest.LogCaptureFixture) -> None:
    store, cell = CellStore(tmp_path), Cell("progressive", 2, (2, 3), size=64, seed=1)
    assert store.get(cell) is None
    store.put(cell, [{"metric": "spearman", "score": 61.5}], 2.0)
    assert store.get(cell) == {"run": cell.run, "seconds": 2.0, "scores": [{"metric": "spearman", "score": 61.5}]}
    assert store.get(Cell("progressive", 2, (2, 3), size=64, seed=2)) is None
    (file,) = tmp_path.iterdir()
    for damaged in ('{"run": ', "[]", '{"run": {}, "scores": [1]}'):
        file.write_text(damaged)
        assert store.get(cell) is None and "damaged" in caplog.text


# re-initialisation


def weights(layer: nn.Module, kind: type[nn.Module], name: str) -> list[torch.Tensor]:
    return [getattr(module, name) for module in layer.modules() if isinstance(module, kind)]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_reinitialised_layers_are_those_of_a_new_model(architecture: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", architecture, layers=4)
    before, backbone = (SentenceEncoder.load(folder).backbone for _ in range(2))
    for layer in layers_in(backbone):  # so that leaving them alone would show
        for module in layer.modules():
            if isinstance(module, nn.Linear | nn.LayerNorm):
                nn.init.constant_(module.bias, 0.3)
            if isinstance(module, nn.LayerNorm):
                nn.init.constant_(module.weight, 0.7)
    reinitialise(backbone, (1, 2), seed=3, config=ReinitConfig())
    for index in (1, 2):
        layer = layers_in(backbone)[index]
        linear = torch.cat([weight.flatten() for weight in weights(layer, nn.Linear, "weight")])
        assert linear.std().item() == pytest.approx(0.2, rel=0.03) and abs(linear.mean().item()) < 0.01
        assert len(weights(layer, nn.Linear, "bias")) == 6 and len(weights(layer, nn.LayerNorm, "bias")) == 2
        for zero in (*weights(layer, nn.Linear, "bias"), *weights(layer, nn.LayerNorm, "bias")):
            assert not zero.any()
        for one in weights(layer, nn.LayerNorm, "weight"):
            assert (one == 1).all()
    kept = {name: value for name, value in backbone.state_dict().items() if ".1." not in name and ".2." not in name}
    for name, value in before.state_dict().items():
        if name in kept and value.ndim > 1:
            assert torch.equal(value, kept[name]), name


def test_a_layers_new_weights_depend_on_its_number_and_the_seed_alone(checkpoint: Path) -> None:
    def drawn(layers: Sequence[int], seed: int) -> torch.Tensor:
        backbone = SentenceEncoder.load(checkpoint).backbone
        reinitialise(backbone, layers, seed, ReinitConfig())
        return weights(layers_in(backbone)[1], nn.Linear, "weight")[0]

    assert torch.equal(drawn([1], 5), drawn([0, 1], 5))
    assert not torch.equal(drawn([1], 5), drawn([1], 6))


def test_layernorms_can_be_kept(checkpoint: Path) -> None:
    backbone = SentenceEncoder.load(checkpoint).backbone
    for norm in weights(layers_in(backbone)[0], nn.LayerNorm, "weight"):
        nn.init.constant_(norm, 0.7)
    reinitialise(backbone, [0], 0, ReinitConfig(keep_layernorms=True))
    assert all((norm == torch.tensor(0.7)).all() for norm in weights(layers_in(backbone)[0], nn.LayerNorm, "weight"))


def test_the_authors_weights_are_43_times_too_small_and_their_biases_stay(checkpoint: Path) -> None:
    """Reference: the distribution in their code, ``truncnorm(-2 * std, 2 * std, scale=std)`` with std 0.02."""
    backbone = SentenceEncoder.load(checkpoint).backbone
    backbone.config.initializer_range = 0.02
    layer = layers_in(backbone)[0]
    for bias in weights(layer, nn.Linear, "bias"):
        nn.init.constant_(bias, 0.3)
    for norm in weights(layer, nn.LayerNorm, "weight"):
        nn.init.constant_(norm, 0.7)
    reinitialise(backbone, [0], 0, ReinitConfig(weights="authors"))
    drawn = torch.cat([weight.flatten() for weight in weights(layer, nn.Linear, "weight")]).detach().numpy()
    theirs = stats.truncnorm(-0.04, 0.04, scale=0.02)
    assert drawn.std() == pytest.approx(theirs.std(), rel=0.02) and 0.02 / drawn.std() == pytest.approx(43.3, rel=0.02)
    assert np.abs(drawn).max() <= 0.0008 * (1 + 1e-6)
    assert all((bias == torch.tensor(0.3)).all() for bias in weights(layer, nn.Linear, "bias"))
    assert all((norm == 1).all() for norm in weights(layer, nn.LayerNorm, "weight"))


def test_permuting_moves_whole_layers(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", layers=3)
    plain, moved = SentenceEncoder.load(folder), SentenceEncoder.load(folder)
    permute(moved.backbone, (2, 0, 1))
    for place, layer in enumerate((2, 0, 1)):
        for ours, theirs in zip(layers_in(moved.backbone)[place].parameters(),
                                layers_in(plain.backbone)[layer].parameters(), strict=True):
            assert torch.equal(ours, theirs)
    assert np.abs(moved.encode(CORPUS) - plain.encode(CORPUS)).max() > 1e-3
    permute(moved.backbone, (1, 2, 0))
    np.testing.assert_array_equal(moved.encode(CORPUS), plain.encode(CORPUS))
    with pytest.raises(ValueError, match="no order of 3 layers"):
        permute(moved.backbone, (0, 0, 1))


def test_chosen_parameters_move_by_a_multiple(checkpoint: Path) -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    before = [value.detach().clone() for value in module.parameters()]
    optimizer = torch.optim.SGD([{"params": [module[0].weight, module[1].weight], "weight_decay": 0.5},
                                 {"params": [module[0].bias, module[1].bias]}], lr=0.1)
    scale_rates(optimizer, list(module[1].parameters()), 5.0)
    assert [(group["lr"], group["weight_decay"]) for group in optimizer.param_groups] == [
        (0.1, 0.5), (0.5, 0.5), (0.1, 0), (0.5, 0)]
    for group in optimizer.param_groups:
        group["weight_decay"] = 0
    for value in module.parameters():
        value.grad = torch.ones_like(value)
    optimizer.step()
    steps = [round(float((old - new.detach()).max()), 6) for old, new in zip(before, module.parameters(), strict=True)]
    assert steps == [0.1, 0.1, 0.5, 0.5]


# layer-wise


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_layer_vectors_are_those_of_the_poolers(architecture: str, tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "m", architecture, layers=2)
    vectors = layer_vectors(SentenceEncoder.load(folder), CORPUS)
    assert vectors.shape == (len(CORPUS), 3, len(POOLINGS), 32)
    for layer, suffix in ((2, "last"), (1, "second_last")):
        for index, kind in enumerate(POOLINGS):
            if (kind, suffix) == ("cls", "second_last"):
                continue
            expected = SentenceEncoder.load(folder, "cls" if kind == "cls" else f"{kind}_{suffix}").encode(CORPUS)
            found = vectors[:, layer, index]
            np.testing.assert_allclose(found / np.linalg.norm(found, axis=1, keepdims=True), expected, atol=1e-5)


def test_every_text_is_encoded_once_for_all_layers_and_poolings(encoder: SentenceEncoder) -> None:
    pairs = StsPairs("p", (CORPUS[0],) * 4 + tuple(CORPUS[:4]), tuple(CORPUS[1:9]), np.arange(8.0))
    seen: list[int] = []
    hook = encoder.backbone.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(len(kwargs["input_ids"])), with_kwargs=True)
    scores = {(row["layer"], row["pooling"]): row["score"] for row in layerwise(encoder, pairs)}
    hook.remove()
    assert sum(seen) == len({*pairs.sentences1, *pairs.sentences2})
    assert len(scores) == 3 * 3
    assert scores[0, "cls"] is None, "the embedding of [CLS] is the same in every text"
    assert scores[2, "mean"] == pytest.approx(dev_score(encoder, pairs), abs=1e-6)


# ranking and table


def row(layers: str | None = "", order: str | None = None, score: float | None = 0.0, seed: int | None = 0,
        **more: Any) -> dict[str, Any]:
    return {"metric": "spearman", "reinitialised": layers, "order": order, "seed": seed, "size": None,
            "score": score} | more


def test_progressive_values_are_the_steps_of_the_curve() -> None:
    kept = {3: 70.0, 2: 69.0, 1: 60.0, 0: 30.0}
    rows = [row(" ".join(map(str, range(k, 3))), score=score + seed, seed=seed)
            for seed in (0, 1) for k, score in kept.items()]
    ranked = rank(config(), rows, 3, "mean_last")
    assert [(item.layer, item.value) for item in ranked] == [
        (0, pytest.approx(30)), (1, pytest.approx(9)), (2, pytest.approx(1))]
    assert all(item.low == pytest.approx(item.value) == item.high for item in ranked), "seeds differ by a constant"


def test_localized_values_with_windows_of_one_layer_are_what_is_lost() -> None:
    rows = [row("", score=70), row("0", score=50), row("1", score=69), row("2", score=75)]
    ranked = rank(config("probe=localized", "grid.window=1"), rows, 3, "mean_last")
    assert [(item.layer, item.value) for item in ranked] == [
        (0, pytest.approx(20)), (1, pytest.approx(1)), (2, pytest.approx(-5))]
    assert ranked[0].low is None, "one seed has no interval"


def test_permutation_values_are_what_a_place_costs() -> None:
    """Scores made from known costs of 1, 4 and 2 points a place."""
    costs = (1.0, 4.0, 2.0)
    orders = [(0, 1, 2), (1, 0, 2), (2, 1, 0), (0, 2, 1), (1, 2, 0), (2, 0, 1)]
    rows = [row(order=" ".join(map(str, order)),
                score=70 - sum(costs[layer] * abs(place - layer) for place, layer in enumerate(order)))
            for order in orders]
    ranked = rank(config("probe=permutation"), rows, 3, "mean_last")
    assert [(item.layer, item.value) for item in ranked] == [
        (1, pytest.approx(4)), (2, pytest.approx(2)), (0, pytest.approx(1))]


def test_an_underdetermined_fit_treats_equal_layers_alike() -> None:
    values = additive_values([[1, 1, 1, 1], [0, 0, 1, 1], [1, 1, 0, 0]], [10.0, 4.0, 8.0])
    assert values.tolist() == pytest.approx([3, 3, 1, 1])


@pytest.mark.parametrize(("pooling", "expected"), [("mean_last4", [0, 1]), ("cls", [1, 0])])
def test_layerwise_values_are_what_a_layer_adds(pooling: str, expected: list[int]) -> None:
    scores = {"cls": (None, -5.0, 30.0), "mean": (50.0, 60.0, 55.0), "max": (0.0, 0.0, 0.0)}
    rows = [row(score=score, seed=None, layer=layer, pooling=name)
            for name, column in scores.items() for layer, score in enumerate(column)]
    wanted = load_config(ProbeConfig, sets=["probe=layerwise", "model.name=m", "eval.sts=d.tsv"])
    assert [item.layer for item in rank(wanted, rows, 2, pooling)] == expected


def test_the_interval_is_students() -> None:
    values = [61.0, 63.5, 60.2]
    low, high = stats.t.interval(0.95, 2, loc=np.mean(values), scale=stats.sem(values))
    assert interval(values) == (pytest.approx(np.mean(values)), pytest.approx(low), pytest.approx(high))
    assert interval([5.0]) == (5.0, None, None)


def test_the_table_is_tidy_and_summed_up_by_setting(tmp_path: Path) -> None:
    wanted = config("grid.seeds=[0, 1]")
    cells = plan(wanted, 1)
    stored = [{"seconds": 1.0, "scores": [{"metric": "spearman", "score": 50.0 + index}]}
              for index in range(len(cells))]
    rows = tidy(wanted, zip(cells, stored, strict=True))
    write_tables(tmp_path, rows)
    with (tmp_path / "results.csv").open(newline="") as stream:
        read = list(csv.DictReader(stream))
    assert list(read[0]) == list(COLUMNS) and len(read) == 4
    assert [(line["position"], line["reinitialised"], line["seed"], line["score"]) for line in read] == [
        ("1", "", "0", "50.0"), ("0", "0", "0", "51.0"), ("1", "", "1", "52.0"), ("0", "0", "1", "53.0")]
    assert [(item.label, item.mean, item.seeds) for item in summarise(wanted, rows)] == [
        ("first 1 layers kept", 51.0, 2), ("first 0 layers kept", 52.0, 2)]
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")
    assert parquet.read_table(tmp_path / "results.parquet").to_pylist() == rows


# classification


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("classes", [2, 5])
def test_accuracy_and_matthews_are_the_reference_ones(classes: int, seed: int) -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="the reference is scikit-learn")
    random = np.random.default_rng(seed)
    gold, predicted = random.integers(classes, size=(2, 60))
    predicted = np.where(random.random(60) < 0.5, gold, predicted)
    assert accuracy(gold, predicted) == pytest.approx(metrics.accuracy_score(gold, predicted))
    assert matthews(gold, predicted) == pytest.approx(metrics.matthews_corrcoef(gold, predicted))


def test_matthews_by_hand() -> None:
    """6 true and 1 false positives, 3 true and 2 false negatives: (6 * 3 - 1 * 2) / sqrt(7 * 8 * 4 * 5)."""
    gold, predicted = [1] * 6 + [0] + [0] * 3 + [1] * 2, [1] * 6 + [1] + [0] * 3 + [0] * 2
    assert matthews(gold, predicted) == pytest.approx(16 / np.sqrt(1120))
    assert accuracy(gold, predicted) == pytest.approx(9 / 12)
    assert matthews([0, 1, 1], [1, 1, 1]) == 0.0


def test_labelled_texts_from_every_format(tmp_path: Path) -> None:
    expected = [("turn it on", "1"), ("is it on", "0")]
    (tmp_path / "a.tsv").write_text("turn it on\t1\nis it on\t0\n\t1\n")
    (tmp_path / "a.csv").write_text('text,label\n"turn it on",1\nis it on,0\n')
    (tmp_path / "a.jsonl").write_text('{"text": "turn it on", "label": 1}\n{"text": "is it on", "label": 0}\n')
    for name in ("a.tsv", "a.csv", "a.jsonl"):
        assert read_labelled(tmp_path / name) == expected
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "x", "label": 0.5}))
    with pytest.raises(UserError, match=r"line 1: expected a label .* got float '0.5'"):
        read_labelled(tmp_path / "b.jsonl")
    parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")
    import pyarrow

    parquet.write_table(pyarrow.table({"text": [t for t, _ in expected], "label": [1, 0]}), tmp_path / "a.parquet")
    assert read_labelled(tmp_path / "a.parquet") == expected
