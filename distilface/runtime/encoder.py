"""`Encoder`: one variant of a bundle, ready to encode."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distilface.artifact import Bundle
from distilface.batching import batches_by_length
from distilface.cpu import available_cpus
from distilface.errors import GateError, UserError
from distilface.isa import saturation_warning
from distilface.loading import sha256_of
from distilface.precision import Precision, Scales, truncate, with_precision
from distilface.protocol import Vectors
from distilface.runtime.choice import Choice, check_version, choose_backend
from distilface.runtime.engines import BACKENDS, LARGEST_BATCH, Backend, Engine, Feed, open_engine
from distilface.search import Corpus, Hits, search, similarity
from distilface.tokenizer import SpecialTokens, Tokenizer, check_texts

logger = logging.getLogger(__name__)

BATCH_TOKENS = 512
"""Padded tokens in one batch. Small batches of equal length beat large ones: the activations stay in cache."""


class Encoder:
    """One variant of a bundle. Thread-safe, fork-safe and picklable.

    Many texts are cut into batches of equal length that run side by side, one thread each; a single batch uses all
    threads together. The vector of a text does not depend on which of the two happens. After a fork the child opens the
    graph again on first use, because the threads of the parent's sessions do not exist there (a child that was not made
    by multiprocessing must end with ``os._exit``, as those do: ONNX Runtime's own exit handler waits for ever in it). A
    pickle holds the tokenizer and the path of the graph, and opens that again as well. Either way a graph that has
    changed is refused.

    Attributes:
        backend: what runs the graph: ``onnxruntime`` or ``openvino``.
        backend_reason: why; of interest after ``backend="auto"``.
        folder: the bundle, of an encoder made with `load`.
    """

    def __init__(self, graph: str | Path, tokenizer: Tokenizer, threads: int | None = None, provider: str = "cpu",
                 variant: str = "", backend: Backend = "onnxruntime", backend_reason: str = "asked for",
                 sha256: str | None = None, kind: str = "") -> None:
        if backend not in BACKENDS:
            raise UserError(f"unknown backend {backend!r}; allowed: {', '.join(BACKENDS)}, and auto for a bundle")
        self.graph = Path(graph)
        self.tokenizer = tokenizer
        self.variant = variant
        self.kind = kind
        self.provider = provider
        self.backend = backend
        self.backend_reason = backend_reason
        self.threads = available_cpus() if threads is None else threads
        if self.threads < 1:
            raise UserError(f"threads is {threads}; allowed: 1 or more (default: the processors this process may use)")
        self.folder: Path | None = None
        self._threads_asked = threads
        self._sha256 = sha256
        self._file_state = self._state()
        self._lock = threading.Lock()
        self._narrow: Engine | None = None
        self._wide: Engine | None = self._open(1)
        self.input_names = list(self._wide.inputs)
        self.output_names = list(self._wide.outputs)
        self.dim = self._wide.dim
        _OPEN.add(self)

    @classmethod
    def load(cls, bundle: str | Path, variant: str | None = None, threads: int | None = None, provider: str = "cpu",
             special_tokens: SpecialTokens = "parse", max_seq_length: int | None = None,
             backend: Choice = "onnxruntime") -> Encoder:
        """Load one variant of a bundle; its graph and tokenizer must have the sha256 that the manifest says.

        Args:
            variant: a name in the manifest, or ``int8``: the static INT8 graph when there is one, else the dynamic one.
                Default: fp32; in a bundle of one graph, that one.
            threads: default, the processors this process may use (affinity and container quota).
            provider: ``cpu``, ``cuda`` or ``tensorrt``; asking for one that is not there is an error, never a
                fall-back.
            special_tokens: ``parse`` turns ``[SEP]`` in a text into the real separator, ``escape`` spells it out.
            max_seq_length: a lower limit than the bundle's.
            backend: ``onnxruntime``, ``openvino`` (CPU, in float32), or ``auto`` (see `runtime.choice`).

        Raises:
            UserError: no such bundle, variant, provider or backend; a limit over the bundle's.
            GateError: a file of the bundle was altered.
        """
        opened = Bundle.open(bundle)
        limit = opened.manifest.max_seq_length
        if max_seq_length is not None and not 0 < max_seq_length <= limit:
            raise UserError(f"max_seq_length {max_seq_length} is outside 1..{limit}, the limit of {str(bundle)!r}")
        name = opened.resolve_variant(variant)
        record = opened.variant(name)
        if provider != "cpu" and record.kind == "int8-dynamic":
            raise UserError(f"variant {name!r} on {provider}: dynamic INT8 has no GPU kernels and falls back to copies "
                            "through the CPU, many times slower; use fp32 or int8-static there")
        chosen, reason = choose_backend(backend, name, record, provider)
        if chosen == "onnxruntime":
            check_version(name, record)
        warning = saturation_warning(record) if provider == "cpu" else None
        if warning is not None:
            logger.warning("%s", warning)
        graph = opened.graph(name)
        for file in (record.file, "tokenizer.json"):
            if file in opened.manifest.files:
                opened.check_file(file)
        if backend == "auto":
            logger.info("%s: backend %s: %s", name, chosen, reason)
        tokenizer = Tokenizer.load(opened.folder, max_seq_length or limit, special_tokens)
        listed = opened.manifest.files.get(record.file)
        encoder = cls(graph, tokenizer, threads, provider, name, chosen, reason,
                      listed.sha256 if listed is not None else None, record.kind)
        encoder.folder = opened.folder
        return encoder

    @property
    def max_seq_length(self) -> int:
        """The one length limit, special tokens included; longer texts are cut and the cut is logged."""
        return self.tokenizer.max_seq_length

    @overload
    def encode(self, texts: Sequence[str], batch_tokens: int = ..., *, truncate_dim: int | None = ...,
               precision: Literal["float32"] = ..., scales: None = ...) -> Vectors: ...

    @overload
    def encode(self, texts: Sequence[str], batch_tokens: int = ..., *, truncate_dim: int | None = ...,
               precision: Precision, scales: Scales | None = ...) -> NDArray[Any]: ...

    def encode(self, texts: Sequence[str], batch_tokens: int = BATCH_TOKENS, *, truncate_dim: int | None = None,
               precision: Precision = "float32", scales: Scales | None = None) -> NDArray[Any]:
        """Vectors ``[len(texts), width]``, in the order of ``texts``; ``[]`` gives no rows.

        Texts over the limit are cut, and one warning says how many. An empty text has a vector too.

        Args:
            batch_tokens: padded tokens in one batch; bounds the memory.
            truncate_dim: keep the first dimensions and make them unit length again; for models trained for it
                (Matryoshka).
            precision: ``float32``: unit vectors, ``width = dim``. ``int8``: one byte a dimension, needs ``scales``.
                ``binary``: the sign of each dimension, eight to a byte, uint8 ``[n, ceil(dim / 8)]``.
            scales: from `fit_scales`.

        Raises:
            TypeError: for an item that is not a string, naming its index.
            UserError: a value that is not allowed, or scales that don't fit.
        """
        vectors, cut = self.encode_reporting(texts, batch_tokens, truncate_dim=truncate_dim, precision=precision,
                                             scales=scales)
        if cut:
            logger.warning("%d of %d texts are longer than %d tokens and were cut (first: index %d)",
                           len(cut), len(vectors), self.max_seq_length, cut[0])
        return vectors

    def encode_reporting(self, texts: Sequence[str], batch_tokens: int = BATCH_TOKENS, *,
                         truncate_dim: int | None = None, precision: Precision = "float32",
                         scales: Scales | None = None) -> tuple[NDArray[Any], list[int]]:
        """`encode`, and the indices of the texts that were longer than the limit, instead of a warning."""
        if batch_tokens < 1:
            raise UserError(f"batch_tokens is {batch_tokens}; allowed: 1 or more (default {BATCH_TOKENS})")
        rows, cut = self.tokenizer.encode_reporting(check_texts(texts))
        vectors = truncate(self.encode_ids(rows, batch_tokens), truncate_dim)
        return with_precision(vectors, precision, scales), cut

    def fit_scales(self, sample: Sequence[str], *, truncate_dim: int | None = None) -> Scales:
        """The range of each dimension over a sample of texts, for ``precision="int8"``; a thousand are plenty."""
        return Scales.fit(self.encode(sample, truncate_dim=truncate_dim))

    def similarity(self, a: Sequence[str] | ArrayLike, b: Sequence[str] | ArrayLike) -> Vectors:
        """Cosines ``[len(a), len(b)]`` of texts, or of vectors that are there already."""
        return similarity(self._vectors(a), self._vectors(b))

    def search(self, queries: Sequence[str] | ArrayLike, corpus: Corpus, k: int = 10, *,
               scales: Scales | None = None) -> Hits:
        """The ``k`` nearest vectors of a corpus for each query; see `distilface.search.search`."""
        return search(self._vectors(queries), corpus, k, scales=scales)

    def encode_ids(self, rows: Sequence[Sequence[int]], batch_tokens: int = BATCH_TOKENS) -> Vectors:
        """Unit vectors, float32 ``[len(rows), dim]``, for ids (special tokens included, at most the limit)."""
        vectors = np.empty((len(rows), self.dim), dtype=np.float32)
        most = LARGEST_BATCH if self.provider == "tensorrt" else None
        batches = batches_by_length([len(row) for row in rows], batch_tokens, most)
        side_by_side = len(batches) > 1 and self.threads > 1 and self.provider == "cpu"
        engine = self._engine(side_by_side)

        def run(indices: list[int]) -> None:
            vectors[indices] = self._run(engine, [rows[i] for i in indices])

        if not side_by_side:
            for indices in batches:
                run(indices)
            return vectors
        with ThreadPoolExecutor(self.threads) as pool:
            for _ in pool.map(run, batches):
                pass
        return vectors

    def embed_batch(self, rows: Sequence[Sequence[int]]) -> Vectors:
        """One run of the graph on exactly these rows, padded together: ``[len(rows), dim]``."""
        return self._run(self._engine(False), rows)

    def feed(self, rows: Sequence[Sequence[int]]) -> Feed:
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

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self.graph.absolute(), self.tokenizer, self._threads_asked, self.provider, self.variant,
                         self.backend, self.backend_reason, self._sha256, self.kind)

    def _vectors(self, items: Sequence[str] | ArrayLike) -> Vectors:
        if isinstance(items, (list, tuple)) and all(isinstance(item, str) for item in items):
            return self.encode(items)
        if isinstance(items, str):
            check_texts(items)  # raises, with the reason
        return np.asarray(items, dtype=np.float32)

    def _run(self, engine: Engine, rows: Sequence[Sequence[int]]) -> Vectors:
        feed = self.feed(rows)
        try:
            return engine.run(feed)
        except Exception as error:  # the bindings' own classes derive from Exception
            size = " x ".join(map(str, feed["input_ids"].shape))
            raise GateError(f"graph {str(self.graph)!r} fails on a batch of {size} tokens: "
                            f"{' '.join(str(error).split())}") from None

    def _engine(self, side_by_side: bool) -> Engine:
        """The graph for one batch on all threads, or for as many batches as threads; opened when first needed."""
        with self._lock:
            held = self._narrow if side_by_side else self._wide
            if held is not None:
                return held
            if self._state() != self._file_state:
                raise UserError(f"graph {str(self.graph)!r} was replaced after it was loaded; load the encoder again")
            opened = self._open(self.threads if side_by_side else 1)
            if side_by_side:
                self._narrow = opened
            else:
                self._wide = opened
            return opened

    def _open(self, streams: int) -> Engine:
        return open_engine(self.backend, self.graph, self.threads, streams, self.provider, self.kind,
                           self.max_seq_length)

    def _state(self) -> tuple[int, int] | None:
        if not self.graph.is_file():
            return None
        status = self.graph.stat()
        return status.st_size, status.st_mtime_ns

    def _forget_engines(self) -> None:
        """In a forked child: a session's destructor would wait for threads that are not there, so none may run."""
        for engine in (self._wide, self._narrow):
            if engine is not None:
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine))
        self._wide = self._narrow = None
        self._lock = threading.Lock()  # a thread of the parent may have held the old one


_OPEN: weakref.WeakSet[Encoder] = weakref.WeakSet()


def _forget_all() -> None:
    for encoder in list(_OPEN):
        encoder._forget_engines()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def _reopen(graph: Path, tokenizer: Tokenizer, threads: int | None, provider: str, variant: str, backend: Backend,
            reason: str, sha256: str | None, kind: str) -> Encoder:
    """What a pickle calls."""
    if not graph.is_file():
        raise UserError(f"graph {str(graph)!r} of the pickled encoder is not on this machine; copy the bundle there")
    if sha256 is not None and sha256_of(graph) != sha256:
        raise UserError(f"graph {str(graph)!r} is not the one that the encoder was pickled with; load the bundle again")
    return Encoder(graph, tokenizer, threads, provider, variant, backend, reason, sha256, kind)
