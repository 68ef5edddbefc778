"""What a part of every layer sees on real text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from distilface.batching import batches_by_length
from distilface.encoder import SentenceEncoder
from distilface.shrinking.architecture import family_of, layers_of

BATCH_TOKENS = 4096


def watch(encoder: SentenceEncoder, part: str, texts: Sequence[str], see: Callable[[int, Tensor], None]) -> None:
    """Encode ``texts``; ``see`` gets a layer's index and what goes into its ``part``, ``[tokens, width]``.

    Padding is left out.
    """
    layers = layers_of(encoder.backbone, family_of(encoder.backbone, "watching activations"))
    rows = encoder.tokenizer.encode_batch(list(texts))
    mask = torch.empty(0, dtype=torch.bool)

    def forward(index: int, states: Tensor) -> None:
        see(index, states[mask])

    hooks = [layer.get_submodule(part).register_forward_pre_hook(
        lambda module, inputs, index=index: forward(index, inputs[0])) for index, layer in enumerate(layers)]
    try:
        with torch.inference_mode():
            for indices in batches_by_length([len(row) for row in rows], BATCH_TOKENS):
                feed = {name: torch.from_numpy(array)
                        for name, array in encoder.tokenizer.pad([rows[i] for i in indices]).items()}
                mask = feed["attention_mask"].bool()
                encoder(**feed)
    finally:
        for hook in hooks:
            hook.remove()
