"""The exported graph is rewritten for speed without changing a value, and runtimes then fuse what they should."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

from distilface import smarthome
from distilface.encoder import SentenceEncoder
from distilface.exporter import compare_with_torch, export_graph
from distilface.onnxgraph import GraphIndex
from distilface.quantization import quantize
from tests.tiny import tiny_checkpoint

pytestmark = pytest.mark.integration
LAYERS = 3


def encoder_with_random_biases(folder: Path, architecture: str) -> SentenceEncoder:
    """Fresh checkpoints have zero biases and unit LayerNorms, which would hide a bias moved wrongly."""
    tiny_checkpoint(folder, architecture, layers=LAYERS)
    encoder = SentenceEncoder.load(folder, attn_implementation="eager")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in encoder.backbone.named_parameters():
            if parameter.ndim == 1:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(1 + 0.3 * noise if name.lower().endswith("norm.weight") else 0.5 * noise)
    return encoder


@pytest.mark.parametrize("architecture", ["distilbert", "bert", "mpnet", "roberta"])
def test_rewrites_keep_every_value_and_leave_nothing_to_rewrite(tmp_path: Path, architecture: str) -> None:
    encoder = encoder_with_random_biases(tmp_path / "model", architecture)
    file = tmp_path / "model.onnx"
    export_graph(encoder, file)
    assert compare_with_torch(encoder, file) > 0.9999999

    index = GraphIndex(onnx.load(str(file)).graph)
    matmuls = index.weight_matmuls()
    assert len(matmuls) == 6 * LAYERS
    biased = [node for node in matmuls if any(
        item.op_type == "Add" and any(name in index.initializers for name in item.input)
        for item in index.consumers[node.output[0]])]
    assert len(biased) == 4 * LAYERS, "query, attention output and both feed-forward products have a bias, no other"

    shapes = shapes_at_run_time(file, [node.input[0] for node in matmuls])
    assert {len(shape) for shape in shapes} == {2}


def test_onnxruntime_fuses_gelu_and_bias_in_float_and_int8(tmp_path: Path) -> None:
    from distilface.exporter import export

    encoder = encoder_with_random_biases(tmp_path / "model", "bert")
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    encoder.save(checkpoint)
    bundle = export(checkpoint, tmp_path / "bundle").folder
    texts = [item.text for item in smarthome.utterances("train")][:60]
    for mode in ("static", "dynamic"):
        quantize(bundle, mode, texts, min_cosine=0.5, max_drop=100)  # type: ignore[arg-type]

    in_float = kernels(bundle / "onnx" / "model.onnx", tmp_path)
    assert in_float["Gemm"] == 4 * LAYERS
    assert in_float["Gelu"] + in_float["BiasGelu"] == LAYERS
    assert in_float["Erf"] == 0

    static = kernels(bundle / "onnx" / "model_int8.onnx", tmp_path)
    assert (static["QGemm"], static["MatMulIntegerToFloat"]) == (4 * LAYERS, 2 * LAYERS)
    assert static["Gemm"] == 0

    dynamic = kernels(bundle / "onnx" / "model_quantized.onnx", tmp_path)
    integer = sum(dynamic[name] for name in ("DynamicQuantizeMatMul", "MatMulIntegerToFloat", "MatMulInteger"))
    assert integer == 6 * LAYERS


def kernels(graph: Path, folder: Path) -> Counter[str]:
    """What ONNX Runtime really runs: the operators of its optimized graph."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(str(folder / "optimized.onnx")).graph.node)


def shapes_at_run_time(file: Path, tensors: list[str]) -> list[tuple[int, ...]]:
    model = onnx.load(str(file))
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(tensors))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    ids = np.full((2, 5), 7, dtype=np.int64)
    feed = {item.name: ids if item.name == "input_ids" else np.ones_like(ids) for item in session.get_inputs()}
    if "token_type_ids" in feed:
        feed["token_type_ids"] = np.zeros_like(ids)
    return [value.shape for value in session.run(list(dict.fromkeys(tensors)), feed)]
