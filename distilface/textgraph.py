"""The tokenizer inside the graph: strings in, ids and vectors out, for apps that have no tokenizer of their own.

onnxruntime-extensions has a BERT tokenizer, but its basic tokenizer classifies characters by the C library and its
locale, strips the accents of Latin-1 alone, and keeps the known pieces of a word whose rest is unknown. So all that
comes before the word pieces is a table here, made from the tokenizer itself: what becomes of each character, and an
unknown word for every word with a character that no piece holds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as FastTokenizer

from distilface.errors import UserError, require
from distilface.onnxgraph import add_initializers
from distilface.tokenizer import Tokenizer

DOMAIN = "ai.onnx.contrib"
UNKNOWN = "\U0010fffd"
_MARKS = 0x10FF00
_SPARE = "\U000f0000"
"""Private code points, which BERT's normalizer drops: an unknown word, the special tokens, and what such a code point
in a text is replaced by, so that no text can forge them."""
_LONG_RANGE = 64
_BATCH = 256
"""The tokenizer's time for a text grows with the square of its length, so no more characters than that in one."""
_POINTS = (*range(1, 0xD800), *range(0xE000, 0x40000), *range(0xE0000, 0x110000))
"""Between these, Unicode has nothing but unassigned code points, which are unknown."""

Ranges = list[tuple[int, int]]


@dataclass(frozen=True)
class CharacterTable:
    """What normalizing and pre-tokenizing make of single characters.

    Attributes:
        mapped: character to text; a character that is neither here nor in a range makes its word unknown.
        removed, spaced: inclusive ranges of code points that vanish, and that become words of their own.
        ambiguous: letters that the vocabulary spells in some places only (``##x`` without ``x``).
    """

    mapped: dict[str, str]
    removed: Ranges
    spaced: Ranges
    ambiguous: list[str]


def write_text_graph(graph: Path, tokenizer: Tokenizer, out: Path) -> list[str]:
    """Write the encoder in ``graph`` with its tokenizer in front.

    Input ``text``: strings ``[batch_size]``, at least one. Outputs ``sentence_embedding`` float32 ``[batch_size, dim]``
    and ``input_ids`` int64 ``[batch_size, sequence_length]``. Needs the custom operators of onnxruntime-extensions.

    Returns:
        for which texts the ids are not those of tokenizer.json, in words.

    Raises:
        UserError: the tokenizer is not BERT's.
    """
    onnx = require("onnx", "export", "a graph with its tokenizer inside")
    front = _Front(tokenizer)
    model = onnx.load(str(graph))
    encoder = list(model.graph.node)
    nodes = front.nodes(token_types="token_type_ids" in {item.name for item in model.graph.input})
    vector = [item for item in model.graph.output if item.name == "sentence_embedding"]
    info, types = onnx.helper.make_tensor_value_info, onnx.TensorProto
    for container, items in (
            (model.graph.node, [*nodes, *encoder]),
            (model.graph.input, [info("text", types.STRING, ["batch_size"])]),
            (model.graph.output, [*vector, info("input_ids", types.INT64, ["batch_size", "sequence_length"])])):
        kept = list(items)
        del container[:]
        container.extend(kept)
    add_initializers(model.graph, front.constants)
    model.opset_import.extend([onnx.helper.make_opsetid(DOMAIN, 1), onnx.helper.make_opsetid("ai.onnx.ml", 2)])
    onnx.save_model(model, str(out))
    return front.differences


def check_tokenizer(tokenizer: Tokenizer) -> None:
    """Raise `UserError` for a tokenizer that `write_text_graph` can't put in a graph."""
    _bert_parts(tokenizer.backend, json.loads(tokenizer.backend.to_str()))


class _Front:
    """From strings to the encoder's inputs: nodes, and the constants they name."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.values = json.loads(tokenizer.backend.to_str())
        self.words, self.frame = _bert_parts(tokenizer.backend, self.values)
        self.marks = {chr(_MARKS + i): token["content"] for i, token in enumerate(self.values["added_tokens"])}
        self.table = character_table(tokenizer.backend, self.words)
        self.differences = ["a text ends at its first NUL character"]
        if self.table.ambiguous:
            self.differences.append(f"words with {' '.join(self.table.ambiguous[:20])}, which the vocabulary spells in "
                                    "some places only, may keep pieces beside [UNK]")
        self.constants: dict[str, Any] = {
            "any_character": _strings("(?s)(.)"), "nothing": _strings(""), "blank": _strings(" "),
            "first_axis": np.array([0]), "last_axis": np.array([1]), "flat": np.array([-1]),
            "limit": np.array([tokenizer.max_seq_length]), "yes": np.bool_(True), "no_id": np.int64(-1),
            "pad_id": np.int64(tokenizer.pad_token_id)}

    def nodes(self, token_types: bool) -> list[Any]:
        """The nodes in order; they end in ``input_ids``, ``attention_mask`` and, where asked, ``token_type_ids``."""
        from onnx import TensorProto, helper

        ours = sorted(map(ord, [UNKNOWN, *self.marks]))
        limit = int(self.values["model"]["max_input_chars_per_word"])
        # A code point of ours becomes one that vanishes later: if it went first, "[S" and "EP]" would join around it.
        before = [(f"[{_charset(_ranges(ours))}]", _SPARE),
                  *((re.escape(content), mark) for mark, content in self.marks.items())]
        if self.table.removed:
            before.append((f"[{_charset(_without(self.table.removed, ours))}]", ""))
        if self.table.spaced:
            before.append((f"([{_charset(self.table.spaced)}])", r" \1 "))
        after = [(f"[^ ]*{UNKNOWN}[^ ]*", UNKNOWN), (f"[^ ]{{{limit + 1},}}", UNKNOWN), (" +", " "), ("^ | $", "")]
        make = helper.make_node
        return [
            make("Shape", ["text"], ["count"]),
            *self._replacements("text", before, "cleaned"),
            self._each("cleaned", "joined", self._characters(), TensorProto.STRING),
            make("Reshape", ["joined", "flat"], ["spelled"]),
            *self._replacements("spelled", after, "words"),
            self._each("words", "padded_ids", self._word_pieces(), TensorProto.INT64),
            make("Greater", ["padded_ids", "no_id"], ["padded_real"]),
            make("Cast", ["padded_real"], ["padded_mask"], to=TensorProto.INT64),
            make("ReduceSum", ["padded_mask", "last_axis"], ["lengths"], keepdims=0),
            make("ReduceMax", ["lengths"], ["longest"], keepdims=1),
            make("Slice", ["padded_ids", "first_axis", "longest", "last_axis"], ["some_ids"]),
            make("Slice", ["padded_mask", "first_axis", "longest", "last_axis"], ["attention_mask"]),
            make("Slice", ["padded_real", "first_axis", "longest", "last_axis"], ["real"]),
            make("Where", ["real", "some_ids", "pad_id"], ["input_ids"]),
            *([make("Sub", ["input_ids", "input_ids"], ["token_type_ids"])] if token_types else []),
        ]

    def _replacements(self, source: str, steps: Sequence[tuple[str, str]], target: str) -> Iterator[Any]:
        """Regular expressions (RE2) one after the other, each on every text."""
        from onnx import helper

        for index, (pattern, replacement) in enumerate(steps):
            names = [f"{target}_{index}_pattern", f"{target}_{index}_replacement"]
            self.constants |= {names[0]: _strings(pattern), names[1]: _strings(replacement)}
            result = target if index == len(steps) - 1 else f"{target}_{index}"
            yield helper.make_node("StringRegexReplace", [source, *names], [result], domain=DOMAIN)
            source = result

    def _characters(self) -> list[Any]:
        """One text (``item``) to the text made of what each of its characters becomes (``result``)."""
        from onnx import helper

        mapped = self.table.mapped | {mark: f" {content} " for mark, content in self.marks.items()}
        make = helper.make_node
        return [
            make("Concat", ["item", "blank"], ["some"], axis=0),  # the splitter fails on a text without characters
            make("StringJoin", ["some", "nothing", "first_axis"], ["item_text"], domain=DOMAIN),
            make("StringRegexSplitWithOffsets", ["item_text", "any_character", "any_character"],
                 ["characters", "begins", "ends", "rows"], domain=DOMAIN),
            make("LabelEncoder", ["characters"], ["mapped"], domain="ai.onnx.ml", keys_strings=list(mapped),
                 values_strings=list(mapped.values()), default_string=UNKNOWN),
            make("StringJoin", ["mapped", "nothing", "first_axis"], ["result"], domain=DOMAIN),
        ]

    def _word_pieces(self) -> list[Any]:
        """One text of words between single blanks to its ids, filled with -1 up to the limit (``result``)."""
        from onnx import helper

        model, (first, last) = self.values["model"], self.frame
        make = helper.make_node
        return [
            make("BertTokenizer", ["item"], ["row", "row_types", "row_mask", "row_offsets"], domain=DOMAIN,
                 vocab_file="\n".join(self.words), do_lower_case=0, do_basic_tokenize=0, strip_accents=0,
                 tokenize_chinese_chars=0, unk_token=model["unk_token"], cls_token=first, sep_token=last,
                 pad_token=last, mask_token=last, suffix_indicator=model["continuing_subword_prefix"],
                 max_length=self.tokenizer.max_seq_length),
            make("Shape", ["row"], ["row_length"]),
            make("Sub", ["limit", "row_length"], ["missing"]),
            make("Concat", ["first_axis", "missing"], ["pads"], axis=0),  # none before, the missing ones behind
            make("Pad", ["row", "pads", "no_id"], ["result"]),
        ]

    def _each(self, source: str, target: str, body: list[Any], kind: int) -> Any:
        """A Loop over the texts of ``source``: ``body`` makes ``result`` of ``item``, a tensor of one string."""
        from onnx import TensorProto, helper

        make, info = helper.make_node, helper.make_tensor_value_info
        graph = helper.make_graph(
            [make("Unsqueeze", ["index", "first_axis"], ["index_1"]),
             make("Gather", [source, "index_1"], ["item"], axis=0),
             *body, make("Identity", ["go"], ["go_on"])], f"each_{target}",
            [info("index", TensorProto.INT64, []), info("go", TensorProto.BOOL, [])],
            [info("go_on", TensorProto.BOOL, []), info("result", kind, [None])])
        return make("Loop", ["count", "yes"], [target], body=graph)


def _bert_parts(backend: FastTokenizer, values: dict[str, Any]) -> tuple[list[str], tuple[str, str]]:
    """The words by id, and the two special tokens around a text; refuses a tokenizer that is not BERT's."""
    wanted = {"normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer", "model": "WordPiece"}
    found = {part: (values.get(part) or {}).get("type") for part in wanted}
    if found != wanted:
        raise UserError(f"a text-in graph needs BERT's tokenizer ({', '.join(wanted.values())}); this model has "
                        f"{', '.join(map(str, found.values()))}: ship tokenizer.json beside the graph instead")
    vocabulary = values["model"]["vocab"]
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    frame = backend.encode("").tokens
    regular = ([vocabulary[word] for word in words] == list(range(len(words))) and all(words)
               and not any("\n" in word for word in words) and len(frame) == 2
               and all(token["content"] in vocabulary and not token["single_word"] and not token["normalized"]
                       for token in values["added_tokens"]))
    if not regular:
        raise UserError("a text-in graph needs a vocabulary numbered without gaps, special tokens that are part of it "
                        "and stand one before and one behind a text; this tokenizer differs: ship tokenizer.json "
                        "beside the graph instead")
    return words, (frame[0], frame[1])


def character_table(backend: FastTokenizer, words: Iterable[str]) -> CharacterTable:
    """Ask the normalizer and the pre-tokenizer what becomes of every Unicode character.

    Both of BERT's work on one character at a time (but for the order of accents, which vanish), so a table says all.
    """
    prefix = json.loads(backend.to_str())["model"]["continuing_subword_prefix"]
    vocabulary = set(words)
    known = {letter for word in vocabulary for letter in word.removeprefix(prefix)}
    kinds: dict[str, str] = {}
    mapped: dict[str, str] = {}
    removed: list[int] = []
    spaced: list[int] = []
    for start in range(0, len(_POINTS), _BATCH):
        batch = [chr(point) for point in _POINTS[start : start + _BATCH]]
        normal = _normalized(backend, batch)
        kinds |= _kinds(backend, sorted({letter for text in normal for letter in text if letter not in kinds}))
        for character, text in zip(batch, normal, strict=True):
            if text == character and kinds[character] == "word" and character not in known:
                continue
            spelled = "".join(_spelled(letter, kinds[letter], known) for letter in text)
            if not text:
                removed.append(ord(character))
            elif text.strip() == character and spelled[0] == spelled[-1] == " ":
                spaced.append(ord(character))
            if UNKNOWN not in spelled or " " in spelled:
                mapped[character] = spelled
    long_removed, long_spaced = ([pair for pair in _ranges(some) if pair[1] - pair[0] >= _LONG_RANGE]
                                 for some in (removed, spaced))
    covered = {point for low, high in long_removed + long_spaced for point in range(low, high + 1)}
    mapped = {letter: text for letter, text in mapped.items() if ord(letter) not in covered or letter in known}
    ambiguous = [letter for letter in sorted(known) if kinds.get(letter) == "word"
                 and not {letter, prefix + letter} <= vocabulary]
    return CharacterTable(mapped, long_removed, long_spaced, ambiguous)


def _normalized(backend: FastTokenizer, characters: Sequence[str]) -> list[str]:
    """Each character through the normalizer, many in one call."""
    texts: list[str] = backend.normalizer.normalize_str("|".join(characters)).split("|")
    if len(texts) == len(characters):
        return texts
    return [backend.normalizer.normalize_str(character) for character in characters]  # one of them makes a bar


def _kinds(backend: FastTokenizer, letters: Sequence[str]) -> dict[str, str]:
    """``word``: part of its word; ``alone``: a word of its own; ``blank``: between words."""
    names = {1: "word", 2: "blank", 3: "alone"}
    pieces = [piece for piece, _ in backend.pre_tokenizer.pre_tokenize_str("|".join(f"a{x}a" for x in letters))]
    counts = [0]
    for piece in pieces:
        if piece == "|":
            counts.append(0)
        else:
            counts[-1] += 1
    if len(counts) != len(letters):
        counts = [len(backend.pre_tokenizer.pre_tokenize_str(f"a{x}a")) for x in letters]
    return {letter: names[count] for letter, count in zip(letters, counts, strict=True)}


def _spelled(letter: str, kind: str, known: set[str]) -> str:
    if kind == "blank":
        return " "
    shown = letter if letter in known else UNKNOWN
    return f" {shown} " if kind == "alone" else shown


def _ranges(points: Sequence[int]) -> Ranges:
    """Ascending code points as inclusive ranges."""
    pairs: Ranges = []
    for point in points:
        if pairs and pairs[-1][1] == point - 1:
            pairs[-1] = (pairs[-1][0], point)
        else:
            pairs.append((point, point))
    return pairs


def _without(pairs: Ranges, points: Sequence[int]) -> Ranges:
    """The ranges without some of their points."""
    for point in points:
        pairs = [part for low, high in pairs
                 for part in ([(low, point - 1), (point + 1, high)] if low <= point <= high else [(low, high)])
                 if part[0] <= part[1]]
    return pairs


def _charset(pairs: Ranges) -> str:
    """Ranges as the inside of a character class of RE2."""
    return "".join(f"\\x{{{low:X}}}-\\x{{{high:X}}}" for low, high in pairs)


def _strings(*values: str) -> Any:
    return np.array(values, dtype=object)
