"""A batch's texts to the vectors of the loss: in chunks of similar length, and in the memory of one if need be."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from distilface.batching import batches_by_length
from distilface.encoder import SentenceEncoder
from distilface.training.distributed import gather_rows


class PooledEncoder(nn.Module):
    """An encoder as DistributedDataParallel needs it: one forward, ids in, the vectors of the loss out.

    InfoNCE needs all vectors of a batch at once, but the encoder does not need all texts at once. They are sorted by
    length and go through it in chunks filled to a token budget, so that a short anchor is not padded to its long
    positive. How many texts a batch holds stays fixed: it is the number of negatives.

    Gradient caching (Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", RepL4NLP
    2021) keeps the activations of no chunk. The backward pass goes from the loss to the vectors, then chunk by chunk
    runs the encoder a second time, with the same dropout masks, and on to the weights: the same gradients, in the
    memory of one chunk, for a second forward pass. Each chunk is a checkpoint of torch, which is that algorithm, and
    restores random state and autocast; so the `Trainer`'s loss scaling and accumulation, and the one synchronisation
    of DistributedDataParallel, need not know.

    Args:
        projection: its output is appended to each vector; see `distilface.training.objective.Objective`.
        chunk_tokens: tokens of a chunk, padding included; None for one chunk.
        caching: whether gradients are cached.
    """

    def __init__(self, encoder: SentenceEncoder, projection: nn.Module | None = None,
                 chunk_tokens: int | None = None, caching: bool = False) -> None:
        super().__init__()
        self.encoder = encoder
        self.projection = projection
        self.chunk_tokens = chunk_tokens
        self.caching = caching

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """``[b, s], [b, s] -> [b, dim]``, pooled, through the head, not normalised. Padding is on the right."""
        if self.chunk_tokens is None:
            return self._vectors(input_ids, attention_mask)
        lengths = attention_mask.sum(dim=1).tolist()
        chunks = batches_by_length(lengths, self.chunk_tokens)
        if len(chunks) == 1:
            return self._vectors(input_ids, attention_mask)
        parts = []
        for chunk in chunks:
            rows, width = torch.tensor(chunk, device=input_ids.device), lengths[chunk[0]]
            inputs = input_ids[rows, :width], attention_mask[rows, :width]
            if self.caching and torch.is_grad_enabled():
                parts.append(checkpoint(self._vectors, *inputs, use_reentrant=False))
            else:
                parts.append(self._vectors(*inputs))
        order = torch.tensor([row for chunk in chunks for row in chunk], device=input_ids.device)
        return torch.cat(parts)[order.argsort()]

    def _vectors(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        vectors = self.encoder.pooled(input_ids, attention_mask)
        return vectors if self.projection is None else torch.cat([vectors, self.projection(vectors)], dim=1)


def gather_columns(vectors: Tensor, sizes: list[int], local: int) -> tuple[Tensor, ...]:
    """The columns of one batch over all processes, each ``[n, d]``.

    Args:
        vectors: ``[columns * local, d]``: all anchors, all positives, all hard negatives of this process.
        sizes: see `distilface.training.batches.MicroBatches`.
    """
    columns = len(vectors) // local
    side_by_side = vectors.view(columns, local, -1).transpose(0, 1).reshape(local, -1)
    return gather_rows(side_by_side, sizes).chunk(columns, dim=1)  # one collective call for all columns
