"""Product-quantized tables: the right codebooks, what the graph reads, and which tables stay otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from distilface.quantization.codebooks import CODES, Codebooks, codebooks, product_quantize, suits
from distilface.quantization.tables import quantize_tables

ROWS, WIDTH = 1200, 16


def test_rows_come_back_as_their_pieces() -> None:
    """By hand: two places of two values each."""
    centroids = np.zeros((2, CODES, 2), dtype=np.float32)
    centroids[0, 5], centroids[1, 7] = (1, 2), (3, 4)
    books = Codebooks(np.array([[5, 7], [0, 7]], dtype=np.uint8), centroids)
    np.testing.assert_array_equal(books.restored(), [[1, 2, 3, 4], [0, 0, 3, 4]])


def test_a_table_of_few_distinct_pieces_is_exact() -> None:
    """With fewer distinct pieces than codes, k-means must find them all."""
    random = np.random.default_rng(0)
    pieces = random.standard_normal((40, 4)).astype(np.float32)
    table = pieces[random.integers(0, 40, (ROWS, WIDTH // 4))].reshape(ROWS, WIDTH)
    np.testing.assert_allclose(product_quantize(table).restored(), table, atol=1e-5)


def test_the_error_is_near_what_the_rate_allows() -> None:
    """Gaussian values at 2 bits: rate-distortion theory allows 1/16 of the power, 2 bits alone for each leave 0.1175
    (Max, 1960). Pieces of 4 must do better than the latter on rows that k-means fits, and can't beat the former by
    more than fitting to so few rows explains."""
    table = np.random.default_rng(0).standard_normal((6000, WIDTH)).astype(np.float32)
    error = float(np.square(product_quantize(table).restored() - table).mean())
    assert 0.05 < error < 0.1175


def test_rows_that_are_used_come_out_better() -> None:
    table = np.random.default_rng(0).standard_normal((3000, WIDTH)).astype(np.float32)
    counts = np.zeros(3000, dtype=np.int64)
    counts[:50] = 100_000
    error = np.square(product_quantize(table, counts).restored() - table).mean(axis=1)
    alike = np.square(product_quantize(table).restored() - table).mean(axis=1)
    assert error[:50].mean() < 0.5 * alike[:50].mean()


def test_the_same_seed_gives_the_same_books() -> None:
    table = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)
    first, second = product_quantize(table), product_quantize(table)
    np.testing.assert_array_equal(first.codes, second.codes)
    np.testing.assert_array_equal(first.centroids, second.centroids)


def test_a_table_is_learnt_once_and_by_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other precisions of the same model, and other sets of nodes in float, have the same table of words."""
    asked: list[list[int] | None] = []

    def learn(table: Any, counts: Any) -> Codebooks:
        asked.append(None if counts is None else counts.tolist())
        return Codebooks(np.zeros((3, 1), np.uint8), np.zeros((1, CODES, 2), np.float32))

    monkeypatch.setattr("distilface.quantization.codebooks.product_quantize", learn)
    table = np.full((3, 2), 0.123, dtype=np.float32)
    words = np.array([1, 1, 0, 1])
    assert codebooks(table, words) is codebooks(table.copy(), words[::-1])
    codebooks(table)
    codebooks(table + 1, words)
    assert asked == [[1, 3, 0], None, [1, 3, 0]]


@pytest.mark.parametrize(("rows", "width", "expected"), [
    (30522, 384, True), (1024, 384, True), (1023, 384, False), (5000, 6, True), (5000, 15, False)])
def test_which_tables_get_smaller(rows: int, width: int, expected: bool) -> None:
    assert suits(rows, width) == expected


def _lookups(rows: int) -> Any:
    random = np.random.default_rng(1)
    words = random.standard_normal((rows, WIDTH)).astype(np.float32)
    positions = random.standard_normal((2000, WIDTH)).astype(np.float32)
    nodes = [helper.make_node("Gather", ["words", "input_ids"], ["w"], "words", axis=0),
             helper.make_node("Gather", ["positions", "where"], ["p"], "positions", axis=0),
             helper.make_node("Add", ["w", "p"], ["y"], "sum")]
    tokens = [helper.make_tensor_value_info(name, TensorProto.INT64, ["b", "s"]) for name in ("input_ids", "where")]
    tables = [numpy_helper.from_array(words, "words"), numpy_helper.from_array(positions, "positions")]
    graph = helper.make_graph(nodes, "lookups", tokens,
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", "s", WIDTH])], tables)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_the_graph_reads_what_the_books_say() -> None:
    """Words by codebooks, positions by INT8 rows, with standard operators; and smaller by what 2 bits save."""
    model = _lookups(ROWS)
    before = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert quantize_tables(model, "pq") == 2
    onnx.checker.check_model(model)
    assert all(node.domain == "" for node in model.graph.node)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert stored["words_codes"].dtype == np.uint8 and stored["words_codes"].shape == (ROWS, WIDTH // 4)
    assert stored["positions_int8"].dtype == np.int8 and "words" not in stored
    ids, where = np.array([[3, 1199], [0, 3]]), np.array([[0, 1], [7, 1999]])
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"input_ids": ids, "where": where})
    expected = product_quantize(before["words"]).restored()[ids]
    step = np.abs(before["positions"]).max(axis=1)[where] / 127
    tolerance = step[..., None] / 2 + 2e-3  # an INT8 step, and float16 books
    assert (np.abs(found - expected - before["positions"][where]) <= tolerance).all()


def test_a_small_table_of_words_stays_in_rows() -> None:
    model = _lookups(500)
    quantize_tables(model, "pq")
    assert "words_int8" in {tensor.name for tensor in model.graph.initializer}
