"""The consumers: who can load a bundle, what each needs, and which of the graph's two outputs it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from distilface.errors import UserError

Reads = Literal["modules", "first output", "sentence_embedding", "checkpoint", "text"]
ST5 = ("pip install 'sentence-transformers[onnx]<6' 'transformers<5' into an environment of its own, and name its "
       "Python with --consumer-python")
OWN = "pip install {} (an environment of its own will do: --consumer-python)"
NPM = "npm install {} (in this folder, or name another with --consumer-node)"


@dataclass(frozen=True)
class Consumer:
    """One way to load a bundle.

    Attributes:
        name: what the user reads.
        function: its name in child.py or child.cjs.
        runtime: which of the two runs it.
        needs: distributions or npm packages, the one that gives the version first.
        reads: ``modules``, the pooling that modules.json describes; ``first output`` with its own pooling;
            ``sentence_embedding``; ``checkpoint``, no graph but the torch weights; ``text``, the text-in graph.
        install: how to get it.
        poolings: what it can do with the first output.
        main_graph: it reads onnx/model.onnx and nothing else, so every variant is delivered to it as that.
        keeps_end: it keeps the last special token of a text that it cuts.
    """

    name: str
    function: str
    runtime: Literal["python", "node"]
    needs: tuple[str, ...]
    reads: Reads
    install: str
    poolings: tuple[str, ...] = ("cls", "mean", "max")
    main_graph: bool = False
    keeps_end: bool = True


CONSUMERS: tuple[Consumer, ...] = (
    Consumer("sentence-transformers, torch", "sentence_transformers_torch", "python", ("sentence-transformers",),
             "checkpoint", OWN.format("sentence-transformers")),
    Consumer("sentence-transformers, onnx", "sentence_transformers_onnx", "python",
             ("sentence-transformers", "optimum-onnx"), "modules", ST5),
    Consumer("ORTModelForFeatureExtraction", "optimum", "python", ("optimum-onnx",), "first output", ST5),
    Consumer("fastembed, first output", "fastembed_first_output", "python", ("fastembed",), "first output",
             OWN.format("fastembed"), ("cls", "mean")),
    Consumer("fastembed, sentence_embedding", "fastembed_sentence_embedding", "python", ("fastembed",),
             "sentence_embedding", OWN.format("fastembed")),
    Consumer("light-embed, first output", "light_embed_first_output", "python", ("light-embed",), "first output",
             OWN.format("light-embed")),
    Consumer("light-embed, sentence_embedding", "light_embed_sentence_embedding", "python", ("light-embed",),
             "sentence_embedding", OWN.format("light-embed")),
    Consumer("OpenVINO", "openvino", "python", ("openvino", "tokenizers"), "sentence_embedding",
             "pip install 'distilface[openvino]'"),
    Consumer("text-embeddings-inference, its files", "text_embeddings_inference", "python",
             ("onnxruntime", "tokenizers"), "modules", OWN.format("onnxruntime tokenizers"), ("cls", "mean"),
             main_graph=True),
    Consumer("onnxruntime-extensions, text in", "onnxruntime_extensions", "python",
             ("onnxruntime-extensions", "onnxruntime"), "text", "pip install 'distilface[mobile]'"),
    Consumer("onnxruntime-node", "onnxruntime_node", "node", ("onnxruntime-node", "@huggingface/tokenizers"),
             "sentence_embedding", NPM.format("onnxruntime-node @huggingface/tokenizers")),
    Consumer("onnxruntime-web", "onnxruntime_web", "node", ("onnxruntime-web", "@huggingface/tokenizers"),
             "sentence_embedding", NPM.format("onnxruntime-web @huggingface/tokenizers")),
    Consumer("transformers.js, first output", "transformers_js_first_output", "node", ("@huggingface/transformers",),
             "first output", NPM.format("@huggingface/transformers"), ("cls", "mean"), keeps_end=False),
    Consumer("transformers.js, sentence_embedding", "transformers_js_sentence_embedding", "node",
             ("@huggingface/transformers",), "sentence_embedding", NPM.format("@huggingface/transformers"),
             keeps_end=False),
)


def consumers_named(names: list[str] | None) -> tuple[Consumer, ...]:
    """All consumers, or those whose name begins with one of ``names``."""
    if names is None:
        return CONSUMERS
    for name in names:
        if not any(consumer.name.startswith(name) for consumer in CONSUMERS):
            known = ", ".join(dict.fromkeys(consumer.name.split(",")[0] for consumer in CONSUMERS))
            raise UserError(f"unknown consumer {name!r}; known: {known}")
    return tuple(item for item in CONSUMERS if any(item.name.startswith(name) for name in names))
