"""One consumer on one graph, in a process and an environment of its own: ``python child.py probe|NAME REQUEST ANSWER``.

The environment holds the consumer and not necessarily distilface, so this file imports neither it nor anything else
before a consumer asks for it. REQUEST is a JSON file with ``folder``, ``file``, ``texts``, ``dim``, ``pooling``,
``max_seq_length`` and ``pad_token_id``; ANSWER becomes one with ``vectors`` and ``ids``.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.pop(0)  # this file's folder, whose modules are nobody else's

Request = dict[str, Any]
Answer = dict[str, Any]


def sentence_transformers_torch(request: Request) -> Answer:
    return _sentence_transformers(request["texts"], request["checkpoint"])


def sentence_transformers_onnx(request: Request) -> Answer:
    return _sentence_transformers(request["texts"], request["folder"], backend="onnx", model_kwargs={
        "file_name": request["file"], "provider": "CPUExecutionProvider", "export": False})


def _sentence_transformers(texts: list[str], folder: str, **options: Any) -> Answer:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, device="cpu", local_files_only=True, **options)
    ids = model.tokenizer(texts, truncation=True, max_length=model.max_seq_length)["input_ids"]
    return {"vectors": model.encode(texts).tolist(), "ids": ids}


def optimum(request: Request) -> Answer:
    from optimum.onnxruntime import ORTModelForFeatureExtraction
    from transformers import AutoTokenizer

    subfolder, _, name = request["file"].rpartition("/")
    model = ORTModelForFeatureExtraction.from_pretrained(
        request["folder"], subfolder=subfolder, file_name=name, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(request["folder"], local_files_only=True)
    ids = tokenizer(request["texts"], truncation=True)["input_ids"]
    batch = tokenizer(request["texts"], truncation=True, padding=True, return_tensors="np")
    states = model(**batch).last_hidden_state
    return {"vectors": _pool(states, batch["attention_mask"], request["pooling"]), "ids": ids}


def fastembed_first_output(request: Request) -> Answer:
    return _fastembed(request, request["pooling"].upper(), None)


def fastembed_sentence_embedding(request: Request) -> Answer:
    return _fastembed(request, "DISABLED", "sentence_embedding")


def _fastembed(request: Request, pooling: str, output: str | None) -> Answer:
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    named = {} if output is None else {"output_name": output}
    TextEmbedding.add_custom_model(
        "bundle", pooling=PoolingType[pooling], normalization=output is None, sources=ModelSource(hf="local/bundle"),
        dim=request["dim"], model_file=request["file"], **named)
    model = TextEmbedding("bundle", specific_model_path=request["folder"], local_files_only=True)
    encodings = model.model.tokenize(request["texts"])
    return {"vectors": [vector.tolist() for vector in model.embed(request["texts"])], "ids": _kept(encodings)}


def light_embed_first_output(request: Request) -> Answer:
    return _light_embed(request, {"pooling_config_path": "1_Pooling"})


def light_embed_sentence_embedding(request: Request) -> Answer:
    return _light_embed(request, {})


def _light_embed(request: Request, pooling: dict[str, str]) -> Answer:
    from light_embed import TextEmbedding

    model = TextEmbedding(request["folder"], device="cpu", model_config={
        "onnx_file": request["file"], "normalize": bool(pooling), **pooling})
    encodings = model.tokenizer.tokenizer.encode_batch(request["texts"])
    return {"vectors": model.encode(request["texts"]).tolist(), "ids": _kept(encodings)}


def openvino(request: Request) -> Answer:
    import numpy as np
    from openvino import Core

    ids = _encode(request)
    compiled = Core().compile_model(str(Path(request["folder"], request["file"])), "CPU",
                                    {"INFERENCE_PRECISION_HINT": "f32"})
    names = {name for item in compiled.inputs for name in item.get_names()}
    outputs = {name for item in compiled.outputs for name in item.get_names()}
    if "sentence_embedding" not in outputs:
        raise ValueError(f"the graph has no output sentence_embedding; it has {', '.join(sorted(outputs))}")
    feed = {name: np.array(value, dtype=np.int64) for name, value in
            _padded(ids, request["pad_token_id"]).items() if name in names}
    return {"vectors": compiled(feed)["sentence_embedding"].tolist(), "ids": ids}


def text_embeddings_inference(request: Request) -> Answer:
    """What its router and ONNX backend read, read the way they do; the server itself is a Rust program."""
    import numpy as np
    import onnxruntime as ort

    folder = Path(request["folder"])
    config = _json(folder / "config.json")
    _typed(config, "config.json", {"architectures": list, "model_type": str, "max_position_embeddings": int,
                                   "hidden_size": int, "num_hidden_layers": int, "num_attention_heads": int,
                                   "pad_token_id": int})
    _typed(_json(folder / "sentence_bert_config.json"), "sentence_bert_config.json", {"max_seq_length": int})
    modes = _json(folder / "1_Pooling" / "config.json")
    _typed(modes, "1_Pooling/config.json", dict.fromkeys(
        [f"pooling_mode_{name}" for name in ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")], bool))
    pooling = "cls" if modes["pooling_mode_cls_token"] else "mean"
    if not modes["pooling_mode_mean_tokens"] and pooling == "mean":
        raise ValueError("1_Pooling/config.json names neither cls nor mean")
    if "padding_side" in _json(folder / "tokenizer_config.json"):
        raise ValueError("tokenizer_config.json names a padding_side")
    if (folder / "model.onnx").exists():
        raise ValueError("model.onnx beside onnx/ would be read instead of onnx/model.onnx")
    session = ort.InferenceSession(str(folder / "onnx" / "model.onnx"), providers=["CPUExecutionProvider"])
    ids, vectors, pooled = _encode(request), [], []
    for start in range(0, len(ids), 8):
        feed = {name: np.array(value, dtype=np.int64) for name, value in
                _padded(ids[start : start + 8], config["pad_token_id"]).items()}
        asked = {item.name for item in session.get_inputs()}
        states, vector = session.run(["last_hidden_state", "sentence_embedding"],
                                     {name: value for name, value in feed.items() if name in asked})
        vectors += vector.tolist()  # versions since 1.9 take this output, older ones pool the first
        pooled += _pool(states, feed["attention_mask"], pooling)
    return {"vectors": vectors + pooled, "ids": ids}


def onnxruntime_extensions(request: Request) -> Answer:
    import numpy as np
    import onnxruntime as ort
    from onnxruntime_extensions import get_library_path

    options = ort.SessionOptions()
    options.register_custom_ops_library(get_library_path())
    options.log_severity_level = 3
    session = ort.InferenceSession(str(Path(request["folder"], request["file"])), options,
                                   providers=["CPUExecutionProvider"])
    vectors, padded = session.run(["sentence_embedding", "input_ids"],
                                  {"text": np.array(request["texts"], dtype=object)})
    ids = []
    for row in padded.tolist():
        while row[-1] == request["pad_token_id"]:
            row.pop()
        ids.append(row)
    return {"vectors": vectors.tolist(), "ids": ids}


def _encode(request: Request) -> list[list[int]]:
    from tokenizers import Tokenizer

    backend = Tokenizer.from_file(str(Path(request["folder"], "tokenizer.json")))  # its own truncation applies
    return [encoding.ids for encoding in backend.encode_batch(request["texts"])]


def _padded(rows: Sequence[Sequence[int]], pad: int) -> dict[str, list[list[int]]]:
    width = max(map(len, rows))
    return {"input_ids": [[*row, *[pad] * (width - len(row))] for row in rows],
            "attention_mask": [[1] * len(row) + [0] * (width - len(row)) for row in rows],
            "token_type_ids": [[0] * width for _ in rows]}


def _pool(states: Any, mask: Any, pooling: str) -> list[list[float]]:
    import numpy as np

    states, kept = np.asarray(states, dtype=np.float64), np.asarray(mask, dtype=bool)[..., None]
    if pooling == "cls":
        pooled = states[:, 0]
    elif pooling == "max":
        pooled = np.where(kept, states, -np.inf).max(axis=1)
    else:
        pooled = (states * kept).sum(axis=1) / kept.sum(axis=1)
    vectors: list[list[float]] = (pooled / np.linalg.norm(pooled, axis=1, keepdims=True)).tolist()
    return vectors


def _kept(encodings: Sequence[Any]) -> list[list[int]]:
    return [[i for i, on in zip(item.ids, item.attention_mask, strict=True) if on] for item in encodings]


def _json(file: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return values


def _typed(values: dict[str, Any], name: str, types: dict[str, type]) -> None:
    for key, kind in types.items():
        if not isinstance(values.get(key), kind):
            raise ValueError(f"{name} needs {key} as {kind.__name__}, has {values.get(key)!r}")


def probe(request: Request) -> Answer:
    versions: dict[str, str | None] = {}
    for name in request["distributions"]:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return {"versions": versions}


CONSUMERS: dict[str, Callable[[Request], Answer]] = {function.__name__: function for function in (
    probe, sentence_transformers_torch, sentence_transformers_onnx, optimum, fastembed_first_output,
    fastembed_sentence_embedding, light_embed_first_output, light_embed_sentence_embedding, openvino,
    text_embeddings_inference, onnxruntime_extensions)}


if __name__ == "__main__":
    name, request_file, answer_file = sys.argv[1:]
    answer = CONSUMERS[name](json.loads(Path(request_file).read_text(encoding="utf-8")))
    Path(answer_file).write_text(json.dumps(answer), encoding="utf-8")
