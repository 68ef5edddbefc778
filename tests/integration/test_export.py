"""Every architecture through the exporter: parity with torch, the contract of the graph, and INT8 that is INT8."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto

from distilface.artifact import Bundle
from distilface.encoder import SentenceEncoder
from distilface.errors import GateError, UserError
from distilface.exporter import export
from distilface.onnxgraph import count_matmuls
from distilface.parity import batch_dependence, cosines
from distilface.quantization import quantize
from distilface.runtime import Encoder
from distilface.smarthome import utterances
from distilface.verification import verify
from tests.tiny import tiny_checkpoint

pytestmark = pytest.mark.integration

LAYERS = 3
CASES = [
    ("distilbert", "mean_last"), ("distilbert", "concat_last4"), ("distilbert", "cls"), ("bert", "mean_last4"),
    ("bert", "max_first_last"), ("roberta", "mean_last"), ("roberta", "cls"), ("mpnet", "mean_last"),
    ("mpnet", "mean_last4"), ("xlm-roberta", "max_first_last"), ("xlm-roberta", "concat_last4"),
]
ONE_EACH = list({case[0]: case for case in reversed(CASES)}.values())
BATCHES = (1, 2, 7, 64)
LENGTHS = (1, 2, 3, 17, 64)
TEXTS = [item.text for item in utterances("train")][:150]


class Exported:
    """A bundle and, loaded separately with the default attention, the checkpoint it was made from."""

    def __init__(self, folder: Path, architecture: str, pooling: str) -> None:
        self.architecture, self.pooling = architecture, pooling
        self.checkpoint = tiny_checkpoint(folder / "checkpoint", architecture, layers=LAYERS)
        self.bundle = export(self.checkpoint, folder / "bundle", pooling=pooling)
        self.encoder = SentenceEncoder.load(self.checkpoint, pooling)
        self.graph = self.bundle.graph("fp32")


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, str]], Exported]:
    """Each case is exported once."""
    return functools.cache(lambda case: Exported(tmp_path_factory.mktemp("-".join(case)), *case))


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def exported(request: pytest.FixtureRequest, make: Callable[[tuple[str, str]], Exported]) -> Exported:
    return make(request.param)


def _feeds(encoder: SentenceEncoder, batch: int, length: int) -> dict[str, NDArray[np.int64]]:
    """Random ids without the padding id; the first row is full, the others end anywhere."""
    random = np.random.default_rng(100 * batch + length)
    pad = encoder.tokenizer.pad_token_id
    size = encoder.tokenizer.backend.get_vocab_size()
    words = np.array([index for index in range(size) if index != pad])
    lengths = [length, *random.integers(1, length, batch - 1, endpoint=True)]
    feed = encoder.tokenizer.pad([random.choice(words, n).tolist() for n in lengths])
    if encoder.takes_token_types:
        feed["token_type_ids"] = np.zeros_like(feed["input_ids"])
    return feed


def test_parity_at_shapes_it_was_not_traced_at(exported: Exported) -> None:
    session = ort.InferenceSession(str(exported.graph), providers=["CPUExecutionProvider"])
    for batch in BATCHES:
        for length in LENGTHS:
            feed = _feeds(exported.encoder, batch, length)
            with torch.inference_mode():
                states, vectors = exported.encoder(**{name: torch.from_numpy(value) for name, value in feed.items()})
            found_states, found = session.run(None, feed)
            where = f"batch {batch}, length {length}"
            assert found.shape == (batch, exported.encoder.dim), where
            assert cosines(found, vectors.numpy()).min() >= 0.99999, where
            np.testing.assert_allclose(np.linalg.norm(found.astype(np.float64), axis=1), 1, atol=1e-5, err_msg=where)
            kept = feed["attention_mask"].astype(bool)
            assert found_states.shape == (*kept.shape, exported.encoder.dim), where
            np.testing.assert_allclose(found_states[kept], states.numpy()[kept], rtol=1e-3, atol=1e-4, err_msg=where)


def test_the_contract_of_the_graph(exported: Exported) -> None:
    model = onnx.load(str(exported.graph))
    onnx.checker.check_model(model, full_check=True)

    def shape(item: Any) -> list[str | int]:
        return [dim.dim_param or dim.dim_value for dim in item.type.tensor_type.shape.dim]

    inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if exported.architecture == "bert" else [])]
    assert [item.name for item in model.graph.input] == inputs
    for item in model.graph.input:
        assert item.type.tensor_type.elem_type == TensorProto.INT64
        assert shape(item) == ["batch_size", "sequence_length"]
    states, vector = model.graph.output
    dim = exported.encoder.dim
    assert (states.name, shape(states)) == ("last_hidden_state", ["batch_size", "sequence_length", dim])
    assert (vector.name, shape(vector)) == ("sentence_embedding", ["batch_size", dim])
    assert {item.type.tensor_type.elem_type for item in model.graph.output} == {TensorProto.FLOAT}

    floating = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
    assert {t.data_type for t in model.graph.initializer if t.data_type in floating} == {TensorProto.FLOAT}
    assert all(t.data_location != TensorProto.EXTERNAL and not t.external_data for t in model.graph.initializer)
    assert {node.domain for node in model.graph.node} == {""} and not model.functions
    assert model.ir_version <= 8
    assert [(item.domain, item.version) for item in model.opset_import if item.domain == ""] == [("", 18)]
    # Every MatMul with a weight: query, key, value, output and two of the feed-forward net, in each layer.
    assert count_matmuls(model) == (0, 0, 6 * LAYERS)


def test_the_file_stands_alone_and_holds_no_path_of_this_machine(exported: Exported) -> None:
    assert [file.name for file in (exported.bundle.folder / "onnx").iterdir()] == ["model.onnx"]
    content = exported.graph.read_bytes()
    for trace in (b"/root", b"/home", b"site-packages", b".py", str(exported.checkpoint.parent).encode()):
        assert trace not in content, trace


def test_the_bundle_verifies_and_equals_torch_on_texts(exported: Exported) -> None:
    assert [check for check in verify(exported.bundle.folder) if not check.passed] == []
    runtime = Encoder.load(exported.bundle.folder)
    texts = [*TEXTS[:20], "", "\x00", "😀", "Kantō", "[SEP]", "</s>", "half \ud83d", "long " * 200]
    assert cosines(runtime.encode(texts), exported.encoder.encode(texts)).min() >= 0.99999
    assert batch_dependence(runtime) >= 0.999999
    manifest = exported.bundle.manifest
    assert (manifest.architecture, manifest.pooling, manifest.dim, manifest.num_layers, manifest.hidden_size) == (
        exported.architecture, exported.pooling, exported.encoder.dim, LAYERS, 32)


def test_config_json_names_the_sizes_every_consumer_asks_for(exported: Exported) -> None:
    values = json.loads((exported.bundle.folder / "config.json").read_text(encoding="utf-8"))
    assert (values["hidden_size"], values["num_hidden_layers"], values["num_attention_heads"]) == (32, LAYERS, 4)


# ----------------------------------------------------------------- INT8


@pytest.fixture(scope="module", params=ONE_EACH, ids=lambda case: case[0])
def quantized(request: pytest.FixtureRequest, make: Callable[[tuple[str, str]], Exported],
              tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """INT8 depends on the architecture, not on the pooling: one case of each, quantized both ways in a copy."""
    copy = tmp_path_factory.mktemp("quantized") / request.param[0]
    quantize(make(request.param).bundle.folder, "dynamic", TEXTS, out=copy, min_cosine=0.9, max_drop=5)
    return quantize(copy, "static", TEXTS, min_cosine=0.9, max_drop=5, calibration_texts=60).bundle


def _kernels(file: Path, target: Path) -> list[str]:
    """Operators of the graph as ONNX Runtime really runs it on this processor."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 3
    ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(str(target)).graph.node]


INTEGER_KERNELS = {"int8-dynamic": {"DynamicQuantizeMatMul", "MatMulIntegerToFloat", "MatMulInteger"},
                   "int8-static": {"QLinearMatMul", "MatMulIntegerToFloat", "QGemm"}}


@pytest.mark.parametrize("variant", ["int8-static", "int8-dynamic"])
def test_every_weight_is_multiplied_on_integers(quantized: Bundle, tmp_path: Path, variant: str) -> None:
    record = quantized.variant(variant)
    assert (record.integer_matmuls, record.weight_only_matmuls, record.float_matmuls) == (6 * LAYERS, 0, 0)
    model = onnx.load(str(quantized.graph(variant)))
    onnx.checker.check_model(model, full_check=True)
    assert count_matmuls(model) == (6 * LAYERS, 0, 0)
    kernels = _kernels(quantized.graph(variant), tmp_path / "optimized.onnx")
    assert sum(kernel in INTEGER_KERNELS[variant] for kernel in kernels) == 6 * LAYERS, sorted(set(kernels))


def test_the_fp32_graph_has_no_integer_kernel(quantized: Bundle, tmp_path: Path) -> None:
    kernels = _kernels(quantized.graph("fp32"), tmp_path / "optimized.onnx")
    assert not set(kernels) & set.union(*INTEGER_KERNELS.values())


def test_vectors_and_neighbours_of_the_int8_variants(quantized: Bundle) -> None:
    reference = Encoder.load(quantized.folder).encode(TEXTS)
    for name in ("int8-static", "int8-dynamic"):
        encoder = Encoder.load(quantized.folder, name)
        record = quantized.variant(name)
        assert cosines(encoder.encode(TEXTS), reference).min() >= record.cosine_floor >= 0.85
        if name == "int8-static":
            assert record.batch_invariant and batch_dependence(encoder) >= 0.999999
    assert [check for check in verify(quantized.folder) if not check.passed] == []


# ----------------------------------------------------------------- what export refuses


def test_a_kept_head_is_in_the_graph(tmp_path: Path, checkpoint: Path) -> None:
    encoder = SentenceEncoder.load(checkpoint, "first_last", max_seq_length=20, head="kept")
    (tmp_path / "headed").mkdir()
    encoder.save(tmp_path / "headed")
    bundle = export(tmp_path / "headed", tmp_path / "bundle")
    assert (bundle.manifest.head, bundle.manifest.max_seq_length) == ("kept", 20)
    assert cosines(Encoder.load(tmp_path / "bundle").encode(TEXTS), encoder.encode(TEXTS)).min() >= 0.99999


def test_a_graph_that_differs_from_torch_is_not_written(
        tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgetting the mask in the graph is the classic fault; the comparison must say no and leave nothing behind."""
    import distilface.exporter
    from distilface.onnxgraph import add_initializers

    genuine = distilface.exporter.simplify_attention_mask

    def forget(model: Any) -> None:
        genuine(model)
        add_initializers(model.graph, {"no_mask": np.float32(0)})
        for node in model.graph.node:
            node.input[:] = ["no_mask" if name == "mask_bias" else name for name in node.input]

    monkeypatch.setattr(distilface.exporter, "simplify_attention_mask", forget)
    with pytest.raises(GateError, match=r"differs from torch.*batch"):
        export(checkpoint, tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


def test_an_output_folder_that_holds_something(tmp_path: Path, checkpoint: Path) -> None:
    (tmp_path / "mine").write_text("1", encoding="utf-8")
    with pytest.raises(UserError, match="not empty"):
        export(checkpoint, tmp_path)
    assert [item.name for item in tmp_path.iterdir()] == ["mine"]


# ----------------------------------------------------------------- the real model


def test_minilm(minilm: Path, tmp_path: Path) -> None:
    """A quarter of the size, golden ids, one limit, and the two mistakes consumers make, on the real model."""
    bundle = export(minilm, tmp_path / "minilm")
    done = quantize(bundle.folder, "dynamic", TEXTS)
    assert done.variant.size == pytest.approx(22.9e6, rel=0.03)
    assert done.variant.integer_matmuls == 36
    assert bundle.manifest.max_seq_length == 256
    assert [check for check in verify(bundle.folder, "fp32") if not check.passed] == []
    encoder = Encoder.load(bundle.folder)
    (row,) = encoder.tokenizer.encode_batch(["The capital of France is Paris."])
    assert row == [101, 1996, 3007, 1997, 2605, 2003, 3000, 1012, 102]
    session = ort.InferenceSession(str(encoder.graph), providers=["CPUExecutionProvider"])
    feed = encoder.feed([row])
    states, vector = session.run(None, feed)
    wide_states, padded = session.run(None, {name: np.pad(value, ((0, 0), (0, 128 - len(row))))
                                             for name, value in feed.items()})
    assert cosines(vector, padded)[0] >= 0.999999
    assert cosines(vector, states.mean(axis=1))[0] >= 0.999999  # a mean over the first output is the trained vector
    assert cosines(vector, wide_states.mean(axis=1))[0] < 0.9  # the mask forgotten
    assert cosines(vector, states[:, 0])[0] < 0.9  # CLS instead of the mean
    with pytest.raises(UserError, match=r"257.*256"):
        encoder.embed_batch([[101] * 257])
