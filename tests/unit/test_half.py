"""Half precision: float32 at both ends, a mask that can't overflow, sums with all their digits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from distilface.artifact import Bundle
from distilface.parity import cosines
from distilface.quantization.half import MASKED, to_half
from distilface.runtime import Encoder
from distilface.tokenizer import Tokenizer


def test_the_encoder_is_half_and_the_vector_is_not(tiny_bundle: Path, tmp_path: Path) -> None:
    opened = Bundle.open(tiny_bundle)
    model = onnx.load(str(opened.graph("fp32")))
    half = to_half(model)
    onnx.checker.check_model(half, full_check=True)
    assert {item.type.tensor_type.elem_type for item in half.graph.output} == {TensorProto.FLOAT}
    assert {item.type.tensor_type.elem_type for item in half.graph.input} == {TensorProto.INT64}
    kinds = {tensor.data_type for tensor in half.graph.initializer if len(tensor.dims) == 2}
    assert TensorProto.FLOAT not in kinds and TensorProto.FLOAT16 in kinds
    assert half.ByteSize() < 0.62 * model.ByteSize()
    sums = [node for node in half.graph.node if node.op_type in ("ReduceSum", "ReduceL2")]
    types = {item.name: item.type.tensor_type.elem_type
             for item in onnx.shape_inference.infer_shapes(half).graph.value_info}
    assert sums and all(types[node.input[0]] == TensorProto.FLOAT for node in sums)
    file = tmp_path / "half.onnx"
    onnx.save_model(half, str(file))
    tokenizer = Tokenizer.load(tiny_bundle, opened.manifest.max_seq_length)
    texts = [item.text for item in opened.golden()]
    found, wanted = (Encoder(path, tokenizer).encode(texts) for path in (file, opened.graph("fp32")))
    assert cosines(found, wanted).min() >= 0.999
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)


def test_the_mask_leaves_room_for_any_score(tiny_bundle: Path) -> None:
    half = to_half(onnx.load(str(Bundle.open(tiny_bundle).graph("fp32"))))
    values = [numpy_helper.to_array(tensor) for tensor in half.graph.initializer
              if tensor.data_type == TensorProto.FLOAT16]
    largest = max(float(np.abs(value).max()) for value in values if value.size)
    assert largest == MASKED
    assert np.exp(np.float16(-MASKED)) == 0
    assert np.isfinite(np.float16(-MASKED) + np.float16(-40_000))  # the largest number there is would overflow here
    with np.errstate(over="ignore"):
        assert np.isinf(np.finfo(np.float16).min + np.float16(-40))
