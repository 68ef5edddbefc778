"""Exact search: equal to sorting all scores, whatever the blocks, the corpus' kind and where it lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distilface.errors import UserError
from distilface.precision import Scales, scales_beside, with_precision
from distilface.protocol import Vectors
from distilface.search import Hits, search, similarity
from tests.unit.test_precision import unit

CORPUS = unit(3000, 24)
QUERIES = unit(300, 24, seed=1)  # more than are scored at a time
BLOCK = 24 * 4 * 100  # bytes of 100 rows


def sorted_in_full(queries: Vectors, corpus: Vectors, k: int) -> Hits:
    scores = (queries.astype(np.float64) @ corpus.astype(np.float64).T).astype(np.float32)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return Hits(order, np.take_along_axis(scores, order, axis=1))


def assert_same(found: Hits, expected: Hits) -> None:
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-6)
    assert found.indices.dtype == np.int64 and found.scores.dtype == np.float32


@pytest.mark.parametrize("k", [1, 10, 150, 5000])
@pytest.mark.parametrize("block_bytes", [1, BLOCK, 1 << 24])
def test_it_is_what_sorting_everything_gives(k: int, block_bytes: int) -> None:
    queries = QUERIES[:3] if block_bytes == 1 else QUERIES[:20] if k > 10 else QUERIES  # 1: a row at a time
    assert_same(search(queries, CORPUS, k, block_bytes=block_bytes), sorted_in_full(queries, CORPUS, k))


def test_equal_rows_are_ordered_by_row_wherever_the_blocks_end() -> None:
    corpus = np.tile(unit(7, 24, seed=2), (90, 1))
    for rows in (1, 5, 64, 97, 1000):
        found = search(QUERIES[:20], corpus, 200, block_bytes=24 * 4 * rows)
        assert_same(found, sorted_in_full(QUERIES[:20], corpus, 200))
        firsts = found.indices[:, :90]
        assert (np.diff(firsts, axis=1) == 7).all()  # the 90 copies of the nearest row, in order


def test_corpora_on_disk(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    expected = sorted_in_full(QUERIES, CORPUS, 5)
    np.save(tmp_path / "c.npy", CORPUS)
    vectors = arrow.FixedSizeListArray.from_arrays(arrow.array(CORPUS.ravel()), 24)
    parquet.write_table(arrow.table({"text": ["t"] * 3000, "vector": vectors}), tmp_path / "c.parquet",
                        row_group_size=700)
    for name in ("c.npy", "c.parquet"):
        assert_same(search(QUERIES, tmp_path / name, 5, block_bytes=BLOCK), expected)
        assert_same(search(QUERIES, str(tmp_path / name), 5), expected)
    np.save(tmp_path / "half.npy", CORPUS.astype(np.float16))
    assert_same(search(QUERIES, tmp_path / "half.npy", 5),
                sorted_in_full(QUERIES, CORPUS.astype(np.float16).astype(np.float32), 5))


def test_int8_corpus(tmp_path: Path) -> None:
    scales = Scales.fit(CORPUS)
    small = with_precision(CORPUS, "int8", scales)
    expected = sorted_in_full(QUERIES, scales.decode(small), 7)
    assert_same(search(QUERIES, small, 7, scales=scales, block_bytes=BLOCK), expected)
    exact = sorted_in_full(QUERIES, CORPUS, 7)
    assert (expected.indices[:, 0] == exact.indices[:, 0]).mean() > 0.95
    np.save(tmp_path / "c.npy", small)
    scales.save(scales_beside(tmp_path / "c.npy"))
    assert_same(search(QUERIES, tmp_path / "c.npy", 7), expected)


@pytest.mark.parametrize("dim", [24, 21])
def test_binary_corpus_is_chosen_by_hamming_distance_and_scored_with_the_query(dim: int) -> None:
    corpus, queries = CORPUS[:500, :dim], QUERIES[:40, :dim]
    signs = np.where(corpus > 0, 1.0, -1.0)
    packed = with_precision(corpus, "binary")
    distances = ((queries > 0)[:, None, :] != (corpus > 0)[None]).sum(axis=2)
    scores = queries.astype(np.float64) @ signs.T / np.linalg.norm(queries, axis=1)[:, None] / np.sqrt(dim)
    for k, oversample in ((3, 4), (5, 1), (2, 250)):
        found = search(queries, packed, k, oversample=oversample, block_bytes=4 * 3 * 37)
        for row in range(len(queries)):
            near = np.lexsort((np.arange(500), distances[row]))[: k * oversample]
            best = near[np.lexsort((near, -scores[row][near].astype(np.float32)))][:k]
            assert found.indices[row].tolist() == best.tolist()
            np.testing.assert_allclose(found.scores[row], scores[row][best], atol=1e-6)


def test_nothing_to_search_in_or_for() -> None:
    assert search(QUERIES[:2], CORPUS[:0], 3).indices.shape == (2, 0)
    assert search(QUERIES[:0], CORPUS, 3).indices.shape == (0, 3)
    assert search(QUERIES[:2], CORPUS[:2], 3).indices.shape == (2, 2)


def test_vectors_that_are_not_of_unit_length() -> None:
    corpus, queries = CORPUS * 1e4, QUERIES[:20] * 1e3
    found, expected = search(queries, corpus, 9, block_bytes=BLOCK), sorted_in_full(queries, corpus, 9)
    np.testing.assert_array_equal(found.indices, expected.indices)


def test_similarity_is_the_cosine() -> None:
    a = np.array([[3.0, 4.0], [0.0, 0.0]], np.float32)
    b = np.array([[4.0, 3.0], [-6.0, -8.0], [1.0, 0.0]], np.float32)
    np.testing.assert_allclose(similarity(a, b), [[0.96, -1, 0.6], [0, 0, 0]], atol=1e-6)


def _nan() -> Vectors:
    bad = CORPUS.copy()
    bad[1234, 5] = np.nan
    return bad


@pytest.mark.parametrize(("arguments", "expected"), [
    ((QUERIES, CORPUS, 0), "k is 0"),
    ((QUERIES[0], CORPUS), r"queries must be float vectors \[n, dim\]; got float32 of shape \(24,\)"),
    ((CORPUS.astype(np.int8), CORPUS), "got int8"),
    ((QUERIES, CORPUS[:, :20]), "queries have 24 dimensions and the corpus has 20 dimensions"),
    ((QUERIES, with_precision(CORPUS[:, :16], "binary")), "24 dimensions and the corpus has 16 bits"),
    ((QUERIES, CORPUS[0]), r"array \[n, dim\]; got shape \(24,\)"),
    ((QUERIES, CORPUS.astype(np.int8)), "scales belong to int8"),
    ((QUERIES, CORPUS.astype(np.int32)), "holds int32; allowed: float16"),
    ((QUERIES, [[1.0] * 24]), "got list"),
    ((QUERIES * np.nan, CORPUS), "queries hold NaN"),
    ((QUERIES, _nan()), "row 1234 of the corpus holds NaN"),
    ((QUERIES, "nowhere.npy"), "'nowhere.npy' does not exist"),
    ((QUERIES, Path(__file__)), "suffix '.py'"),
    ((QUERIES, Path(__file__).parent), "no folder of vectors"),
])
def test_mistakes(arguments: Any, expected: str) -> None:
    with pytest.raises(UserError, match=expected) as caught:
        search(*arguments, **{"block_bytes": BLOCK})
    assert "\n" not in str(caught.value)


def test_damaged_corpora(tmp_path: Path) -> None:
    np.save(tmp_path / "cut.npy", CORPUS)
    data = (tmp_path / "cut.npy").read_bytes()
    (tmp_path / "cut.npy").write_bytes(data[:-1])
    (tmp_path / "text.npy").write_bytes(b"no array")
    np.save(tmp_path / "columns.npy", np.asfortranarray(CORPUS))
    (tmp_path / "text.parquet").write_bytes(b"PAR1")
    for name, expected in (("cut.npy", "shorter than its header"), ("text.npy", "no readable .npy"),
                           ("columns.npy", "row by row"), ("text.parquet", "no readable Parquet")):
        if name.endswith("parquet"):
            pytest.importorskip("pyarrow")
        with pytest.raises(UserError, match=expected):
            search(QUERIES, tmp_path / name)
