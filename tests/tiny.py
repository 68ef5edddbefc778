"""Tiny encoders with random weights, one of each supported architecture, made in milliseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

CORPUS = [
    "turn on the light in the kitchen", "switch off every lamp upstairs", "is the front door locked",
    "make the bedroom two degrees warmer", "start the vacuum cleaner", "play some quiet music",
    "how much power did we use today", "water the tomatoes this evening", "Hello, World!", "open the blinds halfway",
]
ARCHITECTURES = ("distilbert", "bert", "roberta", "mpnet", "xlm-roberta")


def tiny_tokenizer(folder: Path, architecture: str = "distilbert", max_length: int = 64) -> None:
    """A small fixed WordPiece tokenizer (bytes only for RoBERTa), saved with the files transformers expects."""
    bpe = architecture == "roberta"
    if architecture in ("distilbert", "bert"):
        names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        cls, sep, pad, unk, mask = "[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]"
    else:
        names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        cls, sep, pad, unk, mask = "<s>", "</s>", "<pad>", "<unk>", "<mask>"
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,!?$="
    if bpe:
        words = names + sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    else:
        known = sorted({word for line in CORPUS for word in line.lower().strip("!").replace(",", "").split()})
        words = names + list(letters) + [f"##{letter}" for letter in letters] + [w for w in known if len(w) > 1]
        tokenizer = Tokenizer(models.WordPiece({word: index for index, word in enumerate(words)}, unk_token=unk))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(names)
    ids = {name: tokenizer.token_to_id(name) for name in (cls, sep)}
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}", pair=f"{cls} $A {sep} $B {sep}", special_tokens=list(ids.items()))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=max_length, cls_token=cls, sep_token=sep, pad_token=pad,
        unk_token=unk, mask_token=mask).save_pretrained(folder)


def tiny_checkpoint(folder: Path, architecture: str = "distilbert", layers: int = 4, hidden: int = 32,
                    max_length: int = 64, dropout: float = 0.1, seed: int = 0) -> Path:
    """A checkpoint folder: config, safetensors, tokenizer. 4 heads, 130 to 270 words, float32."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny_tokenizer(folder, architecture, max_length)
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    pad = "[PAD]" if architecture in ("distilbert", "bert") else "<pad>"
    common = {"vocab_size": backend.get_vocab_size(), "pad_token_id": backend.token_to_id(pad)}
    torch.manual_seed(seed)
    if architecture == "distilbert":
        config: Any = transformers.DistilBertConfig(
            dim=hidden, n_layers=layers, n_heads=4, hidden_dim=4 * hidden, max_position_embeddings=max_length,
            dropout=dropout, attention_dropout=dropout, initializer_range=0.2, **common)
    else:
        kinds = {"bert": transformers.BertConfig, "roberta": transformers.RobertaConfig,
                 "xlm-roberta": transformers.XLMRobertaConfig, "mpnet": transformers.MPNetConfig}
        offset = 0 if architecture == "bert" else 2
        config = kinds[architecture](
            hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=4 * hidden,
            max_position_embeddings=max_length + offset, hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout, initializer_range=0.2, **common)
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    return folder
