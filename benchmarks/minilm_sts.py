"""all-MiniLM-L6-v2 on the seven STS sets: the torch checkpoint, the exported float32 graph, and both INT8 graphs.

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

from benchmarks.common import folder, write_result
from distilface.data import iter_texts
from distilface.evaluation import STS_SETS, evaluate_sts, load_sts
from distilface.exporter import export
from distilface.loading import MINILM, load_any
from distilface.parity import cosines
from distilface.protocol import SentenceVectors, Vectors
from distilface.quantization import quantize
from distilface.runtime import Encoder


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
        quantize(bundle, "dynamic", texts)
        quantize(bundle, "static", texts)
        vectors: dict[str, Vectors] = {}
        for variant in ("fp32", "int8-static", "int8-dynamic"):
            encoder = Encoder.load(bundle, variant)
            vectors[variant] = encoder.encode(sentences)
            near = cosines(vectors[variant], vectors["fp32"])
            rows[variant] = scores(Known(sentences, vectors[variant]), data) | {
                "megabytes": encoder.graph.stat().st_size / 1e6, "minimum_cosine": float(near.min()),
                "mean_cosine": float(near.mean()), "sentences": len(near)}
            print(variant, rows[variant]["avg7"], flush=True)
    print(write_result("minilm_sts", {"model": MINILM, "rows": rows}))


class Known:
    """Vectors that were computed before, by text."""

    def __init__(self, texts: Sequence[str], vectors: Vectors) -> None:
        self.rows = {text: index for index, text in enumerate(texts)}
        self.vectors = vectors

    def encode(self, texts: Sequence[str]) -> Vectors:
        return self.vectors[[self.rows[text] for text in texts]]


def scores(encoder: SentenceVectors, data: Path) -> dict[str, Any]:
    """Spearman in points of each set, and the averages."""
    found = evaluate_sts(encoder, data / "senteval")
    return {**{item.name: round(item.spearman, 3) for item in found.sets}, "avg7": found.avg7, "avg5": found.avg5}


def distinct_sentences(senteval: Path) -> list[str]:
    """The sentences of the seven sets, each once."""
    pairs = [subset for item in load_sts(senteval, STS_SETS) for subset in item.subsets]
    return list(dict.fromkeys(text for subset in pairs for text in (*subset.sentences1, *subset.sentences2)))


if __name__ == "__main__":
    main()
