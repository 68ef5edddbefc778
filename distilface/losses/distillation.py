"""What a student is told by its teacher: vectors ``[n, d]`` against ``[n, d]``, and states of tokens, row by row."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def cosine_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """The mean of ``1 - cos``, from 0 to 2: half the squared distance of the unit vectors."""
    with torch.autocast(student.device.type, enabled=False):
        return (1 - functional.cosine_similarity(student.float(), teacher.float(), dim=-1)).mean()


def squared_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """The mean over rows of ``|s - t|^2``, the student's vector taken as it is: its length is to be learned, too.

    The mean squared error times ``d``, so that its size does not depend on the width.
    """
    with torch.autocast(student.device.type, enabled=False):
        return (student.float() - teacher.float()).square().sum(dim=-1).mean()


def similarity_mse(student: Tensor, teacher: Tensor) -> Tensor:
    """The mean squared difference of the cosines of all pairs of rows, the diagonal left out.

    Needs no common space: the widths may differ. Similarity-preserving distillation (Tung and Mori, ICCV 2019) on
    sentence vectors.
    """
    with torch.autocast(student.device.type, enabled=False):
        ours = functional.normalize(student.float(), dim=-1)
        theirs = functional.normalize(teacher.float(), dim=-1)
        others = ~torch.eye(len(student), dtype=torch.bool, device=student.device)
        return ((ours @ ours.T) - (theirs @ theirs.T))[others].square().mean()


def distribution_cross_entropy(student: Tensor, teacher: Tensor, queue: Tensor, *, temperature: float = 0.05,
                               teacher_temperature: float = 0.05) -> Tensor:
    """ConGen (Limkonchotiwat et al., EMNLP Findings 2022, equation 4), less the teacher's own entropy.

    The teacher's cosines to the rows of ``queue`` are a distribution, and so are the student's: the mean
    Kullback-Leibler divergence of the two. Its gradient is that of the paper's cross-entropy; its smallest value is 0.

    Args:
        student, teacher: ``[n, d]``.
        queue: ``[q, d]``, vectors of other texts by the teacher.
        temperature, teacher_temperature: the cosines of student and teacher are divided by them.
    """
    with torch.autocast(student.device.type, enabled=False):
        rows = functional.normalize(queue.float(), dim=-1).T
        ours = functional.log_softmax(functional.normalize(student.float(), dim=-1) @ rows / temperature, dim=-1)
        theirs = functional.log_softmax(functional.normalize(teacher.float(), dim=-1) @ rows / teacher_temperature,
                                        dim=-1)
        return functional.kl_div(ours, theirs, reduction="batchmean", log_target=True)


def hidden_distance(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """TinyBERT's hidden-state loss (Jiao et al., EMNLP Findings 2020, equation 8) of every text.

    ``1 / (n d) * sum over its n tokens |s - t|^2``: padding does not count, and each text has the same weight.

    Args:
        student, teacher: states ``[b, s, d]`` of one layer each.
        mask: ``[b, s]``, 1 for tokens.

    Returns:
        ``[b]``.
    """
    with torch.autocast(student.device.type, enabled=False):
        return _token_mean((student.float() - teacher.float()).square().mean(dim=-1), mask)


def relation_divergence(student: Tensor, teacher: Tensor, mask: Tensor, heads: int) -> Tensor:
    """MiniLMv2's self-attention relation loss (Wang et al., ACL Findings 2021, section 3) of every text.

    For queries, or keys, or values A, cut into ``heads`` pieces of width ``d_r``: every token has a distribution over
    the tokens of its text, ``softmax(A A^T / sqrt(d_r))``. The Kullback-Leibler divergence from the teacher's to the
    student's is averaged over heads and tokens. The widths may differ: only ``heads`` must divide both.

    Args:
        student, teacher: ``[b, s, d]``, queries, keys or values of one layer each.
        mask: ``[b, s]``, 1 for tokens.

    Returns:
        ``[b]``.
    """
    with torch.autocast(student.device.type, enabled=False):
        ours, theirs = (_relations(states.float(), mask, heads) for states in (student, teacher))
        divergence = (theirs.exp() * (theirs - ours)).sum(dim=-1)  # [b, heads, s]
        return _token_mean(divergence.mean(dim=1), mask)


def _relations(states: Tensor, mask: Tensor, heads: int) -> Tensor:
    """Logarithms of the distributions, ``[b, heads, s, s]``."""
    pieces = states.unflatten(-1, (heads, -1)).transpose(1, 2)
    scores = pieces @ pieces.transpose(-1, -2) / pieces.shape[-1] ** 0.5
    # Not -inf: 0 * (-inf - -inf) is no number.
    return functional.log_softmax(scores.masked_fill(mask[:, None, None, :] == 0, -1e9), dim=-1)


def _token_mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum(dim=1) / mask.sum(dim=1)
