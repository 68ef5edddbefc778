"""The torch-free runtime: texts in, unit vectors out, from one graph of a bundle through ONNX Runtime."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from distilface.artifact import Bundle
from distilface.batching import batches_by_length
from distilface.cpu import available_cpus
from distilface.errors import GateError, UserError
from distilface.protocol import Vectors
from distilface.tokenizer import SpecialTokens, Tokenizer, check_texts

logger = logging.getLogger(__name__)

BATCH_TOKENS = 512
"""Padded tokens in one batch. Small batches of equal length beat large ones: the activations stay in cache."""

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider", "tensorrt": "TensorrtExecutionProvider"}


class Encoder:
    """One variant of a bundle, ready to encode. Thread-safe: a session may run in many threads at once.

    Many texts are cut into batches of equal length that run side by side, one thread each; a single batch uses all
    threads together. The vector of a text does not depend on which of the two happens.
    """

    def __init__(self, graph: str | Path, tokenizer: Tokenizer, threads: int | None = None, provider: str = "cpu",
                 variant: str = "") -> None:
        self.graph = Path(graph)
        self.tokenizer = tokenizer
        self.variant = variant
        self.provider = provider
        self.threads = available_cpus() if threads is None else threads
        if self.threads < 1:
            raise UserError(f"threads is {threads}; allowed: 1 or more (default: the processors this process may use)")
        self._file_state = self._state()
        self._wide = self._session(self.threads)
        self._narrow = self._wide if self.threads == 1 or provider != "cpu" else None
        self.input_names = [item.name for item in self._wide.get_inputs()]
        self.output_names = [item.name for item in self._wide.get_outputs()]
        if "sentence_embedding" not in self.output_names:
            raise UserError(f"graph {str(graph)!r} has no output 'sentence_embedding' (it has "
                            f"{', '.join(self.output_names)}); export it with: distilface export")
        index = self.output_names.index("sentence_embedding")
        self.dim = int(self._wide.get_outputs()[index].shape[-1])

    @classmethod
    def load(cls, bundle: str | Path, variant: str = "fp32", threads: int | None = None, provider: str = "cpu",
             special_tokens: SpecialTokens = "parse", max_seq_length: int | None = None) -> Encoder:
        """Load one variant of a bundle.

        Args:
            variant: a name in the manifest, or ``int8``: the static INT8 graph when there is one, else the dynamic one.
            threads: default, the processors this process may use (affinity and container quota).
            provider: ``cpu``, ``cuda`` or ``tensorrt``; asking for one that is not there is an error, never a
                fall-back.
            special_tokens: ``parse`` turns ``[SEP]`` in a text into the real separator, ``escape`` spells it out.
            max_seq_length: a lower limit than the bundle's.

        Raises:
            UserError: no such bundle, variant or provider; a limit over the bundle's.
        """
        opened = Bundle.open(bundle)
        limit = opened.manifest.max_seq_length
        if max_seq_length is not None and not 0 < max_seq_length <= limit:
            raise UserError(f"max_seq_length {max_seq_length} is outside 1..{limit}, the limit of {str(bundle)!r}")
        name = opened.resolve_variant(variant)
        if provider != "cpu" and opened.variant(name).kind == "int8-dynamic":
            raise UserError(f"variant {name!r} on {provider}: dynamic INT8 has no GPU kernels and falls back to copies "
                            "through the CPU, many times slower; use fp32 or int8-static there")
        tokenizer = Tokenizer.load(opened.folder, max_seq_length or limit, special_tokens)
        return cls(opened.graph(name), tokenizer, threads, provider, name)

    @property
    def max_seq_length(self) -> int:
        """The one length limit, special tokens included; longer texts are cut and the cut is logged."""
        return self.tokenizer.max_seq_length

    def encode(self, texts: Sequence[str], batch_tokens: int = BATCH_TOKENS) -> Vectors:
        """Unit vectors, float32 ``[len(texts), dim]``, in the order of ``texts``; ``[]`` gives shape ``(0, dim)``.

        Texts over the limit are cut, and one warning says how many. An empty text has a vector too.

        Args:
            batch_tokens: padded tokens in one batch; bounds the memory.

        Raises:
            TypeError: for an item that is not a string, naming its index.
        """
        if batch_tokens < 1:
            raise UserError(f"batch_tokens is {batch_tokens}; allowed: 1 or more (default {BATCH_TOKENS})")
        rows, cut = self.tokenizer.encode_reporting(check_texts(texts))
        if cut:
            logger.warning("%d of %d texts are longer than %d tokens and were cut (first: index %d)",
                           len(cut), len(rows), self.max_seq_length, cut[0])
        return self.encode_ids(rows, batch_tokens)

    def encode_ids(self, rows: Sequence[Sequence[int]], batch_tokens: int = BATCH_TOKENS) -> Vectors:
        """`encode` for texts that are ids already (special tokens included, at most the limit)."""
        vectors = np.empty((len(rows), self.dim), dtype=np.float32)
        batches = batches_by_length([len(row) for row in rows], batch_tokens)

        def run(session: Any, indices: list[int]) -> None:
            vectors[indices] = self._run(session, [rows[i] for i in indices])

        if len(batches) < 2 or self.threads == 1 or self.provider != "cpu":
            for indices in batches:
                run(self._wide, indices)
            return vectors
        if self._narrow is None:
            if self._state() != self._file_state:
                raise UserError(f"graph {str(self.graph)!r} was replaced after it was loaded; load the encoder again")
            self._narrow = self._session(1)
        with ThreadPoolExecutor(self.threads) as pool:
            for _ in pool.map(lambda indices: run(self._narrow, indices), batches):
                pass
        return vectors

    def embed_batch(self, rows: Sequence[Sequence[int]]) -> Vectors:
        """One run of the graph on exactly these rows, padded together: ``[len(rows), dim]``."""
        return self._run(self._wide, rows)

    def feed(self, rows: Sequence[Sequence[int]]) -> dict[str, NDArray[np.int64]]:
        """Exactly the inputs the graph asks for, int64, padded to the longest row; refuses rows over the limit."""
        longest = max(map(len, rows), default=0)
        if longest > self.max_seq_length:
            raise UserError(f"got a row of {longest} ids; allowed: up to {self.max_seq_length}, the limit of the model "
                            "(encode cuts texts to it)")
        arrays = self.tokenizer.pad(rows)
        if "token_type_ids" in self.input_names:
            arrays["token_type_ids"] = np.zeros_like(arrays["input_ids"])
        missing = [name for name in self.input_names if name not in arrays]
        if missing:
            raise UserError(f"graph {str(self.graph)!r} asks for inputs {', '.join(missing)}; "
                            "known: input_ids, attention_mask, token_type_ids")
        return {name: arrays[name] for name in self.input_names}

    def _run(self, session: Any, rows: Sequence[Sequence[int]]) -> Vectors:
        feed = self.feed(rows)
        try:
            return session.run(["sentence_embedding"], feed)[0]  # type: ignore[no-any-return]
        except Exception as error:  # the binding's own classes derive from Exception
            size = " x ".join(map(str, feed["input_ids"].shape))
            raise GateError(f"graph {str(self.graph)!r} fails on a batch of {size} tokens: "
                            f"{' '.join(str(error).split())}") from None

    def _state(self) -> tuple[int, int] | None:
        if not self.graph.is_file():
            return None
        status = self.graph.stat()
        return status.st_size, status.st_mtime_ns

    def _session(self, threads: int) -> Any:
        providers = [_provider(self.provider)]
        if self.provider != "cpu":
            providers.append("CPUExecutionProvider")  # shape arithmetic has no GPU kernels
        try:
            session = ort.InferenceSession(str(self.graph), session_options(threads), providers=providers)
        except Exception as error:  # the binding's own classes derive from Exception
            reason = str(error).strip().splitlines()[0]
            raise UserError(f"ONNX Runtime {ort.__version__} can't load {str(self.graph)!r}: {reason}") from None
        if session.get_providers()[0] != providers[0]:
            raise UserError(f"provider {self.provider!r} could not be started (ONNX Runtime fell back to "
                            f"{session.get_providers()[0]}); check the driver, or use provider='cpu'")
        return session


def session_options(threads: int) -> Any:
    """Session options shared by everything that runs a graph."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Planned buffers are kept for every input shape seen; without the plan, memory stays flat over varied shapes.
    options.enable_mem_pattern = False
    return options


def _provider(name: str) -> str:
    if name not in _PROVIDERS:
        raise UserError(f"unknown provider {name!r}; allowed: {', '.join(_PROVIDERS)}")
    wanted = _PROVIDERS[name]
    if wanted not in ort.get_available_providers():
        raise UserError(f"provider {name!r} is not in this ONNX Runtime (it has "
                        f"{', '.join(ort.get_available_providers())}); install onnxruntime-gpu in place of onnxruntime "
                        "on a machine with an NVIDIA GPU, or use the cpu")
    return wanted
