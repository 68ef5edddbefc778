"""What activations look like on the user's own sentences: streamed statistics of chosen tensors, padding left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from distilface.batching import batches_by_length
from distilface.cpu import available_cpus
from distilface.errors import GateError, UserError
from distilface.quantization.ranges import ChannelHistograms
from distilface.runtime import session_options
from distilface.tokenizer import Tokenizer

Array = NDArray[np.float32]
SAMPLE_TOKENS = 2048
"""Token vectors kept of each tensor for the searches that need real values; memory stays flat beyond."""


class ActivationStats:
    """Running statistics of one tensor ``[tokens, channels]``: what they take does not grow with what is seen.

    Attributes:
        histograms: counts and exact extremes of each channel.
        mean: per-channel mean over every token seen, ``[channels]``.
        tokens: how many unmasked tokens were seen.
    """

    def __init__(self, channels: int, seed: int) -> None:
        self.histograms = ChannelHistograms(channels)
        self.total = np.zeros(channels, dtype=np.float64)
        self.tokens = 0
        self._sample = np.empty((SAMPLE_TOKENS, channels), dtype=np.float32)
        self._random = np.random.default_rng(seed)

    def update(self, values: Array) -> None:
        """Add ``[n, channels]`` unmasked token vectors."""
        self.histograms.update(values)
        self.total += values.sum(axis=0, dtype=np.float64)
        # Reservoir sampling (Vitter's algorithm R): every token seen is kept with equal probability.
        positions = np.arange(self.tokens, self.tokens + len(values))
        slots = np.where(positions < SAMPLE_TOKENS, positions, self._random.integers(0, positions + 1))
        kept = slots < SAMPLE_TOKENS
        self._sample[slots[kept]] = values[kept]
        self.tokens += len(values)

    @property
    def low(self) -> Array:
        """Least value of each channel."""
        return self.histograms.low

    @property
    def high(self) -> Array:
        """Largest value of each channel."""
        return self.histograms.high

    @property
    def mean(self) -> NDArray[np.float64]:
        return self.total / max(1, self.tokens)

    @property
    def sample(self) -> Array:
        """Up to `SAMPLE_TOKENS` token vectors, drawn evenly from all that were seen."""
        return self._sample[: self.tokens]


def collect(model: Any, tensors: Sequence[str], tokenizer: Tokenizer, texts: Sequence[str],
            progress: Callable[[int, int], None] | None = None) -> dict[str, ActivationStats]:
    """Run ``model`` over ``texts`` and gather statistics of ``tensors``.

    Args:
        model: a float32 graph.
        progress: called with texts done and texts in all.

    Returns:
        statistics by tensor. Missing are tensors whose rows are neither tokens (``[batch, length, channels]`` or
        ``[batch * length, channels]``) nor texts (``[batch, channels]``): padding could not be told apart in them.

    Raises:
        UserError: when there is nothing to calibrate on.
        GateError: when a tensor is not finite: the graph's weights are damaged.
    """
    if len(texts) < 2:
        raise UserError(f"calibration got {len(texts)} text(s); give at least 2, better 300 sentences of the kind "
                        "the model will see")
    stats: dict[str, ActivationStats] = {}
    unknown: set[str] = set()
    done = 0
    for values, mask in activations(model, tensors, tokenizer, texts):
        for seed, (name, value) in enumerate(zip(tensors, values, strict=True)):
            valid = valid_rows(value, mask)
            if valid is None:
                unknown.add(name)
                continue
            if not np.isfinite(valid).all():
                raise GateError(f"tensor {name!r} of the float32 graph is not finite on the calibration texts; its "
                                "weights are damaged: export the checkpoint again")
            if name not in stats:
                stats[name] = ActivationStats(valid.shape[1], seed)
            stats[name].update(valid)
        done += len(mask)
        if progress is not None:
            progress(done, len(texts))
    return {name: stats[name] for name in tensors if name in stats and name not in unknown}


def valid_rows(value: Array, mask: NDArray[np.int64]) -> Array | None:
    """``[n, channels]`` without padding; None when the rows are neither tokens nor texts."""
    rows = value.reshape(-1, value.shape[-1]) if value.ndim > 1 else value[:0, None]
    if len(rows) == mask.size and (value.ndim == 2 or value.shape[:2] == mask.shape):
        return rows[mask.astype(bool).reshape(-1)]
    return rows if value.ndim == 2 and len(rows) == len(mask) else None


def activations(model: Any, tensors: Sequence[str], tokenizer: Tokenizer,
                 texts: Sequence[str]) -> Iterator[tuple[list[Array], NDArray[np.int64]]]:
    """Values of ``tensors`` and the attention mask, batch after batch."""
    observed = onnx.ModelProto()
    observed.CopyFrom(model)
    del observed.graph.output[:]
    observed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in tensors)
    session = ort.InferenceSession(observed.SerializeToString(), session_options(available_cpus()),
                                   providers=["CPUExecutionProvider"])
    wanted = {item.name for item in session.get_inputs()}
    rows = tokenizer.encode_batch(texts)
    for indices in batches_by_length([len(row) for row in rows], batch_tokens=1024):
        feed = tokenizer.pad([rows[index] for index in indices])
        if "token_type_ids" in wanted:
            feed["token_type_ids"] = np.zeros_like(feed["input_ids"])
        yield session.run(list(tensors), {name: feed[name] for name in wanted}), feed["attention_mask"]
