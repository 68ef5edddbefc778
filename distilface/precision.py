"""Smaller vectors: cut to fewer dimensions, eight bits a dimension, or one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from distilface.artifact import atomic_file
from distilface.config import StrictModel
from distilface.errors import UserError
from distilface.protocol import Vectors

Precision = Literal["float32", "int8", "binary"]
PRECISIONS: tuple[str, ...] = get_args(Precision)
DTYPES: dict[str, Any] = {"float32": np.float32, "int8": np.int8, "binary": np.uint8}
_STEPS = 255


class _ScalesFile(StrictModel):
    kind: Literal["scales"] = "scales"
    low: list[float]
    high: list[float]


@dataclass(frozen=True)
class Scales:
    """The range of each dimension that int8 vectors divide into 255 steps.

    Attributes:
        low, high: float32 ``[dim]``, smallest and largest value in the sample.
    """

    low: Vectors
    high: Vectors

    @classmethod
    def fit(cls, sample: NDArray[np.floating[Any]]) -> Scales:
        """The ranges of a sample of vectors ``[n, dim]``, ``n`` at least 2."""
        if sample.ndim != 2 or len(sample) < 2:
            raise UserError(f"scales need a sample of at least 2 vectors [n, dim]; got shape {sample.shape}")
        if not np.isfinite(sample).all():
            raise UserError("the sample of vectors holds NaN or infinity; no range can be fitted on it")
        return cls(sample.min(axis=0).astype(np.float32), sample.max(axis=0).astype(np.float32))

    @classmethod
    def load(cls, file: str | Path) -> Scales:
        """Read what `save` wrote."""
        try:
            values = _ScalesFile.model_validate_json(Path(file).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no file of scales"
            raise UserError(f"scales {str(file)!r} can't be read: {reason}; write one with Scales.save") from None
        if len(values.low) != len(values.high):
            raise UserError(f"scales {str(file)!r} hold {len(values.low)} low and {len(values.high)} high values")
        return cls(np.array(values.low, dtype=np.float32), np.array(values.high, dtype=np.float32))

    def save(self, file: str | Path) -> None:
        """Write as JSON."""
        with atomic_file(file) as temporary:
            temporary.write_text(_ScalesFile(low=self.low.tolist(), high=self.high.tolist()).model_dump_json(),
                                 encoding="utf-8")

    @property
    def dim(self) -> int:
        """Dimensions of the vectors they were fitted on."""
        return len(self.low)

    def encode(self, vectors: Vectors) -> NDArray[np.int8]:
        """``floor((v - low) / step) - 128``, as sentence-transformers does; values outside the range are clipped."""
        self._check(vectors.shape[-1])
        return (np.clip(np.floor((vectors - self.low) / self._step), 0, _STEPS) - 128).astype(np.int8)

    def decode(self, vectors: NDArray[np.int8]) -> Vectors:
        """The middle of each step: within half a step of what was encoded, unless that was clipped."""
        self._check(vectors.shape[-1])
        return (vectors.astype(np.float32) + np.float32(128.5)) * self._step + self.low

    @property
    def _step(self) -> Vectors:
        step = (self.high - self.low) / np.float32(_STEPS)
        return np.where(step == 0, np.float32(1), step)

    def _check(self, width: int) -> None:
        if width != self.dim:
            raise UserError(f"scales were fitted on {self.dim} dimensions; got vectors of {width}")


def scales_beside(file: str | Path) -> Path:
    """Where the scales of a file of int8 vectors lie."""
    return Path(f"{file}.scales.json")


def truncate(vectors: Vectors, dim: int | None) -> Vectors:
    """The first ``dim`` dimensions, unit length again; None keeps all. A row of zeros stays."""
    if dim is None:
        return vectors
    if not 0 < dim <= vectors.shape[1]:
        raise UserError(f"truncate_dim is {dim}; allowed: 1 to {vectors.shape[1]}, the width of the vectors")
    cut = vectors[:, :dim]
    norms = np.linalg.norm(cut, axis=1, keepdims=True)
    return cut / np.where(norms > 0, norms, np.float32(1))


def with_precision(vectors: Vectors, precision: Precision, scales: Scales | None = None) -> NDArray[Any]:
    """Vectors ``[n, dim]`` as they are, as int8 ``[n, dim]``, or as sign bits uint8 ``[n, ceil(dim / 8)]``.

    Bits are packed as by `numpy.packbits`: the first dimension is the highest bit, zeros fill the last byte.
    """
    if precision not in PRECISIONS:
        raise UserError(f"unknown precision {precision!r}; allowed: {', '.join(PRECISIONS)}")
    if precision != "int8" and scales is not None:
        raise UserError(f"scales belong to precision 'int8'; {precision!r} takes none")
    if precision == "float32":
        return vectors
    if precision == "binary":
        return np.packbits(vectors > 0, axis=1)
    if scales is None:
        raise UserError("precision 'int8' needs scales; fit them on a sample of your texts: scales=encoder.fit_scales("
                        "sample)")
    return scales.encode(vectors)


def width_of(dim: int, precision: Precision) -> int:
    """Numbers stored for one vector of ``dim`` dimensions."""
    return (dim + 7) // 8 if precision == "binary" else dim
