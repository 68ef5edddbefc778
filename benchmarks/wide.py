"""A 768-wide model of DistilBERT architecture with random weights: size and products on integers of every variant.

    python -m benchmarks.wide

Weights do not matter for size and structure; quality is not measured here. The words are those of all-MiniLM-L6-v2,
whose table is as long as distilbert-base-uncased's.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.common import write_result
from distilface.encoder import SentenceEncoder
from distilface.exporter import export
from distilface.loading import MINILM
from distilface.quantization import quantize
from distilface.quantization.recipe import Mode
from distilface.smarthome import utterances

VARIANTS: tuple[tuple[Mode, dict[str, Any]], ...] = (
    ("static", {}), ("static", {"embeddings": "int4"}), ("token", {}), ("dynamic", {}), ("w8", {}), ("w4", {}),
    ("fp16", {}))


def main() -> None:
    texts = [item.text for item in utterances("train")]
    with tempfile.TemporaryDirectory() as work:
        checkpoint = Path(work) / "model"
        checkpoint.mkdir()
        torch.manual_seed(0)
        config = transformers.DistilBertConfig(vocab_size=30522)
        words = SentenceEncoder.load(MINILM).tokenizer.with_limit(128)
        words.save(checkpoint, False)
        transformers.DistilBertModel(config).save_pretrained(checkpoint)
        bundle = export(checkpoint, Path(work) / "bundle", max_seq_length=128)
        rows = [_row("fp32", bundle.variant("fp32"))]
        for mode, options in VARIANTS:
            made = quantize(bundle.folder, mode, texts if mode == "static" else None, Path(work) / "made",
                            overwrite=True, max_drop=100, min_cosine=-1, **options)
            rows.append(_row(" ".join([made.name, *(f"{value} table" for value in options.values())]), made.variant))
            print(rows[-1], flush=True)
    print(write_result("wide", {"layers": config.n_layers, "width": config.dim, "words": config.vocab_size,
                                "rows": rows}))


def _row(name: str, variant: Any) -> dict[str, Any]:
    return {"variant": name, "megabytes": variant.size / 1e6, "integer_matmuls": variant.integer_matmuls,
            "weight_only_matmuls": variant.weight_only_matmuls, "float_matmuls": variant.float_matmuls}


if __name__ == "__main__":
    main()
