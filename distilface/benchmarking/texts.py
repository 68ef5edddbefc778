"""The texts a run is measured on: real sentences for throughput, texts of an exact token length for latency."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from distilface.benchmarking.config import LONG_TOKENS, SHORT_TOKENS, BenchConfig
from distilface.errors import UserError

DEFAULT_COUNT = 1000
FEWEST = 16
TEXTS_A_LENGTH = 8
UNCUT = 1_000_000
_FILLER = ("the", "a", "on", "in", "of", "to", "and", "it")

CountTokens = Callable[[Sequence[str]], list[int]]


@dataclass(frozen=True)
class RealTexts:
    """Sentences and where they come from."""

    source: str
    sentences: tuple[str, ...]


def real_texts(config: BenchConfig, sts_sentences: Sequence[str] = ()) -> RealTexts:
    """The sentences of ``config.texts``, else those of the STS sets, else the built-in commands; shuffled by seed.

    Raises:
        UserError: fewer sentences than asked for, or than a measurement needs.
    """
    if config.texts is not None:
        from distilface.data import read_sentences

        source, sentences = str(config.texts), read_sentences(config.texts)
        remedy = f"add lines to {source}"
    elif sts_sentences:
        source, sentences, remedy = "STS sentences", list(sts_sentences), "give --texts FILE"
    else:
        from distilface.smarthome import utterances

        source, sentences = "built-in smart-home commands", [row.text for row in utterances()]
        remedy = "give --texts FILE"
    distinct = list(dict.fromkeys(sentences))
    needed = config.text_count or FEWEST
    if len(distinct) < needed:
        hint = " or lower text_count (--set text_count=N)" if config.text_count else ""
        raise UserError(f"{source} holds {len(distinct)} distinct sentences and {needed} are needed; {remedy}{hint}")
    random.Random(config.seed).shuffle(distinct)
    return RealTexts(source, tuple(distinct[: config.text_count or DEFAULT_COUNT]))


def length_grid(lengths: Sequence[int], limit: int) -> tuple[int, int, tuple[int, ...]]:
    """The short length, the long length and all lengths to measure, for models that take ``limit`` tokens."""
    short, long = min(SHORT_TOKENS, limit), min(LONG_TOKENS, limit)
    return short, long, tuple(sorted({short, long, *(length for length in lengths if length <= limit)}))


def texts_of_length(tokens: int, sentences: Sequence[str], count: CountTokens, how_many: int = TEXTS_A_LENGTH,
                    seed: int = 0) -> list[str]:
    """Texts made of words of ``sentences`` that are ``tokens`` long, special tokens included.

    Words are added while they fit; a word that would overshoot is passed over. Where the vocabulary has no single-token
    word left to fill the last place, the text stays one or two tokens short.
    """
    words = [word for sentence in sentences for word in sentence.split()] or list(_FILLER)
    chance = random.Random(seed + tokens)
    return [_one_text(tokens, words, count, chance) for _ in range(how_many)]


def _one_text(tokens: int, words: Sequence[str], count: CountTokens, chance: random.Random) -> str:
    start = chance.randrange(len(words))
    candidates = [words[(start + offset) % len(words)] for offset in range(4 * tokens)]
    text = ""
    for word in [*candidates, *_FILLER * 2]:
        longer = f"{text} {word}".strip()
        (length,) = count([longer])
        if length <= tokens:
            text = longer
        if length == tokens:
            break
    return text


def token_counter(folder: Path | None) -> CountTokens:
    """Counts tokens, uncut, with the tokenizer in ``folder``; without one, words plus two."""
    if folder is None or not (folder / "tokenizer.json").is_file():
        return lambda texts: [len(text.split()) + 2 for text in texts]
    from distilface.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(folder, max_seq_length=UNCUT)
    return lambda texts: [len(ids) for ids in tokenizer.encode_batch(texts)]
