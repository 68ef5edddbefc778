"""Losses for pairs with a score: the order of the similarities should be the order of the scores."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from distilface.losses.blocks import over_rows


def cosent(first: Tensor, second: Tensor, scores: Tensor, *, temperature: float = 0.05) -> Tensor:
    """CoSENT: ranks pairs by cosine (Su, 2022; Huang et al., TASLP 2024, equation 6).

    ``log(1 + sum over i, j with scores_i > scores_j of exp((cos_j - cos_i) / temperature))``. Only the order of scores
    counts, so any scale does. A batch whose scores are all equal gives 0, without a gradient.

    Args:
        first, second: ``[n, d]``, not necessarily normalised.
        scores: ``[n]``, larger is more similar.
    """
    with torch.autocast(first.device.type, enabled=False):
        cosines = functional.cosine_similarity(first.float(), second.float(), dim=-1)
        return _ranked(cosines, scores, temperature)


def angle(first: Tensor, second: Tensor, scores: Tensor, *, temperature: float = 0.05) -> Tensor:
    """AnglE: CoSENT on an angle in the complex plane, which does not saturate where the cosine does (Li and Li, 2024).

    Dimension ``i`` is the real and ``i + d / 2`` the imaginary part of a complex vector. With both vectors at length 1
    the similarity is ``|Re z + Im z|`` of ``z = sum over i of first_i * conj(second_i)`` (their equations 5 to 8).

    Args:
        first, second: ``[n, d]``, ``d`` even.
        scores: ``[n]``, larger is more similar.

    Raises:
        ValueError: for an odd ``d``.
    """
    if first.shape[-1] % 2:
        raise ValueError(f"AnglE pairs up dimensions; got {first.shape[-1]}, an odd number")
    with torch.autocast(first.device.type, enabled=False):
        real, imaginary = functional.normalize(first.float(), dim=-1).chunk(2, dim=-1)
        other_real, other_imaginary = functional.normalize(second.float(), dim=-1).chunk(2, dim=-1)
        parts = real * other_real + imaginary * other_imaginary + imaginary * other_real - real * other_imaginary
        return _ranked(parts.sum(dim=-1).abs(), scores, temperature)


def _ranked(similarities: Tensor, scores: Tensor, temperature: float) -> Tensor:
    def rows(block: slice) -> Tensor:
        differences = (similarities.unsqueeze(0) - similarities[block].unsqueeze(1)) / temperature
        wrong_if_positive = scores[block].unsqueeze(1) > scores.unsqueeze(0)
        return differences.masked_fill(~wrong_if_positive, -torch.inf).flatten().logsumexp(dim=0)

    terms = list(over_rows(rows, len(scores), len(scores)))
    return torch.stack([similarities.new_zeros(()), *terms]).logsumexp(dim=0)
