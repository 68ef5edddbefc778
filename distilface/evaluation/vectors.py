"""Encoding every distinct text once, and cosines that survive a zero vector."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distilface.errors import GateError
from distilface.protocol import SentenceVectors

Indices = NDArray[np.intp]


def encode_distinct(encoder: SentenceVectors,
                    columns: Sequence[Sequence[str]]) -> tuple[NDArray[np.float32], list[Indices]]:
    """Encode each distinct text of ``columns`` once, in one call.

    Returns:
        Vectors ``[distinct, dim]`` in order of first appearance, and for every column the row of each of its texts.

    Raises:
        GateError: if a vector holds NaN or infinity.
    """
    rows: dict[str, int] = {}
    indices = [np.array([rows.setdefault(text, len(rows)) for text in column], dtype=np.intp) for column in columns]
    vectors = np.asarray(encoder.encode(list(rows)), dtype=np.float32)
    if vectors.ndim != 2 or len(vectors) != len(rows):
        raise ValueError(f"the encoder returned shape {vectors.shape} for {len(rows)} texts; "
                         f"expected [{len(rows)}, dim]")
    if bad := int((~np.isfinite(vectors)).any(1).sum()):
        raise GateError(f"{bad} of {len(vectors)} vectors hold NaN or infinity; the model is broken")
    return vectors, indices


class KnownVectors:
    """Vectors that were computed before, ``[len(texts), dim]``, as an encoder of just these texts."""

    def __init__(self, texts: Sequence[str], vectors: NDArray[np.float32]) -> None:
        self.rows = {text: index for index, text in enumerate(texts)}
        self.vectors = vectors

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """``[len(texts), dim]``; KeyError for a text that is not known."""
        return self.vectors[[self.rows[text] for text in texts]]


def unit_rows(vectors: NDArray[np.floating]) -> NDArray[np.float64]:
    """Rows of norm 1 in float64; a zero row stays zero."""
    rows = np.asarray(vectors, dtype=np.float64)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1)


def cosine_rows(first: NDArray[np.floating], second: NDArray[np.floating]) -> NDArray[np.float64]:
    """Cosine of row i of ``first`` with row i of ``second``, ``[n]`` in float64; 0 where a row is zero.

    Rounded to 12 decimals, so that two pairs of identical vectors tie: unrounded, both cosines are 1 give or take the
    last bit, and that bit would rank them.
    """
    cosines: NDArray[np.float64] = np.einsum("nd,nd->n", unit_rows(first), unit_rows(second)).round(12)
    return cosines
