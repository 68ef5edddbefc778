"""all-MiniLM-L6-v2 on the seven STS sets: the torch checkpoint, the exported float32 graph, and every smaller variant.

    python -m benchmarks.minilm_sts --data ../shared/data

Calibration reads the first lines of DATA/sentences.txt.gz; none of them occurs in an evaluation set.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.common import distinct_sentences, folder, scores, write_result
from distilface.data import iter_texts
from distilface.evaluation.vectors import KnownVectors
from distilface.exporter import export
from distilface.loading import MINILM, load_any
from distilface.parity import batch_dependence, cosines
from distilface.protocol import Vectors
from distilface.quantization import quantize
from distilface.quantization.recipe import Mode
from distilface.runtime import Encoder

VARIANTS: tuple[tuple[str, Mode, bool, dict[str, Any]], ...] = (
    ("int8-static", "static", True, {}), ("int8-static, 4-bit table", "static", True, {"embeddings": "int4"}),
    ("int8-token", "token", True, {}), ("int8-token, 4-bit table", "token", True, {"embeddings": "int4"}),
    ("int8-dynamic", "dynamic", True, {}), ("w8", "w8", True, {}), ("w4, no text", "w4", False, {}),
    ("w4", "w4", True, {}), ("fp16", "fp16", True, {}),
)
"""Name of the row, mode, whether sentences are given, and the other options of `quantize`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with senteval/ and sentences.txt.gz")
    data = folder(parser.parse_args().data, "data folder")
    sentences = distinct_sentences(data / "senteval")
    rows: dict[str, Any] = {"torch": scores(load_any(MINILM), data)}
    with tempfile.TemporaryDirectory() as work:
        bundle = Path(work) / "minilm"
        export(MINILM, bundle)
        texts = list(islice(iter_texts(data / "sentences.txt.gz"), 1000))
        exact = Encoder.load(bundle).encode(sentences)
        rows["fp32"] = measured(bundle, "fp32", sentences, exact, data)
        for name, mode, calibrated, options in VARIANTS:
            made = quantize(bundle, mode, texts if calibrated else None, Path(work) / "made", overwrite=True, **options)
            rows[name] = measured(made.bundle.folder, made.name, sentences, exact, data)
            print(name, rows[name]["avg7"], flush=True)
    print(write_result("minilm_sts", {"model": MINILM, "rows": rows}))


def measured(bundle: Path, variant: str, sentences: Sequence[str], exact: Vectors, data: Path) -> dict[str, Any]:
    """Quality of one variant, its size, and how far its vectors are from fp32's and from their own in company."""
    encoder = Encoder.load(bundle, variant)
    vectors = encoder.encode(sentences)
    near = cosines(vectors, exact)
    return scores(KnownVectors(sentences, vectors), data) | {
        "megabytes": encoder.graph.stat().st_size / 1e6, "minimum_cosine": float(near.min()),
        "mean_cosine": float(near.mean()), "sentences": len(near), "batch_dependence": batch_dependence(encoder)}


if __name__ == "__main__":
    main()
