"""How vectors of unlike widths meet: the teacher's reduced to the student's space, or the student's mapped to its."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from distilface.batching import batches_by_length
from distilface.encoder import SentenceEncoder

Matrix = NDArray[np.float32]


def pooled_vectors(encoder: SentenceEncoder, texts: Sequence[str], batch_tokens: int = 8192) -> Matrix:
    """The vectors that the losses see, not normalised, dropout off. ``[n, d]``."""
    rows = encoder.tokenizer.encode_batch(texts)
    vectors = np.zeros((len(rows), encoder.pooler.dim), dtype=np.float32)
    was_training = encoder.training
    encoder.eval()
    with torch.inference_mode():
        for indices in batches_by_length([len(row) for row in rows], batch_tokens):
            feed = encoder.tokenizer.pad([rows[index] for index in indices])
            vectors[indices] = encoder.pooled(*(torch.from_numpy(feed[name])
                                                for name in ("input_ids", "attention_mask"))).numpy()
    encoder.train(was_training)
    return vectors


def unit(vectors: NDArray[np.floating]) -> Matrix:
    """Rows of length 1; a zero row stays zero."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(norms > 0, norms, 1)).astype(np.float32)


def reduction(teacher: Matrix, student: Matrix) -> tuple[Matrix, float]:
    """The teacher's vectors to the student's width: ``[d_t, d_s]`` with orthonormal columns, and the share kept.

    The leading eigenvectors of ``T^T T`` (not centred: products are to be kept, and Eckart and Young's theorem says
    these keep them best), turned by the rotation that brings the reduced vectors nearest to the student's
    (Schönemann's orthogonal Procrustes problem). Rotation changes no product, and spares the student turning all it
    knows.

    Args:
        teacher: unit vectors ``[n, d_t]``, ``d_t >= d_s``.
        student: the student's unit vectors of the same texts before training, ``[n, d_s]``.

    Returns:
        The map, and the mean squared length that a reduced unit vector keeps.
    """
    width = student.shape[1]
    moments = teacher.T.astype(np.float64) @ teacher
    values, vectors = np.linalg.eigh(moments)
    leading = vectors[:, ::-1][:, :width]
    left, _, right = np.linalg.svd((teacher @ leading).T @ student)
    return (leading @ (left @ right)).astype(np.float32), float(values[::-1][:width].sum() / values.sum())


def fitted_projection(student: Matrix, teacher: Matrix, ridge: float = 1e-3) -> nn.Linear:
    """A linear map from the student's vectors ``[n, d_s]`` to the teacher's ``[n, d_t]``, by ridge regression.

    Started at random, it would pull the student out of shape before it is of use itself.
    """
    values = student.astype(np.float64)
    gram = values.T @ values
    gram += ridge * np.trace(gram) / len(gram) * np.eye(len(gram))
    linear = nn.Linear(student.shape[1], teacher.shape[1], bias=False)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(np.linalg.solve(gram, values.T @ teacher).T))
    return linear
