"""What the processes of one run share: vectors with their gradient, and small values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def is_distributed() -> bool:
    """Whether this process is one of several."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def gather_rows(vectors: Tensor, sizes: Sequence[int]) -> Tensor:
    """The rows of all processes, in process order, with the gradient kept. ``[local, d] -> [sum(sizes), d]``.

    Every process computes the same loss from the same gathered rows, so the gradient that arrives here is already the
    whole one. DistributedDataParallel averages parameter gradients over processes, so it is multiplied by their number:
    the sum over processes is then exactly the gradient of one process with the whole batch.

    Args:
        sizes: rows of each process; they may differ.
    """
    if not is_distributed():
        return vectors
    gathered: Tensor = _Gather.apply(vectors, list(sizes))
    return gathered


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, sizes: list[int]) -> Tensor:
        ctx.sizes = sizes
        padded = vectors.new_zeros(max(sizes), vectors.shape[1])
        padded[: len(vectors)] = vectors
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        rank = dist.get_rank()
        start = sum(ctx.sizes[:rank])
        return gradients[0][start : start + ctx.sizes[rank]] * len(ctx.sizes), None


def from_first(value: Any) -> Any:
    """The value that process 0 passed, on every process."""
    if not is_distributed():
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def barrier() -> None:
    """Wait for the other processes."""
    if is_distributed():
        dist.barrier()
