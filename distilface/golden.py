"""Awkward texts that every bundle carries with their ids and vectors: any consumer can be checked against them."""

from __future__ import annotations

_SENTENCE = "the quick brown fox jumps over the lazy dog while the rain keeps falling on the old tin roof"

GOLDEN_TEXTS: tuple[str, ...] = (
    "Hello, World!",
    "The capital of France is Paris.",
    "turn off the lights in the hallway, please",
    "",
    "   ",
    "\x00",
    "\u200b",
    "😀",
    "[SEP]",
    "this is[SEP]a test",
    "Kantō",
    "cost $5 + 3 = 8 °C © 😀",
    "台北‧08月20日",
    "naïve café déjà-vu coöperate",
    "Привет, мир! Γειά σου Κόσμε",
    "tabs\tand\nnewlines\r\nand  doubled   blanks",
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "https://example.org/a?b=c&d=%20#e user@example.org C:\\temp\\x.txt",
    "0.1 1e-5 3,141.59 −7 ½ ²",
    " ".join([_SENTENCE] * 4),
    " ".join([_SENTENCE] * 60),
)
"""The last one is longer than any length limit: its ids must be the truncated ones."""

LONG_NEIGHBOUR = " ".join([_SENTENCE] * 4)
"""A text of over 70 words, the neighbour beside which short texts are measured for batch dependence."""
