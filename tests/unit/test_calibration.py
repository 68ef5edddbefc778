"""Calibration: statistics by hand, padding left out, layouts told apart, and memory that does not grow."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import helper

import distilface.calibration
from distilface.calibration import SAMPLE_TOKENS, ActivationStats, collect
from distilface.errors import GateError, UserError
from distilface.quantization.ranges import percentile
from distilface.tokenizer import Tokenizer
from tests.tiny import tiny_tokenizer
from tests.toy_graphs import graph_of

Array = NDArray[Any]


def test_statistics_by_hand() -> None:
    stats = ActivationStats(2, seed=0)
    stats.update(np.array([[1, -1], [3, 5]], dtype=np.float32))
    stats.update(np.array([[-7, 2]], dtype=np.float32))
    assert (stats.low.tolist(), stats.high.tolist(), stats.tokens) == ([-7, -1], [3, 5], 3)
    assert stats.mean.tolist() == [-1, 2]
    assert stats.sample.tolist() == [[1, -1], [3, 5], [-7, 2]]


def test_the_sample_is_drawn_evenly_and_memory_is_flat() -> None:
    """20 x 1,024 numbered tokens: each twentieth of the stream should hold about 51 of the 1,024 that are kept."""
    stats = ActivationStats(1, seed=0)
    size = stats._sample.nbytes
    for chunk in np.arange(20 * SAMPLE_TOKENS, dtype=np.float32).reshape(-1, 64, 1):
        stats.update(chunk)
    kept = stats.sample[:, 0]
    assert len(kept) == len(set(kept.tolist())) == SAMPLE_TOKENS
    assert stats._sample.nbytes == size
    counts = np.histogram(kept, bins=20, range=(0, 20 * SAMPLE_TOKENS))[0]
    expected = SAMPLE_TOKENS / 20
    assert float(np.square(counts - expected).sum() / expected) < 43.8  # chi-squared, 19 degrees, p = 0.001


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    tiny_tokenizer(folder)
    return Tokenizer.load(folder)


def _embedding(table: Array, types: bool = False) -> Any:
    inputs = {name: ["b", "s"] for name in ("input_ids", "attention_mask", *(["token_type_ids"] if types else []))}
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["hidden"])]
    if types:
        nodes += [helper.make_node("Gather", ["table", "token_type_ids"], ["type"]),
                  helper.make_node("Add", ["hidden", "type"], ["y"])]
    else:
        nodes.append(helper.make_node("Identity", ["hidden"], ["y"]))
    return graph_of(nodes, inputs, {"y": ["b", "s", table.shape[1]]}, {"table": table.astype(np.float32)}, ids=True)


def test_calibration_does_not_see_padding(tokenizer: Tokenizer) -> None:
    size = tokenizer.backend.get_vocab_size()
    table = np.tile(np.arange(size, dtype=np.float32)[:, None], (1, 3))
    table[tokenizer.pad_token_id] = 1e6
    texts = ["light", "turn on the light in the kitchen please", "a b c d e f g h i j"]
    (stats,) = collect(_embedding(table), ["hidden"], tokenizer, texts).values()
    rows = tokenizer.encode_batch(texts)
    assert len({len(row) for row in rows}) > 1  # so one batch holds padding
    flat = [index for row in rows for index in row]
    assert stats.tokens == len(flat)
    assert stats.high.tolist() == [max(flat)] * 3 and stats.low.tolist() == [min(flat)] * 3
    assert sorted(stats.sample[:, 0].tolist()) == sorted(flat)


@pytest.mark.parametrize("percent", [50.0, 99.9])
def test_ranges_are_the_same_with_and_without_padding(
        tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, percent: float) -> None:
    size = tokenizer.backend.get_vocab_size()
    table = np.random.default_rng(0).normal(size=(size, 8))
    table[tokenizer.pad_token_id] = 1e6
    texts = ["light", "turn on the light in the kitchen please", "a b c d e f g h i j", "lamp", "is it"]
    padded = collect(_embedding(table), ["hidden"], tokenizer, texts)["hidden"]
    monkeypatch.setattr(distilface.calibration, "batches_by_length", lambda lengths, **_: [[i] for i in range(5)])
    alone = collect(_embedding(table), ["hidden"], tokenizer, texts)["hidden"]
    assert alone.tokens == padded.tokens
    for found, expected in ((padded.low, alone.low), (padded.high, alone.high),
                            (padded.histograms.counts, alone.histograms.counts)):
        np.testing.assert_array_equal(found, expected)
    assert percentile(padded.histograms.tensor(), percent) == percentile(alone.histograms.tensor(), percent)
    assert abs(percentile(padded.histograms.tensor(), percent)[1]) < 10


def test_rows_may_be_tokens_or_texts_and_nothing_else(tokenizer: Tokenizer) -> None:
    table = np.random.default_rng(0).normal(size=(tokenizer.backend.get_vocab_size(), 4)).astype(np.float32)
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["hidden"]),
             helper.make_node("Reshape", ["hidden", "flat"], ["tokens"]),
             helper.make_node("ReduceMax", ["hidden", "one"], ["texts"], keepdims=0),
             helper.make_node("Transpose", ["hidden"], ["turned"], perm=[0, 2, 1]),
             helper.make_node("Identity", ["hidden"], ["y"])]
    model = graph_of(nodes, {name: ["b", "s"] for name in ("input_ids", "attention_mask")}, {"y": ["b", "s", 4]},
                     {"table": table, "flat": np.array([-1, 4]), "one": np.array([1])}, ids=True)
    texts = ["light", "turn on the light", "is it dark"]
    stats = collect(model, ["hidden", "tokens", "texts", "turned"], tokenizer, texts)
    assert list(stats) == ["hidden", "tokens", "texts"]
    assert stats["hidden"].tokens == stats["tokens"].tokens == sum(map(len, tokenizer.encode_batch(texts)))
    assert stats["texts"].tokens == 3
    np.testing.assert_array_equal(stats["hidden"].high, stats["tokens"].high)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_damaged_weights_fail_by_the_tensors_name(tokenizer: Tokenizer, value: float) -> None:
    table = np.ones((tokenizer.backend.get_vocab_size(), 2))
    table[tokenizer.encode_batch(["light"])[0][1], 1] = value
    with pytest.raises(GateError, match=r"'hidden'.*not finite"):
        collect(_embedding(table), ["hidden"], tokenizer, ["a", "light"])


def test_calibration_feeds_token_types_where_the_graph_asks(tokenizer: Tokenizer) -> None:
    table = np.ones((tokenizer.backend.get_vocab_size(), 2))
    stats = collect(_embedding(table, types=True), ["y"], tokenizer, ["a", "b"])
    assert stats["y"].high.tolist() == [2, 2]


def test_calibration_reports_progress_and_needs_texts(tokenizer: Tokenizer) -> None:
    table = np.ones((tokenizer.backend.get_vocab_size(), 2))
    seen: list[tuple[int, int]] = []
    collect(_embedding(table), ["hidden"], tokenizer, ["light"] * 300, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (300, 300) and seen == sorted(seen)
    for texts in ([], ["one"]):
        with pytest.raises(UserError, match=f"{len(texts)} text"):
            collect(_embedding(table), ["hidden"], tokenizer, texts)


def test_calibration_uses_no_more_threads_than_the_process_may(
        tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """0 would let ONNX Runtime count the machine's processors and fail to pin threads to those it may not use."""
    seen: list[int] = []

    class Spy(ort.InferenceSession):  # type: ignore[misc]
        def __init__(self, model: Any, options: Any, **rest: Any) -> None:
            seen.append(options.intra_op_num_threads)
            super().__init__(model, options, **rest)

    monkeypatch.setattr(ort, "InferenceSession", Spy)
    collect(_embedding(np.ones((tokenizer.backend.get_vocab_size(), 2))), ["hidden"], tokenizer, ["a", "b"])
    assert seen and all(threads >= 1 for threads in seen)


