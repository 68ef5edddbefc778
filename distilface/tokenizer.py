"""Text to ids, by the model's own tokenizer.json and nothing else: the same ids in training, export and at run time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer as FastTokenizer

from distilface.errors import UserError

SpecialTokens = Literal["parse", "escape"]
Ids = list[int]

_SPECIAL_NAMES = ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token", "bos_token", "eos_token")
_STALE = ("name_or_path", "padding", "max_length", "truncation", "pad_to_multiple_of", "backend", "is_local",
          "special_tokens_map_file", "tokenizer_file", "stride", "truncation_side", "truncation_strategy")


def check_texts(texts: Iterable[str]) -> list[str]:
    """Return ``texts`` as a list of encodable strings.

    A lone surrogate (half an emoji) can't be written as UTF-8 and becomes U+FFFD, the replacement character.

    Raises:
        TypeError: if ``texts`` is a bare string, or an item is not a string; names the index.
    """
    if isinstance(texts, (str, bytes)):
        raise TypeError("encode takes a list of texts, got one bare string; write encode([text])")
    checked = []
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(f"text at index {index} is {type(text).__name__}, not str")
        checked.append(text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    return checked


class Tokenizer:
    """A tokenizer.json with one length limit.

    Args:
        backend: the tokenizer; its own truncation and fixed padding are replaced.
        max_seq_length: the one limit, special tokens included.
        pad_token_id: id that fills a batch; masked out, so its value never matters to a correct graph.
        special_tokens: ``"parse"`` (default, as in transformers) turns ``[SEP]`` inside a text into the real
            separator; ``"escape"`` spells it out as plain characters, so that user text can't inject one.
        settings: what tokenizer_config.json said, carried to where the tokenizer is saved.
    """

    def __init__(self, backend: FastTokenizer, max_seq_length: int, pad_token_id: int = 0,
                 special_tokens: SpecialTokens = "parse", settings: Mapping[str, Any] | None = None) -> None:
        self.backend = FastTokenizer.from_str(backend.to_str())  # a copy: the caller's stays as it is
        self.max_seq_length = max_seq_length
        self.pad_token_id = pad_token_id
        self.settings = dict(settings or {})
        if max_seq_length <= self.special_count:
            raise UserError(f"max_seq_length {max_seq_length} leaves no room for text: "
                            f"the special tokens alone take {self.special_count}")
        self.backend.enable_truncation(max_seq_length)
        self.backend.no_padding()
        if special_tokens not in ("parse", "escape"):
            raise UserError(f"unknown special_tokens {special_tokens!r}; allowed: parse, escape")
        self.backend.encode_special_tokens = special_tokens == "escape"

    @classmethod
    def load(cls, folder: str | Path, max_seq_length: int | None = None,
             special_tokens: SpecialTokens = "parse") -> Tokenizer:
        """Read ``tokenizer.json`` in ``folder``; the limit is the smallest that its files name, unless given."""
        folder = Path(folder)
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise UserError(f"{str(folder)!r} has no tokenizer.json; save it with a fast tokenizer "
                            "(AutoTokenizer.from_pretrained(...).save_pretrained(folder))")
        try:
            backend = FastTokenizer.from_file(str(file))
        except Exception as error:  # the Rust binding raises plain Exception
            raise UserError(f"{str(file)!r} is not a readable tokenizer: {error}") from None
        limit = declared_length(folder) if max_seq_length is None else max_seq_length
        if limit is None:
            raise UserError(f"{str(folder)!r} names no length limit; pass max_seq_length")
        settings = {**_json(folder / "special_tokens_map.json"), **_json(folder / "tokenizer_config.json")}
        return cls(backend, limit, _pad_token_id(folder, backend, settings), special_tokens, settings)

    def __reduce__(self) -> tuple[Any, ...]:
        mode = "escape" if self.backend.encode_special_tokens else "parse"
        return Tokenizer, (self.backend, self.max_seq_length, self.pad_token_id, mode, self.settings)

    @property
    def special_count(self) -> int:
        """How many special tokens the template adds to one text ([CLS] and [SEP]: 2)."""
        return int(self.backend.num_special_tokens_to_add(False))

    def with_limit(self, max_seq_length: int) -> Tokenizer:
        """The same tokenizer with another length limit."""
        escape = self.backend.encode_special_tokens
        mode: SpecialTokens = "escape" if escape else "parse"
        return Tokenizer(self.backend, max_seq_length, self.pad_token_id, mode, self.settings)

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Ids of each text, special tokens included, cut to the limit with the last special token kept."""
        return [encoding.ids for encoding in self.backend.encode_batch_fast(list(texts))]

    def encode_reporting(self, texts: Sequence[str]) -> tuple[list[Ids], list[int]]:
        """`encode_batch`, and the indices of the texts that were longer than the limit."""
        encodings = self.backend.encode_batch_fast(list(texts))
        return [e.ids for e in encodings], [i for i, e in enumerate(encodings) if e.overflowing]

    def pad(self, rows: Sequence[Sequence[int]]) -> dict[str, NDArray[np.int64]]:
        """Rows of ids to ``input_ids`` and ``attention_mask``, both int64 ``[len(rows), longest row]``."""
        width = max(map(len, rows))
        ids = np.full((len(rows), width), self.pad_token_id, dtype=np.int64)
        mask = np.zeros((len(rows), width), dtype=np.int64)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = row
            mask[index, : len(row)] = 1
        return {"input_ids": ids, "attention_mask": mask}

    def save(self, folder: Path, token_types: bool = True) -> None:
        """Write tokenizer.json, tokenizer_config.json, special_tokens_map.json and, for WordPiece, vocab.txt.

        All name the one length limit; none pads to a fixed length.

        Args:
            token_types: whether the encoder takes ``token_type_ids``. transformers 4 feeds them to DistilBERT, which
                fails on them, unless the configuration says that there are none.
        """
        escape = self.backend.encode_special_tokens
        self.backend.encode_special_tokens = False
        self.backend.save(str(folder / "tokenizer.json"), pretty=False)
        self.backend.encode_special_tokens = escape
        special = {name: _content(self.settings[name]) for name in _SPECIAL_NAMES if self.settings.get(name)}
        settings = {key: value for key, value in self.settings.items() if key not in _STALE}
        settings |= special | {"model_max_length": self.max_seq_length}
        if not token_types:
            settings["model_input_names"] = ["input_ids", "attention_mask"]
        if settings.get("tokenizer_class") in (None, "TokenizersBackend"):  # the second is unknown to transformers 4
            settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        write_json(folder / "tokenizer_config.json", settings)
        write_json(folder / "special_tokens_map.json", special)
        model = json.loads(self.backend.to_str())["model"]
        if model.get("type") == "WordPiece":
            words = sorted(model["vocab"], key=model["vocab"].__getitem__)
            (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8", newline="\n")


def declared_length(folder: Path) -> int | None:
    """The smallest length limit that the files of ``folder`` declare, or None.

    Packages in the wild disagree with themselves (128, 256 and 512 in one model). sentence_bert_config.json is what
    sentence-transformers obeys, so it wins; otherwise the smallest of the tokenizer's and the position table's.
    """
    explicit = _json(folder / "sentence_bert_config.json").get("max_seq_length")
    if isinstance(explicit, int):
        return explicit
    limits = [value for value in (
        _json(folder / "tokenizer_config.json").get("model_max_length"),
        (_json(folder / "tokenizer.json").get("truncation") or {}).get("max_length"),
        _positions(_json(folder / "config.json")),
    ) if isinstance(value, int) and 0 < value < 1_000_000]
    return min(limits) if limits else None


def _positions(config: dict[str, Any]) -> int | None:
    """Longest sequence the position table allows; RoBERTa and its kin start counting after the padding id."""
    size = config.get("max_position_embeddings")
    if not isinstance(size, int):
        return None
    offset = config.get("model_type") in ("roberta", "xlm-roberta", "camembert", "mpnet")
    return size - 2 if offset else size


def _pad_token_id(folder: Path, backend: FastTokenizer, settings: Mapping[str, Any]) -> int:
    token = settings.get("pad_token")
    if token and (index := backend.token_to_id(_content(token))) is not None:
        return int(index)
    configured = _json(folder / "config.json").get("pad_token_id")
    return configured if isinstance(configured, int) else 0


def _content(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{str(file)!r} is not valid JSON: {error}") from None
    return value if isinstance(value, dict) else {}


def write_json(file: Path, value: Any) -> None:
    """Readable JSON with a final newline."""
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")
