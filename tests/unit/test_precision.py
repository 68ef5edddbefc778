"""Vectors cut, in eight bits and in one: equal to sentence-transformers, and what does not fit is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distilface.errors import UserError
from distilface.precision import Scales, truncate, with_precision
from distilface.protocol import Vectors


def unit(rows: int, dim: int, seed: int = 0) -> Vectors:
    vectors = np.random.default_rng(seed).standard_normal((rows, dim)).astype(np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def test_int8_by_hand() -> None:
    scales = Scales(np.array([-1.0, 0.0], np.float32), np.array([1.55, 2.55], np.float32))  # steps of 0.01
    vectors = np.array([[-1.0, 0.0], [1.55, 2.55], [-0.985, 1.285], [-5.0, 9.0]], np.float32)
    assert scales.encode(vectors).tolist() == [[-128, -128], [127, 127], [-127, 0], [-128, 127]]
    np.testing.assert_allclose(scales.decode(scales.encode(vectors[:3])), vectors[:3], atol=0.00501)


def test_signs_are_packed_highest_bit_first() -> None:
    vectors = np.array([[1, -1, 1, 1, -1, -1, 0, 1, 1, -1]], np.float32)
    assert with_precision(vectors, "binary").tolist() == [[0b10110001, 0b10000000]]


def test_decoded_values_are_within_half_a_step() -> None:
    sample = unit(500, 16)
    scales = Scales.fit(sample)
    step = (sample.max(axis=0) - sample.min(axis=0)) / 255
    assert (np.abs(scales.decode(scales.encode(sample)) - sample) <= step * 0.501).all()


def test_a_dimension_without_a_range_is_kept() -> None:
    scales = Scales.fit(np.array([[0.5, 0.1], [0.5, 0.2]], np.float32))
    assert np.isfinite(scales.decode(scales.encode(np.array([[0.5, 0.1]], np.float32)))).all()


def test_truncated_vectors_are_of_unit_length() -> None:
    cut = truncate(np.array([[3.0, 4.0, 12.0], [0.0, 0.0, 1.0]], np.float32), 2)
    np.testing.assert_allclose(cut, [[0.6, 0.8], [0.0, 0.0]], atol=1e-7)
    assert cut.dtype == np.float32
    assert truncate(cut, None) is cut


def test_scales_on_disk(tmp_path: Path) -> None:
    scales = Scales.fit(unit(9, 7))
    scales.save(tmp_path / "s.json")
    found = Scales.load(tmp_path / "s.json")
    np.testing.assert_array_equal(found.low, scales.low)
    np.testing.assert_array_equal(found.high, scales.high)


@pytest.mark.parametrize(("text", "expected"), [
    (None, "No such file"), ("{}", "no file of scales"), ("low", "no file of scales"),
    ('{"low": [1], "high": [1, 2]}', "1 low and 2 high")])
def test_no_scales_on_disk(tmp_path: Path, text: str | None, expected: str) -> None:
    if text is not None:
        (tmp_path / "s.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=expected) as caught:
        Scales.load(tmp_path / "s.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("call", "expected"), [
    (lambda v: truncate(v, 0), "truncate_dim is 0; allowed: 1 to 8"),
    (lambda v: truncate(v, 9), "truncate_dim is 9"),
    (lambda v: with_precision(v, "int4"), "'int4'; allowed: float32, int8, binary"),
    (lambda v: with_precision(v, "int8"), "needs scales"),
    (lambda v: with_precision(v, "binary", Scales.fit(v)), "scales belong to precision 'int8'"),
    (lambda v: with_precision(v, "int8", Scales.fit(v[:, :4])), "fitted on 4 dimensions; got vectors of 8"),
    (lambda v: Scales.fit(v).decode(np.zeros((1, 3), np.int8)), "fitted on 8"),
    (lambda v: Scales.fit(v[:1]), "at least 2 vectors"),
    (lambda v: Scales.fit(v * np.nan), "NaN"),
])
def test_mistakes(call: Any, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        call(unit(5, 8))
