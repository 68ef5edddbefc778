"""How vectors of unlike widths meet: the teacher's reduced to the student's space, or the student's mapped to its."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

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


def reduction(teacher: Matrix, student: Matrix, cuts: Sequence[int] = ()) -> tuple[Matrix, float]:
    """The teacher's vectors to the student's width: ``[d_t, d_s]`` with orthonormal columns, and the share kept.

    The leading eigenvectors of ``T^T T`` (not centred: products are to be kept, and Eckart and Young's theorem says
    these keep them best), turned by the rotation that brings the reduced vectors nearest to the student's
    (Schönemann's orthogonal Procrustes problem). Rotation changes no product, and spares the student turning all it
    knows. Where vectors are to be cut, only dimensions between two cuts are turned among each other, so that the first
    ``d`` dimensions are the best ``d`` for every cut ``d``.

    Args:
        teacher: unit vectors ``[n, d_t]``, ``d_t >= d_s``.
        student: the student's unit vectors of the same texts before training, ``[n, d_s]``.
        cuts: Matryoshka dimensions.

    Returns:
        The map, and the mean squared length that a reduced unit vector keeps.
    """
    width = student.shape[1]
    moments = teacher.T.astype(np.float64) @ teacher
    values, vectors = np.linalg.eigh(moments)
    turned = vectors[:, ::-1][:, :width].copy()
    edges = sorted({0, *cuts, width})
    for start, end in pairwise(edges):
        block = turned[:, start:end]
        left, _, right = np.linalg.svd((teacher @ block).T @ student[:, start:end])
        turned[:, start:end] = block @ (left @ right)
    return turned.astype(np.float32), float(values[::-1][:width].sum() / values.sum())


class Projection(nn.Linear):
    """A linear map without bias, ``[n, d_s]`` to ``[n, d_t]``, of the whole vectors or of their first dimensions.

    Args:
        cuts: Matryoshka dimensions: the first so many of the input, by the same columns of the matrix. The results,
            each ``d_t`` wide, are put side by side.
    """

    def __init__(self, width: int, target: int, cuts: Sequence[int] = ()) -> None:
        super().__init__(width, target, bias=False)
        self.cuts = tuple(cuts) or (width,)

    def forward(self, vectors: Tensor) -> Tensor:
        return torch.cat([functional.linear(vectors[:, :cut], self.weight[:, :cut]) for cut in self.cuts], dim=1)


def fitted_projection(student: Matrix, teacher: Matrix, cuts: Sequence[int] = (), ridge: float = 1e-3) -> Projection:
    """A linear map from the student's vectors ``[n, d_s]`` to the teacher's ``[n, d_t]``, by ridge regression.

    Started at random, it would pull the student out of shape before it is of use itself.
    """
    values = student.astype(np.float64)
    gram = values.T @ values
    gram += ridge * np.trace(gram) / len(gram) * np.eye(len(gram))
    linear = Projection(student.shape[1], teacher.shape[1], cuts)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(np.linalg.solve(gram, values.T @ teacher).T))
    return linear
