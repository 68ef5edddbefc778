"""Which nodes hurt, measured in one session, and which stay float."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from distilface.artifact import Bundle
from distilface.calibration import collect
from distilface.errors import GateError, UserError
from distilface.onnxgraph import count_matmuls
from distilface.parity import cosines
from distilface.quantization import quantize
from distilface.quantization.sensitivity import effects, fewest, sources_to_keep
from distilface.quantization.static import Solution, apply, groups_of, solve
from distilface.runtime import Encoder
from distilface.smarthome import utterances
from distilface.tokenizer import Tokenizer

TEXTS = list(dict.fromkeys(item.text for item in utterances("train")))[:60]


@pytest.fixture(scope="module")
def solved(tiny_bundle: Path) -> tuple[Any, dict[str, Solution], Tokenizer, dict[str, float]]:
    opened = Bundle.open(tiny_bundle)
    model, tokenizer = onnx.load(str(opened.graph("fp32"))), Tokenizer.load(tiny_bundle)
    stats = collect(model, [group.source for group in groups_of(model)], tokenizer, TEXTS)
    solutions = solve(model, stats)
    return model, solutions, tokenizer, effects(model, solutions, tokenizer, TEXTS[:16])


def test_an_effect_is_that_of_a_graph_with_this_group_alone_on_integers(
        solved: tuple[Any, dict[str, Solution], Tokenizer, dict[str, float]], tmp_path: Path) -> None:
    model, solutions, tokenizer, found = solved
    assert set(found) == set(solutions) and list(found.values()) == sorted(found.values(), reverse=True)

    def vectors(graph: Any) -> Any:
        onnx.save_model(graph, str(tmp_path / "graph.onnx"))
        return Encoder(tmp_path / "graph.onnx", tokenizer).encode(TEXTS[:16])

    exact = vectors(model)
    for source in list(found)[:3]:
        alone = apply(model, solutions, [other for other in solutions if other != source])
        assert count_matmuls(alone).integer == len(solutions[source].group.matmuls)
        # The real bias is rounded to INT32 steps, the emulated one is not.
        assert found[source] == pytest.approx(1 - cosines(vectors(alone), exact).mean(), rel=0.1)


def test_what_to_keep(solved: tuple[Any, dict[str, Solution], Tokenizer, dict[str, float]]) -> None:
    _, solutions, _, found = solved
    first, second, *_ = found
    assert sources_to_keep("auto", found, solutions) is None
    assert sources_to_keep("0", found, solutions) == []
    assert sources_to_keep("2", found, solutions) == [first, second]
    nodes = solutions[second].group.nodes
    assert sources_to_keep(f"{nodes[0]}, {first},{nodes[-1]}", found, solutions) == [second, first]
    with pytest.raises(UserError, match=r"keep_float is 9; .*8 groups"):
        sources_to_keep("9", found, solutions)
    with pytest.raises(UserError, match=r"'nothing'; allowed: auto, a number, or names among"):
        sources_to_keep(f"{first},nothing", found, solutions)


@pytest.mark.parametrize("needed", [0, 1, 2, 3, 4, 5, 6, 8, 9])
def test_the_fewest_that_work_are_found(needed: int) -> None:
    ranked = [str(number) for number in range(16)]
    calls: list[int] = []

    def works(kept: list[str]) -> bool:
        calls.append(len(kept))
        assert kept == ranked[: len(kept)]
        return len(kept) >= needed

    found = fewest(ranked, works)
    assert len(found) == (needed if needed <= 8 else 0)
    assert calls[-1] == len(found)  # what was written last is what is returned
    assert len(calls) <= 8


def test_names_stay_float_and_the_manifest_says_so(bundle_copy: Path) -> None:
    groups = Bundle.open(bundle_copy).variant("int8-static").recipe["groups"]
    source = next(name for name, group in groups.items() if len(group["nodes"]) == 3)
    done = quantize(bundle_copy, "static", TEXTS, overwrite=True, calibration_texts=20, keep_float=source)
    assert (done.variant.integer_matmuls, done.variant.float_matmuls) == (9, 3)
    assert done.variant.recipe["kept_float"] == [source]
    assert len(done.variant.recipe["left_out"]) == 0
    assert any("3 MatMuls stay float" in note for note in done.variant.notes)
    assert all(0 <= group["effect"] < 0.05 for group in done.variant.recipe["groups"].values())
    assert sum(len(group["nodes"]) for group in done.variant.recipe["groups"].values()) == 12


def test_auto_leaves_in_float_what_the_gate_needs_and_no_more(
        bundle_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate between all INT8 and 3 groups in float is passed with 1 to 3 groups in float, the worst first."""
    by_count = [quantize(bundle_copy, "static", TEXTS, overwrite=True, calibration_texts=20, keep_float=str(count))
                for count in (0, 1, 2, 3)]
    cosine = [done.gate.minimum_cosine for done in by_count]
    assert cosine[3] > cosine[0]
    limit = (cosine[0] + max(cosine[1:])) / 2
    expected = next(count for count in (1, 2, 3) if cosine[count] >= limit)
    done = quantize(bundle_copy, "static", TEXTS, overwrite=True, calibration_texts=20, min_cosine=limit)
    assert len(done.variant.recipe["kept_float"]) == expected
    assert done.gate.minimum_cosine == pytest.approx(cosine[expected], abs=1e-6)


def test_a_gate_that_half_the_groups_in_float_do_not_pass_fails(bundle_copy: Path) -> None:
    with pytest.raises(GateError, match=r"The nodes that hurt most: .*\(.* of cosine\)"):
        quantize(bundle_copy, "static", TEXTS, overwrite=True, calibration_texts=20, min_cosine=0.9999999)


@pytest.mark.parametrize(("arguments", "expected"), [
    ({"mode": "dynamic", "keep_float": "2"}, "--keep-float means nothing to int8-dynamic"),
    ({"mode": "w4", "ranges": "mse"}, "--ranges means nothing to w4"),
    ({"mode": "static", "ranges": "widest"}, "'widest'; allowed: search, minmax, mse, entropy"),
    ({"mode": "static", "keep_float": "wrong,names"}, "'wrong'; allowed: auto"),
    ({"mode": "static", "keep_float": "100"}, "0 to 8"),
])
def test_wrong_arguments(bundle_copy: Path, arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=expected) as caught:
        quantize(bundle_copy, calibration=TEXTS, overwrite=True, calibration_texts=20, **arguments)
    assert "\n" not in str(caught.value)


def test_ranges_by_name(bundle_copy: Path) -> None:
    widths = {}
    for ranges in ("minmax", "percentile99.9"):
        done = quantize(bundle_copy, "static", TEXTS, overwrite=True, calibration_texts=20, ranges=ranges)
        assert done.variant.recipe["ranges"] == ranges
        widths[ranges] = sum(group["high"] - group["low"] for group in done.variant.recipe["groups"].values())
    assert np.isfinite(list(widths.values())).all() and widths["percentile99.9"] < widths["minmax"]


def test_a_graph_that_is_quantized_already_is_refused_by_what_it_holds(bundle_copy: Path) -> None:
    """The INT8 graph in fp32's place, hash and all, as a careless script would leave it."""
    import json
    import shutil

    from distilface.loading import sha256_of

    opened = Bundle.open(bundle_copy)
    shutil.copyfile(opened.graph("int8-static"), opened.graph("fp32"))
    manifest = json.loads((bundle_copy / "distilface.json").read_text())
    record = manifest["files"]["onnx/model.onnx"]
    record["sha256"], record["size"] = sha256_of(opened.graph("fp32")), opened.graph("fp32").stat().st_size
    (bundle_copy / "distilface.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="quantized already: it has DequantizeLinear, QuantizeLinear"):
        quantize(bundle_copy, "static", TEXTS, overwrite=True)
