"""The one protocol that evaluation, parity and benchmarks accept, whatever computes the vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]


class SentenceVectors(Protocol):
    """Anything that turns ``n`` texts into a float32 array ``[n, dim]``, one row a text, order kept."""

    def encode(self, texts: Sequence[str]) -> Vectors: ...
