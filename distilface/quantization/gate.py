"""The gate every quantized variant must pass: how near it stays to fp32 on texts it was not calibrated on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distilface.errors import GateError
from distilface.evaluation import StsPairs, similarities, spearman
from distilface.parity import cosines
from distilface.protocol import SentenceVectors, Vectors

FIDELITY_PAIRS = 2000


@dataclass(frozen=True)
class GateResult:
    """What the gate measured.

    Attributes:
        minimum_cosine, mean_cosine: to the fp32 vector, over the held-out texts.
        drop: Spearman lost, in points. With labelled pairs: fp32's Spearman minus the variant's. Without: 100 minus
            the Spearman between the two graphs' own similarities of random held-out pairs.
        labelled: which of the two.
        texts, pairs: how many were measured.
    """

    minimum_cosine: float
    mean_cosine: float
    drop: float
    labelled: bool
    texts: int
    pairs: int


def measure(reference: SentenceVectors, candidate: SentenceVectors, texts: Sequence[str],
            labelled: StsPairs | None = None) -> GateResult:
    """Compare ``candidate`` with ``reference`` on held-out texts and, when given, on labelled pairs."""
    expected, found = reference.encode(texts), candidate.encode(texts)
    near = cosines(expected, found)
    if labelled is not None:
        before, after = (float(spearman(labelled.gold, similarities(encoder, [labelled])[0]))
                         for encoder in (reference, candidate))
        drop, pairs = 100 * (before - after), len(labelled.gold)
    else:
        drop, pairs = _unlike(expected, found)
    return GateResult(float(near.min()), float(near.mean()), drop, labelled is not None, len(texts), pairs)


def enforce(result: GateResult, max_drop: float, min_cosine: float, hint: str) -> None:
    """Raise `GateError` when a limit is broken; ``hint`` says which nodes hurt or what to try."""
    if found := broken_limits(result, max_drop, min_cosine):
        raise GateError(f"quantization gate failed on {result.texts} held-out texts: {'; '.join(found)}. {hint}")


def broken_limits(result: GateResult, max_drop: float, min_cosine: float) -> list[str]:
    """What was measured and is not allowed, in words."""
    broken = []
    if not result.minimum_cosine >= min_cosine:
        broken.append(f"minimum cosine to fp32 is {result.minimum_cosine:.4f} (allowed: {min_cosine} or more)")
    if not result.drop <= max_drop:
        what = "Spearman drop" if result.labelled else "Spearman drop against fp32's own similarities"
        broken.append(f"{what} is {result.drop:.2f} points (allowed: {max_drop} or less)")
    return broken


def _unlike(expected: Vectors, found: Vectors) -> tuple[float, int]:
    """100 x (1 - Spearman) between two models' similarities of the same random pairs of texts."""
    count = len(expected)
    random = np.random.default_rng(0)
    first = random.integers(0, count, FIDELITY_PAIRS)
    second = (first + random.integers(1, count, FIDELITY_PAIRS)) % count

    def similarity(vectors: Vectors) -> NDArray[np.float64]:
        return (vectors[first].astype(np.float64) * vectors[second]).sum(axis=1)

    return 100 * (1 - float(spearman(similarity(expected), similarity(found)))), FIDELITY_PAIRS
