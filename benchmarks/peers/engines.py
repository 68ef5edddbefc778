"""The peers as encoders, made in the worker process of a benchmark run: each function takes (folder, variant, threads).

The environment holds the peer, numpy and the source of this project, and nothing else that is sure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

MAX_LENGTH = 256
"""That of all-MiniLM-L6-v2 for sentence-transformers, and so of the bundle."""


class Peer:
    """An encoder made of a function; ``tokenizer``, where there is one, counts tokens."""

    max_seq_length = MAX_LENGTH

    def __init__(self, encode: Callable[[list[str]], Any], tokenizer: Any = None) -> None:
        self._encode = encode
        self.tokenizer = tokenizer

    def encode(self, texts: Sequence[str]) -> Any:
        """Float32 ``[len(texts), dim]``."""
        return np.asarray(self._encode(list(texts)), dtype=np.float32)


def torch_fp32(folder: str, variant: str | None, threads: int) -> Peer:
    return _torch(folder, threads, "float32")


def torch_bf16(folder: str, variant: str | None, threads: int) -> Peer:
    return _torch(folder, threads, "bfloat16")


def _torch(folder: str, threads: int, dtype: str) -> Peer:
    import torch

    torch.set_num_threads(threads)
    return _sentence_transformers(folder, model_kwargs={"torch_dtype": getattr(torch, dtype)})


def sentence_transformers_onnx(folder: str, variant: str | None, threads: int) -> Peer:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return _sentence_transformers(folder, backend="onnx", model_kwargs={
        "file_name": variant, "provider": "CPUExecutionProvider", "session_options": options, "export": False})


def sentence_transformers_openvino(folder: str, variant: str | None, threads: int) -> Peer:
    return _sentence_transformers(folder, backend="openvino", model_kwargs={
        "file_name": variant, "ov_config": {"INFERENCE_NUM_THREADS": threads}, "export": False})


def _sentence_transformers(folder: str, **options: Any) -> Peer:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, device="cpu", local_files_only=True, **options)
    model.max_seq_length = MAX_LENGTH
    return Peer(lambda texts: model.encode(texts, normalize_embeddings=True, show_progress_bar=False))


def fastembed(folder: str, variant: str | None, threads: int) -> Peer:
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    TextEmbedding.add_custom_model("bundle", pooling=PoolingType.MEAN, normalization=True, dim=384,
                                   sources=ModelSource(hf="local/bundle"), model_file=variant)
    model = TextEmbedding("bundle", specific_model_path=folder, local_files_only=True, threads=threads)
    model.model.tokenizer.enable_truncation(MAX_LENGTH)
    return Peer(lambda texts: list(model.embed(texts)))


def light_embed(folder: str, variant: str | None, threads: int) -> Peer:
    """It has no setting for threads: ONNX Runtime's default, one for each processor this process may use."""
    from light_embed import TextEmbedding

    model = TextEmbedding(folder, device="cpu", model_config={
        "onnx_file": variant, "normalize": True, "pooling_config_path": "1_Pooling"})
    return Peer(model.encode)


def model2vec(folder: str, variant: str | None, threads: int) -> Peer:
    from model2vec import StaticModel

    model = StaticModel.from_pretrained(folder, normalize=True)
    return Peer(model.encode)


def openvino_file(folder: str, variant: str | None, threads: int) -> Any:
    """A file of OpenVINO's own, in the runtime of this project: its batches, streams and float32 for the rest."""
    from distilface.runtime import Encoder
    from distilface.tokenizer import Tokenizer

    return Encoder(Path(folder, str(variant)), Tokenizer.load(folder, MAX_LENGTH), threads, backend="openvino")


def token_states(folder: str, variant: str | None, threads: int) -> Peer:
    """A graph without pooling, in ONNX Runtime, with the mean taken here."""
    import onnxruntime
    from tokenizers import Tokenizer

    from distilface.batching import batches_by_length

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(Path(folder, str(variant))), options,
                                           providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(Path(folder, "tokenizer.json")))
    tokenizer.enable_truncation(MAX_LENGTH)
    tokenizer.no_padding()

    def encode(texts: list[str]) -> Any:
        encodings = tokenizer.encode_batch(texts)
        vectors = np.empty((len(texts), 384), dtype=np.float32)
        for rows in batches_by_length([len(item) for item in encodings], 512):
            width = max(len(encodings[row]) for row in rows)
            ids, mask = np.zeros((2, len(rows), width), dtype=np.int64)
            for place, row in enumerate(rows):
                ids[place, : len(encodings[row])] = encodings[row].ids
                mask[place, : len(encodings[row])] = 1
            (states,) = session.run(["last_hidden_state"], {
                "input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)})
            pooled = (states * mask[..., None]).sum(axis=1)
            vectors[rows] = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
        return vectors

    return Peer(encode, tokenizer)
