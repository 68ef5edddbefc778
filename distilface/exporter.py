"""Checkpoint to one ONNX graph: tokens in, token states and the pooled, normalised vector out."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from distilface import __version__
from distilface.artifact import (
    VARIANT_FILES,
    Bundle,
    GoldenText,
    Manifest,
    atomic_directory,
    check_output,
    write_golden,
    write_manifest,
)
from distilface.checkpoint import quiet_transformers, write_modules
from distilface.delivery import make_forms, require_forms
from distilface.encoder import SentenceEncoder, normalized_config
from distilface.errors import GateError, UserError, require
from distilface.golden import GOLDEN_TEXTS
from distilface.graphopt import optimize
from distilface.machine import library_versions
from distilface.modelcard import write_card
from distilface.onnxgraph import describe_variant, simplify_attention_mask, strip_debug_information
from distilface.parity import FP32_FLOOR, batch_dependence, cosines
from distilface.runtime import Encoder
from distilface.shrinking.heads import without_dead_heads
from distilface.textgraph import check_tokenizer
from distilface.tokenizer import check_texts, write_json

OPSET = 18
"""The oldest opset the exporter writes natively; LayerNormalization is one operator since 17."""
IR_VERSION = 8
"""The IR version that came with opset 18: runtimes of 2023 and later load it."""
OUTPUTS = ("last_hidden_state", "sentence_embedding")
TWO_GIGABYTES = 2**31


class _Graph(nn.Module):
    """What is traced: the encoder's inference path with positional inputs."""

    def __init__(self, encoder: SentenceEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: Tensor, attention_mask: Tensor,
                token_type_ids: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.encoder(input_ids, attention_mask, token_type_ids)  # type: ignore[no-any-return]


def export_graph(encoder: SentenceEncoder, file: Path) -> None:
    """Write ``encoder`` as a single ONNX file.

    Inputs ``input_ids``, ``attention_mask`` (and ``token_type_ids`` for BERT and its kin), int64
    ``[batch_size, sequence_length]``. Outputs ``last_hidden_state`` float32 ``[batch_size, sequence_length, dim]`` and
    ``sentence_embedding`` float32 ``[batch_size, dim]``, unit length. Standard operators only.

    Attention heads that add nothing are left out (see `distilface.shrinking.heads`). The encoder must have been loaded
    with ``attn_implementation="eager"``: exporting scaled dot-product attention adds
    chains of Slice, Where and IsNaN.
    """
    onnx = require("onnx", "export", "ONNX export")
    require("onnxscript", "export", "ONNX export")
    encoder = without_dead_heads(encoder.eval().float())
    sample = sample_inputs(encoder)
    batch = torch.export.Dim("batch_size", min=1, max=65536)
    length = torch.export.Dim("sequence_length", min=1, max=encoder.max_seq_length)
    with _quiet_exporter():
        program = torch.onnx.export(
            _Graph(encoder).eval(), tuple(sample.values()), dynamo=True, opset_version=OPSET, optimize=True,
            input_names=list(sample), output_names=list(OUTPUTS), verbose=False,
            dynamic_shapes={name: {0: batch, 1: length} for name in sample})
    model = program.model_proto
    strip_debug_information(model)
    _name_shapes(model, list(sample), encoder.pooler.states_dim, encoder.dim)
    simplify_attention_mask(model)
    optimize(model)
    _finish(onnx, model, file)


def sample_inputs(encoder: SentenceEncoder) -> dict[str, Tensor]:
    """Inputs to trace with, from optimum's generator: batch 3, length 7, the tail of one row masked."""
    from optimum.utils import DummyTextInputGenerator

    generator = DummyTextInputGenerator("feature-extraction", normalized_config(encoder.backbone.config),
                                        batch_size=3, sequence_length=7)
    names = ["input_ids", "attention_mask", *(["token_type_ids"] if encoder.takes_token_types else [])]
    sample: dict[str, Tensor] = {name: generator.generate(name, framework="pt") for name in names}
    sample["attention_mask"] = torch.ones_like(sample["input_ids"])
    sample["attention_mask"][0, 5:] = 0
    if "token_type_ids" in sample:
        sample["token_type_ids"] = torch.zeros_like(sample["input_ids"])
    return sample


def _name_shapes(model: Any, inputs: Sequence[str], states_dim: int, dim: int) -> None:
    """Same symbolic axis names on inputs and outputs, and the widths as numbers."""
    names = [item.name for item in model.graph.input], [item.name for item in model.graph.output]
    if names != (list(inputs), list(OUTPUTS)):
        raise GateError(f"the exporter produced inputs {names[0]} and outputs {names[1]}; expected {list(inputs)} and "
                        f"{list(OUTPUTS)}")
    tokens = ("batch_size", "sequence_length")
    shapes: dict[str, tuple[str | int, ...]] = dict.fromkeys(inputs, tokens)
    shapes |= {OUTPUTS[0]: (*tokens, states_dim), OUTPUTS[1]: ("batch_size", dim)}
    for item in (*model.graph.input, *model.graph.output):
        tensor = item.type.tensor_type
        del tensor.shape.dim[:]
        for size in shapes[item.name]:
            tensor.shape.dim.add(**({"dim_param": size} if isinstance(size, str) else {"dim_value": size}))


def _finish(onnx: Any, model: Any, file: Path) -> None:
    model.ir_version = IR_VERSION
    model.producer_name, model.producer_version, model.domain, model.doc_string = "distilface", "", "", ""
    foreign = sorted({node.domain for node in model.graph.node} - {""})
    if foreign:
        raise GateError(f"the exported graph uses operators of {', '.join(foreign)}; only standard ones are allowed")
    half = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
    wrong = [tensor.name for tensor in model.graph.initializer if tensor.data_type in half]
    if wrong:
        raise GateError(f"{len(wrong)} initialisers are half precision ({wrong[0]}, ...); export float32 weights")
    size = model.ByteSize()
    if size >= TWO_GIGABYTES:
        raise UserError(f"the graph takes {size / 1e9:.1f} GB; one ONNX file holds up to 2 GB: use a smaller encoder")
    onnx.checker.check_model(model, full_check=False)
    onnx.save_model(model, str(file))


@contextlib.contextmanager
def _quiet_exporter() -> Iterator[None]:
    """The exporter prints its steps and warns of packages we do not use."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.onnx._internal.exporter._registration",
                                                    "onnxscript", "onnx_ir")]
    levels = [item.level for item in loggers]
    for item in loggers:
        item.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for item, level in zip(loggers, levels, strict=True):
            item.setLevel(level)


def export(model: str | Path, out: str | Path, pooling: str | None = None, max_seq_length: int | None = None,
           overwrite: bool = False, progress: Callable[[str], None] | None = None,
           truncate_dim: int | None = None, tokenizer_in_graph: bool = False, ort_format: bool = False) -> Bundle:
    """Export a checkpoint as a bundle with one variant, ``fp32``, proved equal to torch.

    Args:
        model: a checkpoint folder (ours, sentence-transformers, or a bare encoder), or a Hub id.
        pooling, max_seq_length: override what the checkpoint says.
        truncate_dim: cut vectors to their first so many dimensions and normalise again, in the graph: for models
            trained with Matryoshka dimensions.
        progress: called with the name of each step.
        tokenizer_in_graph, ort_format: add these forms of the graph (see `delivery.make_forms`).

    Raises:
        UserError: for a model that can't be loaded, or an output folder that holds something.
        GateError: when the graph and torch differ (minimum cosine below 0.99999), naming batch and length.
    """
    say = progress or (lambda step: None)
    out = check_output(out, overwrite, [model])
    require_forms(tokenizer_in_graph, ort_format)
    say("loading the checkpoint")
    encoder = SentenceEncoder.load(model, pooling, max_seq_length, attn_implementation="eager",
                                   truncate_dim=truncate_dim)
    if tokenizer_in_graph:
        check_tokenizer(encoder.tokenizer)
    with atomic_directory(out, overwrite) as folder:
        (folder / "onnx").mkdir()
        graph = folder / VARIANT_FILES["fp32"]
        say("exporting the graph")
        export_graph(encoder, graph)
        say("comparing with torch")
        compared = compare_with_torch(encoder, graph)
        encoder.tokenizer.save(folder, encoder.takes_token_types)
        _write_config(encoder, folder)
        write_modules(folder, encoder.pooling, encoder.pooler.dim, encoder.max_seq_length, encoder.head_mode == "kept",
                      encoder.truncate_dim is not None, first_output_is_pooled_from=True)
        if encoder.head_mode == "kept":
            encoder.save_head(folder)
        vectors = encoder.encode(GOLDEN_TEXTS)
        ids = encoder.tokenizer.encode_batch(check_texts(GOLDEN_TEXTS))
        write_golden(folder, [GoldenText(text=text, ids=row, vector=[float(f"{x:.7g}") for x in vector])
                              for text, row, vector in zip(GOLDEN_TEXTS, ids, vectors, strict=True)])
        say("measuring")
        runtime = Encoder(graph, encoder.tokenizer, variant="fp32")
        variant = describe_variant(graph, VARIANT_FILES["fp32"], "float32", batch_dependence(runtime),
                                   FP32_FLOOR, recipe={"minimum_cosine_to_torch": compared})
        shape = normalized_config(encoder.backbone.config)
        manifest = Manifest(
            created_by=f"distilface {__version__}", architecture=encoder.backbone.config.model_type,
            pooling=encoder.pooling, head="kept" if encoder.head_mode == "kept" else "none",
            max_seq_length=encoder.max_seq_length, dim=encoder.dim, num_layers=int(shape.num_layers),
            num_attention_heads=int(shape.num_attention_heads), hidden_size=int(shape.hidden_size),
            versions=library_versions(), variants={"fp32": variant})
        forms = make_forms(Bundle(folder, manifest), "fp32", tokenizer_in_graph, ort_format, say)
        manifest = manifest.model_copy(update={"forms": forms})
        write_card(folder, manifest)
        write_manifest(folder, manifest)
    return Bundle.open(out)


def compare_with_torch(encoder: SentenceEncoder, graph: Path) -> float:
    """Worst cosine between graph and torch over awkward texts, lengths 1..max and batches 1..64.

    Raises:
        GateError: below 0.99999, with the batch size and length at fault.
    """
    runtime = Encoder(graph, encoder.tokenizer)
    random = np.random.default_rng(0)
    limit = encoder.max_seq_length
    vocabulary = encoder.backbone.config.vocab_size
    awkward = encoder.tokenizer.encode_batch(check_texts(GOLDEN_TEXTS))
    batches = [awkward, *([row] for row in awkward)]
    for rows, length in ((1, 1), (1, limit), (2, min(17, limit)), (7, min(3, limit)), (64, min(5, limit)),
                         (3, limit - 1 or 1), (5, max(1, limit // 2))):
        lengths = random.integers(1, length, rows, endpoint=True)
        lengths[0] = length
        batches.append([random.integers(0, vocabulary, size).tolist() for size in lengths])
    worst = 1.0
    for batch in batches:
        feed = {name: torch.from_numpy(array) for name, array in encoder.tokenizer.pad(batch).items()}
        with torch.inference_mode():
            expected = encoder(**feed)[1].numpy()
        cosine = float(cosines(runtime.embed_batch(batch), expected).min())
        if not cosine >= FP32_FLOOR:
            raise GateError(f"the exported graph differs from torch: cosine {cosine:.7f} at batch {len(batch)}, length "
                            f"{max(map(len, batch))} (allowed: {FP32_FLOOR} or more)")
        worst = min(worst, cosine)
    return worst


def _write_config(encoder: SentenceEncoder, folder: Path) -> None:
    """config.json with the three sizes under the names every consumer asks for, DistilBERT included."""
    shape = normalized_config(encoder.backbone.config)
    with quiet_transformers():
        encoder.backbone.config.save_pretrained(folder)
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    values |= {"hidden_size": int(shape.hidden_size), "num_hidden_layers": int(shape.num_layers),
               "num_attention_heads": int(shape.num_attention_heads), "torch_dtype": "float32"}
    write_json(folder / "config.json", values)
