"""The vocabulary cut to what a corpus needs: most encoders spend a third to most of their bytes on words never seen."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer as FastTokenizer
from torch import nn

from distilface.encoder import SentenceEncoder
from distilface.errors import GateError, UserError
from distilface.golden import GOLDEN_TEXTS
from distilface.shrinking.architecture import FAMILIES
from distilface.shrinking.pieces import Pieces
from distilface.tokenizer import Tokenizer, check_texts

logger = logging.getLogger(__name__)
Counts = NDArray[np.int64]

COVERAGE = 99.5
CHECK_FLOOR = 95.0
"""Least percentage of the tokens of the check texts that must stay."""
MOST_UNKNOWN = 50.0
"""A corpus with a larger percentage of unknown tokens is in a script that the vocabulary does not have."""
_BATCH = 1000
_PROOF_TEXTS = 5000


@dataclass(frozen=True)
class VocabularyReport:
    """What trimming did; percentages 0 to 100.

    Attributes:
        tokens: tokens of the corpus, specials left out; ``covered``: percentage of them whose piece stays.
        texts_unchanged: percentage of the first 5,000 texts that have the same tokens, so the same vector, as before.
        size_before, size_after: rows of the embedding table; ``bytes_saved``: of that table in float32.
        unspelled: pieces that stay because a character of theirs is no piece of its own. Where there are some, a rare
            word with such a character may become unknown; with none, no word can.
        check_covered: percentage of the check texts' known tokens that stay, None without check texts.
    """

    corpus: str
    coverage: float
    tokens: int
    covered: float
    texts_unchanged: float
    size_before: int
    size_after: int
    bytes_saved: int
    unspelled: int
    check_covered: float | None


def trim_vocabulary(encoder: SentenceEncoder, corpus: str | Path, coverage: float = COVERAGE,
                    check_texts_file: str | Path | None = None,
                    check_floor: float = CHECK_FLOOR) -> tuple[Tokenizer, VocabularyReport]:
    """Cut the embedding table of ``encoder`` to the pieces that ``corpus`` needs, in place; returns its new tokenizer.

    The most frequent pieces stay until they are ``coverage`` percent of the tokens; single characters, specials and
    everything needed to spell any other text stay besides. A text whose pieces all stay keeps its vector exactly.

    Args:
        corpus: file of texts, one a row.
        check_texts_file: texts the result is meant for; refused when less than ``check_floor`` percent of their tokens
            stay, as when the corpus lacks their script.

    Raises:
        UserError: for a coverage outside (0, 100], a corpus without tokens or in a script the vocabulary does not have,
            check texts below the floor, a kind of tokenizer that can't be trimmed.
        GateError: when a text that keeps its pieces would get other ids.
    """
    if not 0 < coverage <= 100:
        raise UserError(f"coverage={coverage:g} is out of range; it is a percentage of tokens, above 0 and up to 100")
    if not 0 < check_floor <= 100:
        raise UserError(f"check_floor={check_floor:g} is out of range; it is a percentage, above 0 and up to 100")
    backbone, tokenizer = encoder.backbone, encoder.tokenizer
    full = FastTokenizer.from_str(tokenizer.backend.to_str())
    full.no_truncation()
    pieces = Pieces.of(full)
    table: nn.Embedding = backbone.get_input_embeddings()  # type: ignore[operator]
    size = max(pieces.ids.values()) + 1
    if size > table.num_embeddings:
        raise UserError(f"the tokenizer has ids up to {size - 1}, the embedding table {table.num_embeddings} rows; "
                        "config.json, tokenizer.json and the weights do not belong together")
    counts, sample = count_tokens(full, corpus, size)
    _check_script(counts, pieces.unknown_id, corpus)
    kept = choose_pieces(pieces, counts, coverage, _fixed_ids(backbone))
    check_covered = None
    if check_texts_file is not None:
        check_covered = _check_floor(pieces, kept, full, check_texts_file, check_floor, corpus)
    trimmed, mapping = pieces.rebuild(kept)
    unchanged = _prove(full, trimmed, mapping, pieces.unknown_id, sample)
    _cut_table(backbone, table, mapping)
    if pieces.unspelled:
        logger.warning("%d pieces were kept because a character of theirs is no piece of its own; rare words with such "
                       "a character may become unknown", pieces.unspelled)
    report = VocabularyReport(
        str(corpus), coverage, int(counts.sum()), _percent(counts, kept, pieces), unchanged, table.num_embeddings,
        len(mapping), (table.num_embeddings - len(mapping)) * table.embedding_dim * 4, pieces.unspelled, check_covered)
    return _new_tokenizer(tokenizer, trimmed, mapping), report


def sizes_by_coverage(encoder: SentenceEncoder, corpus: str | Path, coverages: Sequence[float]) -> dict[float, int]:
    """How many pieces `trim_vocabulary` would keep, by coverage; all of them at 100, which stands for no trimming.

    Raises:
        UserError: a corpus without tokens or in another script; a kind of tokenizer that can't be trimmed.
    """
    full = FastTokenizer.from_str(encoder.tokenizer.backend.to_str())
    full.no_truncation()
    pieces = Pieces.of(full)
    counts, _ = count_tokens(full, corpus, max(pieces.ids.values()) + 1)
    _check_script(counts, pieces.unknown_id, corpus)
    fixed = _fixed_ids(encoder.backbone)
    table: nn.Embedding = encoder.backbone.get_input_embeddings()  # type: ignore[operator]
    return {coverage: table.num_embeddings if coverage >= 100 else len(choose_pieces(pieces, counts, coverage, fixed))
            for coverage in coverages}


def count_tokens(backend: FastTokenizer, file: str | Path, size: int) -> tuple[Counts, list[str]]:
    """How often each id occurs in the texts of ``file``, ``[size]``, and the first 5,000 of these texts."""
    from distilface.data import iter_texts

    counts = np.zeros(size, dtype=np.int64)
    sample: list[str] = []
    for batch in _batches(iter_texts(file)):
        texts = check_texts(batch)
        sample.extend(texts[: max(0, _PROOF_TEXTS - len(sample))])
        for encoding in backend.encode_batch_fast(texts, add_special_tokens=False):
            if encoding.ids:
                counts += np.bincount(encoding.ids, minlength=size)
    if not counts.any():
        raise UserError(f"{str(file)!r} holds no token: every row is blank; give texts like those to be encoded")
    return counts, sample


def choose_pieces(pieces: Pieces, counts: Counts, coverage: float, fixed: Iterable[int] = ()) -> set[str]:
    """Basic pieces, those with a ``fixed`` id, and the most frequent others until ``coverage`` percent is reached."""
    fixed = set(fixed)
    kept = set(pieces.basic) | {piece for piece, index in pieces.ids.items() if index in fixed}
    total = int(counts.sum())
    covered = sum(int(counts[pieces.ids[piece]]) for piece in kept)
    frequent = sorted((piece for piece, index in pieces.ids.items() if counts[index]),
                      key=lambda piece: (-counts[pieces.ids[piece]], pieces.ids[piece]))
    for piece in frequent:
        if covered * 100 >= coverage * total:
            break
        new = pieces.closure(piece) - kept
        kept |= new
        covered += sum(int(counts[pieces.ids[item]]) for item in new)
    return kept


def _fixed_ids(backbone: nn.Module) -> set[int]:
    """Ids that the config names; and where position ids start after the padding id, all ids up to it."""
    config = backbone.config
    named = {value for key, value in config.to_dict().items() if key.endswith("token_id") and isinstance(value, int)}
    family = FAMILIES.get(config.model_type)
    if family is not None and family.positions_follow_padding:
        named |= set(range(int(config.pad_token_id) + 1))
    return named


def _cut_table(backbone: nn.Module, table: nn.Embedding, mapping: dict[int, int]) -> None:
    rows = torch.tensor(sorted(mapping), dtype=torch.int64)
    padding = None if table.padding_idx is None else mapping.get(table.padding_idx)
    small = nn.Embedding(len(rows), table.embedding_dim, padding_idx=padding)
    small.weight = nn.Parameter(table.weight.detach()[rows].clone())
    backbone.set_input_embeddings(small)  # type: ignore[operator]
    config = backbone.config
    config.vocab_size = len(rows)
    for key, value in config.to_dict().items():
        if key.endswith("token_id") and isinstance(value, int):
            setattr(config, key, mapping.get(value))


def _new_tokenizer(old: Tokenizer, backend: FastTokenizer, mapping: dict[int, int]) -> Tokenizer:
    settings = dict(old.settings)
    decoder = settings.get("added_tokens_decoder")
    if isinstance(decoder, dict):
        settings["added_tokens_decoder"] = {
            str(mapping[int(index)]): token for index, token in decoder.items() if int(index) in mapping}
    mode = "escape" if old.backend.encode_special_tokens else "parse"
    return Tokenizer(backend, old.max_seq_length, mapping.get(old.pad_token_id, 0), mode, settings)  # type: ignore[arg-type]


def _check_script(counts: Counts, unknown: int | None, corpus: str | Path) -> None:
    share = 0.0 if unknown is None else 100 * float(counts[unknown]) / float(counts.sum())
    if share > MOST_UNKNOWN:
        raise UserError(f"{share:.1f} % of the tokens of {str(corpus)!r} are unknown to this vocabulary (allowed: "
                        f"{MOST_UNKNOWN:g} %): the model does not know its script; use another corpus or model")


def _check_floor(pieces: Pieces, kept: set[str], full: FastTokenizer, file: str | Path, floor: float,
                 corpus: str | Path) -> float:
    counts, _ = count_tokens(full, file, max(pieces.ids.values()) + 1)
    if pieces.unknown_id is not None:
        counts[pieces.unknown_id] = 0  # unknown before and after: trimming has no part in it
    if not counts.any():
        raise UserError(f"this vocabulary knows no token of the check texts {str(file)!r}; use another model")
    covered = _percent(counts, kept, pieces)
    if covered < floor:
        lost = sorted((piece for piece, index in pieces.ids.items() if counts[index] and piece not in kept),
                      key=lambda piece: -counts[pieces.ids[piece]])
        raise UserError(f"the vocabulary trimmed on {str(corpus)!r} covers {covered:.1f} % of the tokens of the check "
                        f"texts {str(file)!r} (floor: {floor:g} %); it lacks {', '.join(map(repr, lost[:5]))}: trim on "
                        "text of the same language and kind")
    return covered


def _prove(full: FastTokenizer, trimmed: FastTokenizer, mapping: dict[int, int], unknown: int | None,
           texts: Sequence[str]) -> float:
    """Percentage of ``texts`` that keep their ids, after renumbering.

    Raises:
        GateError: when a text loses them though its pieces are all there, or has more unknown tokens than before.
    """
    unchanged = 0
    everything = [*check_texts(GOLDEN_TEXTS), *texts]
    for position, (text, old, new) in enumerate(zip(
            everything, full.encode_batch_fast(everything), trimmed.encode_batch_fast(everything), strict=True)):
        expected = [mapping.get(index) for index in old.ids]
        if None not in expected and expected != new.ids:
            raise GateError(f"trimming changed the tokens of {text[:60]!r}, whose pieces all stay; leave the "
                            "vocabulary whole and report this text")
        if unknown is not None and new.ids.count(mapping[unknown]) > old.ids.count(unknown):
            raise GateError(f"trimming made part of {text[:60]!r} unknown; raise the coverage")
        unchanged += position >= len(everything) - len(texts) and None not in expected
    return 100 * unchanged / len(texts)


def _percent(counts: Counts, kept: set[str], pieces: Pieces) -> float:
    return 100 * sum(int(counts[pieces.ids[piece]]) for piece in kept) / int(counts.sum())


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    while batch := list(islice(texts, _BATCH)):
        yield batch
