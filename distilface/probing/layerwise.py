"""STS Spearman of every layer and pooling of an untrained encoder (Oh et al., COLING 2022, figure 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distilface.batching import batches_by_length
from distilface.encoder import SentenceEncoder
from distilface.errors import GateError
from distilface.evaluation import StsPairs, spearman
from distilface.evaluation.vectors import cosine_rows
from distilface.pooling import masked_max, masked_mean
from distilface.tokenizer import check_texts

POOLINGS = ("cls", "mean", "max")


def layer_vectors(encoder: SentenceEncoder, texts: Sequence[str], batch_tokens: int = 8192) -> NDArray[np.float32]:
    """Every layer's states pooled in every way, in one pass over the texts: ``[n, L + 1, 3, h]``, not normalised.

    Layer 0 is the embedding output; the third axis is that of `POOLINGS`. Dropout is off.
    """
    rows = encoder.tokenizer.encode_batch(check_texts(texts))
    width = int(encoder.backbone.config.hidden_size)
    vectors = np.empty((len(rows), encoder.num_layers + 1, len(POOLINGS), width), dtype=np.float32)
    device = next(encoder.parameters()).device
    encoder.eval()
    with torch.inference_mode():
        for indices in batches_by_length([len(row) for row in rows], batch_tokens):
            feed = encoder.tokenizer.pad([rows[index] for index in indices])
            ids, mask = (torch.from_numpy(feed[name]).to(device) for name in ("input_ids", "attention_mask"))
            states = encoder.hidden_states(ids, mask)
            vectors[indices] = torch.stack([_pooled(state, mask) for state in states], dim=1).float().cpu().numpy()
    return vectors


def _pooled(states: Tensor, mask: Tensor) -> Tensor:
    return torch.stack([states[:, 0], masked_mean(states, mask), masked_max(states, mask)], dim=1)


def layerwise(encoder: SentenceEncoder, pairs: StsPairs) -> list[dict[str, Any]]:
    """Spearman in points of every layer and pooling; None where all pairs come out equal.

    The last always holds for ``cls`` at layer 0: the embedding of [CLS] is the same in every text.

    Raises:
        GateError: if a vector holds NaN or infinity.
    """
    rows: dict[str, int] = {}
    sides = [[rows.setdefault(text, len(rows)) for text in column] for column in (pairs.sentences1, pairs.sentences2)]
    vectors = layer_vectors(encoder, list(rows))
    if not np.isfinite(vectors).all():
        raise GateError("a layer's vectors hold NaN or infinity; the model is broken")
    scores = []
    for layer in range(vectors.shape[1]):
        for index, pooling in enumerate(POOLINGS):
            plane = vectors[:, layer, index]
            try:
                score = 100 * spearman(pairs.gold, cosine_rows(plane[sides[0]], plane[sides[1]]))
            except GateError:
                if (pairs.gold == pairs.gold[0]).all():
                    raise
                score = None
            scores.append({"layer": layer, "pooling": pooling, "metric": "spearman", "score": score})
    return scores
