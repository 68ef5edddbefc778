"""Layer-wise attention all the way: trained, resumed, exported, INT8 both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from distilface.config import load_config
from distilface.encoder import SentenceEncoder
from distilface.errors import UserError
from distilface.exporter import export
from distilface.onnxgraph import GraphIndex, count_matmuls
from distilface.parity import batch_dependence, cosines
from distilface.quantization import quantize
from distilface.runtime import Encoder
from distilface.smarthome import utterances
from distilface.training import TrainConfig, train
from distilface.training.trainer import ContrastiveTrainer
from distilface.verification import verify
from tests.tiny import CORPUS, tiny_checkpoint

pytestmark = pytest.mark.integration
LAYERS = 2
TEXTS = [item.text for item in utterances("train")][:120]


def _checkpoint(folder: Path, architecture: str, options: dict[str, str], head: Any) -> Path:
    """With pooling weights as large as training makes them, so that the softmax over layers is no plain mean."""
    encoder = SentenceEncoder.load(tiny_checkpoint(folder / "bare", architecture, layers=LAYERS), "layer_attention",
                                   head=head, pooling_options=options, new_pooler=True)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in encoder.pooler.parameters():
            parameter.copy_(torch.randn_like(parameter) / parameter.shape[-1] ** 0.5)
    (folder / "trained").mkdir()
    encoder.save(folder / "trained")
    return folder / "trained"


@pytest.mark.parametrize(("architecture", "options", "head"), [
    ("distilbert", {}, "none"), ("bert", {}, "kept"), ("mpnet", {"final": "none", "activation": "none"}, "none"),
    ("roberta", {"scale": "width", "activation": "relu", "final": "linear"}, "none"),
])
def test_exported_and_quantized_both_ways(tmp_path: Path, architecture: str, options: dict[str, str],
                                          head: Any) -> None:
    trained = _checkpoint(tmp_path, architecture, options, head)
    bundle = export(trained, tmp_path / "bundle")  # compares with torch over batches and lengths, floor 0.99999
    encoder = SentenceEncoder.load(trained)
    texts = [*TEXTS[:20], "", "😀", "long " * 200]
    assert cosines(Encoder.load(bundle.folder).encode(texts), encoder.encode(texts)).min() >= 0.99999
    model = onnx.load(str(bundle.graph("fp32")))
    assert {node.domain for node in model.graph.node} == {""}

    feed = encoder.tokenizer.pad(encoder.tokenizer.encode_batch(TEXTS[:3]))
    with torch.inference_mode():
        states = encoder.hidden_states(*(torch.from_numpy(feed[name]) for name in ("input_ids", "attention_mask")))
    session = onnxruntime.InferenceSession(str(bundle.graph("fp32")), providers=["CPUExecutionProvider"])
    given = {item.name: feed.get(item.name, np.zeros_like(feed["input_ids"])) for item in session.get_inputs()}
    found = session.run(["last_hidden_state"], given)[0]
    kept = feed["attention_mask"].astype(bool)
    np.testing.assert_allclose(found[kept], states[-1].numpy()[kept], rtol=1e-3, atol=1e-4)

    quantize(bundle.folder, "dynamic", TEXTS)
    quantize(bundle.folder, "static", TEXTS, calibration_texts=40)
    assert [check for check in verify(bundle.folder) if not check.passed] == []
    assert batch_dependence(Encoder.load(bundle.folder, "int8-static")) >= 0.999999
    for variant in ("int8-static", "int8-dynamic"):
        graph = onnx.load(str(bundle.folder / bundle.manifest.variants["fp32"].file).replace("model.onnx", {
            "int8-static": "model_int8.onnx", "int8-dynamic": "model_quantized.onnx"}[variant]))
        assert count_matmuls(graph).integer == 6 * LAYERS
        index = GraphIndex(graph.graph)  # the three maps of the pooling stay float, their weights on the left
        maps = [node for node in graph.graph.node if node.op_type == "MatMul" and node.input[0] in index.initializers]
        assert [list(index.initializers[node.input[0]].dims) for node in maps] == [[32, 32]] * 3
    card = (bundle.folder / "README.md").read_text()
    assert "`sentence_embedding`" in card and "no pooling module" in card
    assert not (bundle.folder / "1_Pooling").exists()


@pytest.mark.parametrize(("kind", "sets"), [("sentences", []), ("triplets", ["loss.hard_negative_weight=0.5"])])
def test_trained_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, sets: list[str]) -> None:
    tiny_checkpoint(tmp_path / "model", layers=LAYERS)
    rows = [f"{CORPUS[index % 10]} {index}\t{index} {CORPUS[index % 10]}\tnever {index}" for index in range(24)]
    (tmp_path / "text.tsv").write_text("\n".join(rows if kind == "triplets" else [row.split("\t")[0] for row in rows]))
    config = load_config(TrainConfig, sets=[
        f"model.name={tmp_path / 'model'}", "model.pooling=layer_attention", "model.pooling_options.scale=width",
        f"data.path={tmp_path / 'text.tsv'}", f"data.kind={kind}", "train.batch_size=8", "train.max_steps=40",
        "train.save_every=10", "train.log_every=1", "train.learning_rate=1e-3", "train.tensorboard=false", *sets])
    whole = train(config, tmp_path / "whole", progress=False)
    losses = [loss for _, loss in whole.losses]
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    plain = ContrastiveTrainer.compute_loss

    def stop(self: ContrastiveTrainer, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 25:
            raise KeyboardInterrupt
        return plain(self, *args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ContrastiveTrainer, "compute_loss", stop)
        train(config, tmp_path / "parts", progress=False)
    parts = train(config, tmp_path / "parts", resume=True, progress=False)
    assert parts.losses == whole.losses
    first, second = (SentenceEncoder.load(tmp_path / name) for name in ("whole", "parts"))
    assert first.pooler.options["scale"] == "width" and np.array_equal(first.encode(CORPUS), second.encode(CORPUS))
    again = load_config(TrainConfig, tmp_path / "whole" / "train_config.yaml", [f"model.name={tmp_path / 'whole'}"])
    assert train(again, tmp_path / "further", progress=False).losses[0][1] < 0.9 * losses[0]  # goes on


def test_an_untrained_pooling_is_not_exported(tmp_path: Path) -> None:
    model = tiny_checkpoint(tmp_path / "model", layers=LAYERS)
    with pytest.raises(UserError, match="train it first"):
        export(model, tmp_path / "bundle", pooling="layer_attention")
    assert json.loads((model / "config.json").read_text())["n_layers"] == LAYERS
