"""Sentence vectors from a table of words alone: a teacher for where there is none.

Smooth inverse frequency (Arora et al., "A Simple but Tough-to-Beat Baseline for Sentence Embeddings", ICLR 2017): the
mean of a text's word embeddings, each weighted by ``a / (a + p(word))``, less its part along the first principal
direction of all texts. A masked language model's own word table does this better than its layers, before training.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
from scipy.sparse import csr_matrix

from distilface.encoder import SentenceEncoder
from distilface.protocol import Vectors

SMOOTHING = 1e-3
"""``a``; the paper's choice. ``p`` is the share of the word piece in the texts themselves."""
BLOCK = 8192


def sif_vectors(encoder: SentenceEncoder, texts: Sequence[str]) -> Iterator[Vectors]:
    """The vectors of ``texts`` by the word embeddings of ``encoder``, in blocks ``[at most 8192, width]``, float32.

    Special tokens do not count; a text without others is all zeros.
    """
    table = encoder.backbone.get_input_embeddings().weight.detach().cpu().float().numpy()
    bags = _bags(encoder, texts, len(table))
    chance = np.asarray(bags.sum(axis=0)).ravel() / max(bags.sum(), 1)
    weighted = (SMOOTHING / (SMOOTHING + chance))[:, None] * table
    lengths = np.maximum(np.asarray(bags.sum(axis=1)), 1)
    blocks = [slice(start, start + BLOCK) for start in range(0, len(texts), BLOCK)]
    moments = np.zeros((table.shape[1], table.shape[1]))
    for block in blocks:
        vectors = bags[block] @ weighted / lengths[block]
        moments += vectors.T @ vectors
    direction = np.linalg.eigh(moments)[1][:, -1]
    for block in blocks:
        vectors = bags[block] @ weighted / lengths[block]
        yield (vectors - np.outer(vectors @ direction, direction)).astype(np.float32)


def _bags(encoder: SentenceEncoder, texts: Sequence[str], words: int) -> csr_matrix:
    """How often each word piece is in a text, ``[texts, words]``."""
    rows = [encoding.ids for encoding in
            encoder.tokenizer.backend.encode_batch_fast(list(texts), add_special_tokens=False)]
    ids = np.fromiter(chain.from_iterable(rows), dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    return csr_matrix((np.ones(len(ids)), ids, starts), shape=(len(rows), words))
