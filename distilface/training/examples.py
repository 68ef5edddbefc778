"""Training text, read and tokenised once: every distinct row of ids is stored once and known by its number."""

from __future__ import annotations

import hashlib
import logging
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilface.data import read_groups, read_pairs, read_scored_pairs, read_sentences, read_triplets
from distilface.errors import UserError
from distilface.tokenizer import Tokenizer, check_texts
from distilface.training.config import Kind, SourceConfig

logger = logging.getLogger(__name__)

_CHUNK = 16_384  # texts given to the tokenizer at once: enough to keep its threads busy, little memory
_READERS: dict[str, Callable[[SourceConfig], Iterable[Sequence[Any]]]] = {
    "sentences": lambda source: ((text,) for text in read_sentences(source)),
    "pairs": read_pairs,
    "groups": read_groups,
    "triplets": read_triplets,
    "scored": read_scored_pairs,
}


class TokenRows:
    """Distinct rows of token ids. Texts that the model can't tell apart (after truncation) share one number.

    Args:
        keep_texts: remember a text of every row, the first that was seen.
    """

    def __init__(self, tokenizer: Tokenizer, keep_texts: bool = False) -> None:
        self.texts: list[str] | None = [] if keep_texts else None
        self._tokenizer = tokenizer
        self._numbers: dict[bytes, int] = {}
        self.ids: array[int] | NDArray[np.int32] = array("i")
        self.starts: array[int] | NDArray[np.int64] = array("q", [0])

    @classmethod
    def stored(cls, tokenizer: Tokenizer, ids: NDArray[np.int32], starts: NDArray[np.int64],
               texts: list[str] | None) -> TokenRows:
        """Complete rows from a cache: row ``i`` is ``ids[starts[i] : starts[i + 1]]``.

        Raises:
            ValueError: if these do not fit together.
        """
        if len(starts) == 0 or starts[-1] != len(ids) or (texts is not None and len(texts) != len(starts) - 1):
            raise ValueError("ids, starts and texts differ in length")
        rows = cls(tokenizer)
        rows.ids, rows.starts, rows.texts = ids, starts, texts
        return rows

    def add(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """The number of each text's row, ``[len(texts)]``."""
        assert isinstance(self.ids, array) and isinstance(self.starts, array), "rows from a cache are complete"
        numbers = np.empty(len(texts), dtype=np.int64)
        for start in range(0, len(texts), _CHUNK):
            chunk = check_texts(texts[start : start + _CHUNK])
            for offset, ids in enumerate(self._tokenizer.encode_batch(chunk)):
                row = array("i", ids)
                number = self._numbers.setdefault(row.tobytes(), len(self._numbers))
                if number == len(self.starts) - 1:
                    self.ids.extend(row)
                    self.starts.append(len(self.ids))
                    if self.texts is not None:
                        self.texts.append(chunk[offset])
                numbers[start + offset] = number
        return numbers

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens in each distinct row."""
        starts = np.asarray(self.starts)
        return starts[1:] - starts[:-1]

    def batch(self, numbers: Iterable[int]) -> dict[str, NDArray[np.int64]]:
        """Padded ``input_ids`` and ``attention_mask`` of these rows, as wide as the longest."""
        rows: list[Any] = [self.ids[self.starts[n] : self.starts[n + 1]] for n in numbers]
        return self._tokenizer.pad(rows)


@dataclass(frozen=True, eq=False)
class Examples:
    """One source: ``texts[i]`` holds the row numbers of example ``i``, in the order of its columns.

    ``texts`` is ``[n, m]``: m is 1 for sentences, 2 for pairs and scored pairs, 3 for triplets; groups are filled up
    with -1. ``scores`` is ``[n]`` for scored pairs, else None.
    """

    name: str
    kind: Kind
    texts: NDArray[np.int64]
    sha256: str
    scores: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.texts)


def load_examples(source: SourceConfig, rows: TokenRows) -> Examples:
    """Read a source, tokenise it into ``rows``, and hash what was read.

    Raises:
        UserError: if it can't be read, or holds fewer than two examples: then there is nothing to contrast.
    """
    examples = [tuple(example) for example in islice(_READERS[source.kind](source), source.limit)]
    digest = hashlib.sha256(source.kind.encode())
    for example in examples:
        digest.update("\x1f".join(map(str, example)).encode("utf-8", "replace") + b"\x1e")
    scores = None
    if source.kind == "scored":
        scores = np.array([example[2] for example in examples], dtype=np.float32)
        examples = [example[:2] for example in examples]
    sizes = [len(example) for example in examples]
    numbers = rows.add([text for example in examples for text in example])
    texts = _rectangular(numbers, sizes)
    if source.kind == "groups":
        texts = _distinct_members(source.path, texts)
    if len(texts) < 2:
        raise UserError(f"{source.path!r} holds {len(texts)} usable example; contrastive training needs at least 2, "
                        "because the others are the negatives")
    return Examples(source.path, source.kind, texts, digest.hexdigest(), scores)


def _rectangular(numbers: NDArray[np.int64], sizes: Sequence[int]) -> NDArray[np.int64]:
    lengths = np.asarray(sizes)
    filled = np.full((len(lengths), lengths.max()), -1, dtype=np.int64)
    filled[np.arange(lengths.max()) < lengths[:, None]] = numbers
    return filled


def _distinct_members(name: str, groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """Groups without repeated members; one whose members are all the same text has no positive and is dropped."""
    ordered = -np.sort(-groups, axis=1)
    ordered[:, 1:][ordered[:, 1:] == ordered[:, :-1]] = -1
    ordered = -np.sort(-ordered, axis=1)
    usable = (ordered >= 0).sum(axis=1) >= 2
    if not usable.all():
        logger.warning("%s: dropped %d groups whose members are all the same to the model", name, (~usable).sum())
    return ordered[usable]
