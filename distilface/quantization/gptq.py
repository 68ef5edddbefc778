"""GPTQ for weights in blocks: second moments of the inputs over the user's sentences, and `rounding` by them.

Scales and zero points are those of the search in `blocks`, fixed beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilface.calibration import activations, valid_rows
from distilface.quantization.blocks import Blocks, quantize_blocks
from distilface.quantization.rounding import Moments, round_columns
from distilface.tokenizer import Tokenizer

Array = NDArray[np.float32]
DAMPING = 0.01


def second_moments(model: Any, tensors: Sequence[str], tokenizer: Tokenizer, texts: Sequence[str],
                   progress: Callable[[int, int], None] | None = None) -> dict[str, Moments]:
    """``sum x x^T`` over the unmasked tokens of ``texts``, float64 ``[channels, channels]``, for each tensor.

    Tensors whose rows are neither tokens nor texts are left out, as in `calibration.collect`. Memory depends on the
    model, not on the number of texts.
    """
    moments: dict[str, Moments] = {}
    done = 0
    for values, mask in activations(model, tensors, tokenizer, texts):
        for name, value in zip(tensors, values, strict=True):
            rows = valid_rows(value, mask)
            if rows is not None:
                moments[name] = moments.get(name, 0) + (rows.T @ rows).astype(np.float64)
        done += len(mask)
        if progress is not None:
            progress(done, len(texts))
    return moments


def round_with_feedback(weights: Array, moments: Moments, bits: int, block_size: int, symmetric: bool) -> Blocks:
    """Blockwise integers of ``weights`` ``[outputs, inputs]`` for inputs of these second moments.

    Returns:
        as `blocks.quantize_blocks`; the product's squared error over the sentences is what is small.
    """
    blocks = quantize_blocks(weights, bits, block_size, symmetric)
    scales = np.repeat(blocks.scales, block_size, axis=1).astype(np.float64)
    zeros = np.repeat(blocks.zero_points, block_size, axis=1).astype(np.float64)
    codes = round_columns(weights, moments, scales, zeros, 0, (1 << bits) - 1, DAMPING)
    return Blocks(codes.astype(blocks.codes.dtype), blocks.scales, blocks.zero_points, bits, block_size, blocks.columns)
