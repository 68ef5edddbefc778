"""Which pieces of a vocabulary stay, and the tokenizer.json with only those, for WordPiece, Unigram and BPE.

One guarantee for all three: a text whose tokens all stay has the same tokens as before. WordPiece takes the longest
piece that fits and Unigram the best path, so a piece that lost before is not missed; a BPE token stays together with
every merge that leads to it. The other texts are spelled with smaller pieces.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from distilface.errors import UserError

TYPES = ("WordPiece", "Unigram", "BPE")


@dataclass
class Pieces:
    """A tokenizer.json taken apart.

    Attributes:
        values: the parsed file, as the backend writes it.
        ids: id of every piece of the model, and of the added tokens.
        parents: BPE only: what must stay with a piece, the halves of the merges that make it.
        basic: pieces that always stay: single characters, bytes, specials, and what can't be spelled without.
        unspelled: how many of them stay because a character of theirs is no piece of its own.
    """

    values: dict[str, Any]
    ids: dict[str, int]
    parents: dict[str, list[str]] = field(default_factory=dict)
    basic: set[str] = field(default_factory=set)
    unspelled: int = 0

    @classmethod
    def of(cls, backend: FastTokenizer) -> Pieces:
        """Take ``backend`` apart; `UserError` naming a kind of model that has no smaller pieces to fall back to."""
        values = json.loads(backend.to_str())
        model = values["model"]
        kind = model.get("type")
        if kind not in TYPES:
            raise UserError(f"the vocabulary of a {kind} tokenizer can't be trimmed: a word left out has no smaller "
                            f"pieces to fall back to; supported: {', '.join(TYPES)}")
        ids = {piece: index for index, (piece, _) in enumerate(model["vocab"])} if kind == "Unigram" else dict(
            model["vocab"])
        added = {token["content"]: token["id"] for token in values["added_tokens"]}
        pieces = cls(values, ids | added)
        pieces.basic |= {piece for piece, index in pieces.ids.items() if piece in added or index == pieces.unknown_id}
        {"WordPiece": pieces._wordpiece, "Unigram": pieces._unigram, "BPE": pieces._bpe}[kind](model)
        named = pieces._named_ids()
        pieces.basic |= {piece for piece, index in pieces.ids.items() if index in named}
        return pieces

    @property
    def unknown_id(self) -> int | None:
        """Id of the token for what the vocabulary does not know."""
        model = self.values["model"]
        if model["type"] == "Unigram":
            return model["unk_id"]  # type: ignore[no-any-return]
        return self.ids.get(model["unk_token"]) if model["unk_token"] is not None else None

    def closure(self, piece: str) -> set[str]:
        """``piece`` and everything that it is merged from."""
        found: set[str] = set()
        open_ = [piece]
        while open_:
            current = open_.pop()
            if current not in found:
                found.add(current)
                open_.extend(self.parents.get(current, ()))
        return found

    def rebuild(self, kept: Iterable[str]) -> tuple[FastTokenizer, dict[int, int]]:
        """The tokenizer with only ``kept``, and new id by old id; the order of ids stays."""
        order = sorted(kept, key=self.ids.__getitem__)
        new = {piece: index for index, piece in enumerate(order)}
        mapping = {self.ids[piece]: index for piece, index in new.items()}
        values = json.loads(json.dumps(self.values))
        model = values["model"]
        if model["type"] == "Unigram":
            model["vocab"] = [entry for entry in model["vocab"] if entry[0] in new]
            model["unk_id"] = None if model["unk_id"] is None else mapping[model["unk_id"]]
        else:
            model["vocab"] = {piece: new[piece] for piece in model["vocab"] if piece in new}
        if model["type"] == "BPE":
            model["merges"] = [pair for pair in model["merges"]
                               if self._product(pair) in new and pair[0] in new and pair[1] in new]
        for token in values["added_tokens"]:
            token["id"] = new[token["content"]]
        _renumber(values["post_processor"], lambda index: mapping[index])
        values["padding"] = None
        backend = FastTokenizer.from_str(json.dumps(values))
        wrong = [piece for piece, index in new.items() if backend.token_to_id(piece) != index]
        if wrong or backend.get_vocab_size(True) != len(new):
            raise UserError(f"this tokenizer numbers its added tokens in a way that can't be kept after trimming "
                            f"({wrong[0] if wrong else 'holes in the ids'!r}); leave the vocabulary whole")
        return backend, mapping

    def _wordpiece(self, model: Mapping[str, Any]) -> None:
        prefix = model["continuing_subword_prefix"]
        vocab = model["vocab"]
        for piece in vocab:
            text = piece.removeprefix(prefix) if len(piece) > len(prefix) else piece
            first = [prefix + text[0]] if text != piece else [piece[0]]
            needed = first + [prefix + letter for letter in text[1:]]
            if len(text) == 1:
                self.basic.add(piece)
            elif piece not in self.basic and not all(item in vocab for item in needed):
                self.basic.add(piece)
                self.unspelled += 1

    def _unigram(self, model: Mapping[str, Any]) -> None:
        vocab = dict(model["vocab"])
        for piece in vocab:
            if len(piece) == 1 or (model.get("byte_fallback") and _is_byte(piece)):
                self.basic.add(piece)
            elif piece not in self.basic and not all(letter in vocab for letter in piece):
                self.basic.add(piece)
                self.unspelled += 1
        # The penalty of an unknown character is counted from the lowest score there is, so that score must stay.
        self.basic.add(min(vocab, key=vocab.__getitem__))

    def _bpe(self, model: Mapping[str, Any]) -> None:
        for pair in model["merges"]:
            self.parents.setdefault(self._product(pair), []).extend(pair)
        self.basic |= {piece for piece in model["vocab"] if piece not in self.parents}

    def _product(self, pair: Sequence[str]) -> str:
        return pair[0] + pair[1].removeprefix(self.values["model"]["continuing_subword_prefix"] or "")

    def _named_ids(self) -> set[int]:
        """Ids that the post-processor writes into every text."""
        named: set[int] = set()

        def note(index: int) -> int:
            named.add(index)
            return index

        _renumber(self.values["post_processor"], note)
        return named


def _is_byte(piece: str) -> bool:
    return len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">")


def _renumber(processor: Any, new: Callable[[int], int]) -> None:
    """Replace the ids in a post-processor of tokenizer.json, in place."""
    if processor is None:
        return
    kind = processor["type"]
    if kind == "Sequence":
        for item in processor["processors"]:
            _renumber(item, new)
    elif kind == "TemplateProcessing":
        for token in processor["special_tokens"].values():
            token["ids"] = [new(index) for index in token["ids"]]
    elif kind in ("BertProcessing", "RobertaProcessing"):
        for name in ("sep", "cls"):
            processor[name][1] = new(processor[name][1])
