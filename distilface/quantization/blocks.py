"""Blockwise integers: each run of 16, 32, ... values along the last axis has a scale (and a zero point) of its own.

Scales are searched, not taken from the extremes: clipping the largest value of a block often costs less than coarse
steps for all the others. For each clipping the scale is then refitted to the rounded values by least squares, in turn
with the rounding, which never makes the error larger.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distilface.errors import UserError

Array = NDArray[np.float32]

CLIPPING = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7)
"""Fractions of a block's extremes that are tried."""
REFITS = 3
MIN_BLOCK = 16
_SLICE_VALUES = 2**16
"""Values searched at a time: what fits into the processor's cache."""


@dataclass(frozen=True)
class Blocks:
    """A matrix ``[rows, columns]`` in blocks along its columns: ``(codes - zero_points) * scales``.

    Attributes:
        codes: uint8 ``[rows, blocks * block_size]``, each below ``2 ** bits``; the last block is filled up with zeros.
        scales: float32 ``[rows, blocks]``.
        zero_points: uint8 ``[rows, blocks]``; all ``2 ** (bits - 1)`` in a symmetric matrix.
    """

    codes: NDArray[np.uint8]
    scales: Array
    zero_points: NDArray[np.uint8]
    bits: int
    block_size: int
    columns: int

    @property
    def symmetric(self) -> bool:
        return bool((self.zero_points == 1 << (self.bits - 1)).all())

    def restored(self) -> Array:
        """The matrix as its readers see it, float32 ``[rows, columns]``."""
        rows, blocks = self.scales.shape
        steps = self.codes.reshape(rows, blocks, -1).astype(np.float32) - self.zero_points[..., None]
        return (steps * self.scales[..., None]).reshape(rows, -1)[:, : self.columns]

    def packed(self) -> NDArray[np.uint8]:
        """Codes in ``bits`` each, low bits first: uint8 ``[rows, blocks * block_size * bits / 8]``."""
        return pack(self.codes, self.bits)


def pack(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Two 4-bit codes a byte along the last axis, the first in the low half; an odd end gets a zero. 8 bits: as is."""
    if bits == 8:
        return codes
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros((*codes.shape[:-1], 1), dtype=np.uint8)], axis=-1)
    packed: NDArray[np.uint8] = codes[..., ::2] | codes[..., 1::2] << np.uint8(4)
    return packed


def quantize_blocks(values: Array, bits: int, block_size: int, symmetric: bool) -> Blocks:
    """Blockwise integers of ``values`` ``[rows, columns]`` with the least squared error the search finds.

    Args:
        symmetric: zero is the middle code, so that no zero points need to be stored.
    """
    rows, columns = values.shape
    blocks = -(-columns // block_size)
    padded = np.zeros((rows, blocks * block_size), dtype=np.float32)
    padded[:, :columns] = values
    flat = padded.reshape(-1, block_size)
    step = max(1, _SLICE_VALUES // block_size)
    parts = [_search(flat[start : start + step], bits, symmetric) for start in range(0, len(flat), step)]
    codes, scales, zero_points = (np.concatenate(item) for item in zip(*parts, strict=True))
    return Blocks(codes.reshape(rows, -1), scales.reshape(rows, -1), zero_points.reshape(rows, -1), bits, block_size,
                  columns)


def _search(values: Array, bits: int, symmetric: bool) -> tuple[NDArray[np.uint8], Array, NDArray[np.uint8]]:
    """Codes ``[n, block]``, scales and zero points ``[n]`` of the best attempt for each block."""
    codes, middle = 1 << bits, 1 << (bits - 1)
    low, high = np.minimum(values.min(axis=1), 0), np.maximum(values.max(axis=1), 0)
    scale, zero = np.ones(len(values), dtype=np.float32), np.full(len(values), middle, dtype=np.float32)
    best = np.zeros(len(values), dtype=np.float32)
    for start, centre in _attempts(low, high, codes, symmetric):
        fitted, gain = _refit(values, _round(values, start, centre, codes))
        better = gain > best
        best = np.where(better, gain, best)
        scale, zero = np.where(better, fitted, scale), np.where(better, centre, zero)
    for _ in range(REFITS):
        fitted, _ = _refit(values, _round(values, scale, zero, codes))
        scale = np.where(fitted == 0, scale, fitted)
    steps = _round(values, scale, zero, codes)
    return (steps + zero[:, None]).astype(np.uint8), scale, zero.astype(np.uint8)


def _attempts(low: Array, high: Array, codes: int, symmetric: bool) -> Iterator[tuple[Array, Array]]:
    """Scales and zero points to try, ``[n]`` each; no scale is zero."""
    middle = np.float32(codes // 2)
    for clipping in map(np.float32, CLIPPING):
        if symmetric:
            # There is one more code below zero than above it: the block may be turned over, with a negative scale.
            largest = np.where(high > -low, high, low) * clipping
            for scale in (-largest / middle, np.abs(largest) / (middle - 1)):
                yield np.where(scale == 0, np.float32(1), scale), np.full_like(low, middle)
        else:
            scale = (high - low) * clipping / np.float32(codes - 1)
            scale = np.where(scale == 0, np.float32(1), scale)
            yield scale, np.rint(-low * clipping / scale)


def _round(values: Array, scale: Array, zero: Array, codes: int) -> Array:
    """Whole steps from zero, ``[n, block]``, within the codes there are."""
    steps = values / scale[:, None]
    np.rint(steps, out=steps)
    return np.clip(steps, -zero[:, None], codes - 1 - zero[:, None], out=steps)


def _refit(values: Array, steps: Array) -> tuple[Array, Array]:
    """The scale with the least squared error for these steps, and by how much it is below that of all zeros."""
    power = np.maximum(np.einsum("ij,ij->i", steps, steps), np.float32(1e-9))
    product = np.einsum("ij,ij->i", steps, values)
    return product / power, product * product / power


def check_block_size(block_size: int) -> int:
    """The block sizes that the runtime's operators take."""
    if block_size < MIN_BLOCK or block_size & (block_size - 1):
        raise UserError(f"block size is {block_size}; allowed: a power of two, {MIN_BLOCK} or more (32, 64, 128)")
    return block_size
