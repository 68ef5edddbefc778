"""What a student's vectors are told by a teacher's: ``[n, d]`` against ``[n, d]``, row by row or all against all."""

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
