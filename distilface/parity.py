"""Numerical proof: how far two encoders are apart, and how far a vector moves with its batch-mates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from distilface.golden import GOLDEN_TEXTS, LONG_NEIGHBOUR
from distilface.tokenizer import check_texts

if TYPE_CHECKING:
    from distilface.runtime import Encoder

FP32_FLOOR = 0.99999
"""Least cosine between the exported float32 graph and torch."""
INVARIANT = 0.999999
"""Least cosine between a text's vector alone and in a batch, for a graph called batch-invariant."""


def cosines(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float64]:
    """Cosine of each row of ``[n, dim]`` with the same row of the other, in float64; a zero or NaN row gives 0."""
    a, b = first.astype(np.float64), second.astype(np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.nan_to_num(np.where(norms > 0, (a * b).sum(axis=1) / norms, 0.0))


def batch_dependence(encoder: Encoder, texts: Sequence[str] = GOLDEN_TEXTS, neighbour: str = LONG_NEIGHBOUR) -> float:
    """Worst cosine between the vector of a text alone and beside long neighbours in one padded batch; 1 is invariant.

    Each text is measured beside one long neighbour (most padding), and all texts together (widest activation ranges).
    """
    rows = encoder.tokenizer.encode_batch(check_texts(texts))
    long = encoder.tokenizer.encode_batch([neighbour])[0]
    alone = np.concatenate([encoder.embed_batch([row]) for row in rows])
    beside = np.concatenate([encoder.embed_batch([row, long])[:1] for row in rows])
    together = encoder.embed_batch(rows)
    return float(min(cosines(alone, beside).min(), cosines(alone, together).min()))
