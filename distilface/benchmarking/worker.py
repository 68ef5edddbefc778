"""The measuring process: one subject, one fresh interpreter; requests and answers are JSON, one a line.

Run as ``python -m distilface.benchmarking.worker``. It measures only when asked, so that the other subjects' processes
can wait their turn, and ends when its standard input does.
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

Answer = dict[str, Any]
FEWEST_CALLS = 5


def timed_calls(encode: Callable[[list[str]], Any], texts: Sequence[str], samples: int, warmup: int,
                turn_seconds: float = math.inf) -> list[float]:
    """Seconds of single-text calls, the texts taking turns, after ``warmup`` of them; fewer once the turn is over."""
    for index in range(warmup):
        encode([texts[index % len(texts)]])
    seconds: list[float] = []
    end = time.perf_counter() + turn_seconds
    while len(seconds) < samples and (len(seconds) < FEWEST_CALLS or time.perf_counter() < end):
        text = [texts[len(seconds) % len(texts)]]
        start = time.perf_counter()
        encode(text)
        seconds.append(time.perf_counter() - start)
    return seconds


class Session:
    """The loaded subject and the measurements it answers."""

    def __init__(self) -> None:
        self.encoder: Any = None

    def handle(self, request: dict[str, Any]) -> Answer:
        """Run the operation named ``op`` with the other fields as its arguments."""
        arguments = {key: value for key, value in request.items() if key != "op"}
        operation: Callable[..., Answer] = getattr(self, f"do_{request['op']}")
        return operation(**arguments)

    def do_load(self, subject: dict[str, Any], threads: int, target: str, max_seq_length: int | None,
                first_text: str, npm_folder: str = ".") -> Answer:
        """Load the subject and encode one text, each step timed in seconds."""
        start = time.perf_counter()
        load = _loader(subject, threads, target, max_seq_length, npm_folder)
        imported = time.perf_counter()
        self.encoder = load()
        loaded = time.perf_counter()
        vectors = self.encoder.encode([first_text])
        done = time.perf_counter()
        return {"import_s": imported - start, "load_s": loaded - imported, "first_vector_s": done - loaded,
                "dim": int(vectors.shape[1]), "max_seq_length": getattr(self.encoder, "max_seq_length", None)}

    def do_latency(self, texts: list[str], samples: int, turn_seconds: float, warmup: int) -> Answer:
        """Seconds of single-text calls; the texts take turns."""
        if hasattr(self.encoder, "latency"):  # a browser has its own clock
            return self.encoder.latency(  # type: ignore[no-any-return]
                texts=texts, samples=samples, turn_seconds=turn_seconds, warmup=warmup, fewest=FEWEST_CALLS)
        return {"seconds": timed_calls(self.encoder.encode, texts, samples, warmup, turn_seconds)}

    def do_throughput(self, texts: list[str], batch_tokens: int | None) -> Answer:
        """Seconds for one pass over ``texts``."""
        if hasattr(self.encoder, "throughput"):
            return self.encoder.throughput(texts, batch_tokens)  # type: ignore[no-any-return]
        encode = self._policy(batch_tokens)
        start = time.perf_counter()
        encode(texts)
        return {"seconds": time.perf_counter() - start}

    def do_encode(self, texts: list[str], out: str) -> Answer:
        """Write the vectors of ``texts`` to the .npy file ``out``."""
        import numpy as np

        vectors = np.asarray(self.encoder.encode(texts), dtype=np.float32)
        with Path(out).open("wb") as file:  # given a name, numpy would add .npy to it
            np.save(file, vectors, allow_pickle=False)
        return {"shape": list(vectors.shape)}

    def do_batch_dependence(self) -> Answer:
        """Worst cosine of the golden texts alone and beside long ones; 1 is independent."""
        from distilface.golden import GOLDEN_TEXTS, LONG_NEIGHBOUR
        from distilface.parity import batch_dependence, cosines

        if hasattr(self.encoder, "embed_batch"):
            return {"cosine": float(batch_dependence(self.encoder))}
        # What only follows the protocol chooses its own batches; two texts usually share one.
        pairs = [(self.encoder.encode([text]), self.encoder.encode([text, LONG_NEIGHBOUR])[:1])
                 for text in GOLDEN_TEXTS]
        # An empty text may have a vector of zeros, which has no cosine.
        return {"cosine": float(min(1.0 if (alone == beside).all() else cosines(alone, beside).min()
                                    for alone, beside in pairs))}

    def do_tokens(self, texts: dict[str, list[str]]) -> Answer:
        """Mean token count of each list of texts by the subject's own tokenizer; None where it has none of ours."""
        tokenizer: Any = getattr(self.encoder, "tokenizer", None)
        if not hasattr(tokenizer, "encode_batch"):
            return {"means": None}
        return {"means": {key: sum(len(row) for row in tokenizer.encode_batch(items)) / len(items)
                          for key, items in texts.items()}}

    def do_kernels(self) -> Answer:
        """How the runtime computes the products with a weight; None for what runs no graph of ours."""
        from dataclasses import asdict

        if not hasattr(self.encoder, "backend"):
            return {"matmuls": None}
        from distilface.runtime.kernels import executed_matmuls

        return {"matmuls": asdict(executed_matmuls(self.encoder.graph, self.encoder.backend))}

    def do_placement(self) -> Answer:
        """Where the nodes of the graph run; None for what runs no graph of ours."""
        from dataclasses import asdict

        from distilface.runtime import Encoder
        from distilface.runtime.placement import placement

        return {"placement": asdict(placement(self.encoder)) if isinstance(self.encoder, Encoder) else None}

    def do_memory(self) -> Answer:
        """Peak resident size in bytes so far; None for a browser, which is many processes."""
        return {"peak_rss": None if hasattr(self.encoder, "page") else peak_rss()}

    def _policy(self, batch_tokens: int | None) -> Callable[[Sequence[str]], Any]:
        if batch_tokens is None:
            return self.encoder.encode  # type: ignore[no-any-return]
        if "batch_tokens" not in inspect.signature(self.encoder.encode).parameters:
            from distilface.errors import UserError

            raise UserError("this subject has no batch_tokens setting; measure it without batch_tokens")
        return lambda texts: self.encoder.encode(texts, batch_tokens=batch_tokens)


def peak_rss() -> int | None:
    """Largest resident size of this process in bytes; None where the platform does not tell (Windows).

    On Linux from VmHWM: getrusage there counts what the parent had before it became this program.
    """
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        import resource
    except ModuleNotFoundError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _loader(subject: dict[str, Any], threads: int, target: str, max_seq_length: int | None,
            npm_folder: str) -> Callable[[], Any]:
    """Import what the subject needs and return the call that loads it."""
    folder = subject["folder"]
    if subject["backend"] == "factory":
        module, _, name = subject["factory"].partition(":")
        make = getattr(importlib.import_module(module), name)
        return lambda: make(folder, subject["variant"], threads)
    if target == "web":
        from distilface.artifact import Bundle
        from distilface.benchmarking.browser import Page, WebEncoder, find_packages

        bundle = Bundle.open(folder)
        page = Page(bundle.folder, find_packages(Path(npm_folder)))
        return lambda: WebEncoder(page, bundle, subject["variant"], threads, max_seq_length)
    if subject["backend"] in ("onnxruntime", "openvino", "tensorrt"):
        from distilface.runtime import Encoder

        tensorrt = subject["backend"] == "tensorrt"  # a provider of ONNX Runtime
        return lambda: Encoder.load(folder, variant=subject["variant"], threads=threads,
                                    provider="tensorrt" if tensorrt else target, max_seq_length=max_seq_length,
                                    backend="onnxruntime" if tensorrt else subject["backend"])
    from distilface.errors import UserError, require

    torch = require("torch", "train", "measuring a checkpoint")
    from distilface.encoder import SentenceEncoder

    if target == "cuda" and not torch.cuda.is_available():
        raise UserError(f"--target cuda: torch {torch.__version__} finds no CUDA device; install a CUDA build on a "
                        "machine with an NVIDIA GPU, or use --target cpu")
    torch.set_num_threads(threads)
    return lambda: SentenceEncoder.load(folder, max_seq_length=max_seq_length).to(target)


def serve(requests: TextIO, answers: TextIO) -> None:
    """Answer every request line until there are no more; an error is an answer too."""
    from distilface.errors import DistilfaceError

    session = Session()
    for line in requests:
        try:
            answer = session.handle(json.loads(line))
        except DistilfaceError as error:
            answer = {"error": str(error), "exit_code": error.exit_code}
        except Exception as error:  # whatever a model or library throws belongs to its request
            traceback.print_exc(file=sys.stderr)
            answer = {"error": f"{type(error).__name__}: {error}", "exit_code": 1}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    """Serve standard input; whatever libraries write to standard output goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    serve(requests, answers)


if __name__ == "__main__":
    main()
