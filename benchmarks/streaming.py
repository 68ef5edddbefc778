"""Encode a file of texts into a file of vectors and print the seconds and the peak memory, for `benchmarks.scaling`.

    python -m benchmarks.streaming BUNDLE TEXTS OUT

A module of its own, so that nothing but the runtime is in that memory.
"""

from __future__ import annotations

import json
import sys
import time

from distilface.benchmarking.worker import peak_rss
from distilface.data import iter_texts
from distilface.encoding import encode_to
from distilface.runtime import Encoder


def main(bundle: str, texts: str, out: str) -> None:
    encoder = Encoder.load(bundle)
    start = time.perf_counter()
    encode_to(encoder, iter_texts(texts), out, overwrite=True)
    print(json.dumps({"seconds": time.perf_counter() - start, "peak_rss": peak_rss()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
