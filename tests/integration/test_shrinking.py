"""all-MiniLM-L6-v2 made smaller: as DistilBERT, with the built-in corpus' vocabulary, with every other layer."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import transformers

from distilface.encoder import SentenceEncoder
from distilface.exporter import export
from distilface.golden import GOLDEN_TEXTS
from distilface.onnxgraph import GraphIndex
from distilface.parity import cosines
from distilface.quantization import quantize
from distilface.runtime import Encoder
from distilface.shrinking import shrink
from distilface.smarthome import utterances
from tests.tiny import CORPUS, tiny_checkpoint

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [item.text for item in utterances()][::6]


def _corpus(folder: Path, texts: list[str]) -> Path:
    file = folder / "corpus.txt"
    file.write_text("\n".join(texts), encoding="utf-8")
    return file


def test_minilm_becomes_distilbert(minilm: Path, tmp_path: Path) -> None:
    shrink(minilm, tmp_path / "small", to_distilbert=True)
    old, new = SentenceEncoder.load(minilm), SentenceEncoder.load(tmp_path / "small")
    probes = [*GOLDEN_TEXTS, *CORPUS]
    np.testing.assert_allclose(new.encode(probes), old.encode(probes), atol=2e-6, rtol=0)
    plain = transformers.AutoModel.from_pretrained(tmp_path / "small")
    assert type(plain).__name__ == "DistilBertModel"
    assert new.max_seq_length == old.max_seq_length


def test_minilm_keeps_the_vectors_of_the_corpus_its_vocabulary_was_cut_to(minilm: Path, tmp_path: Path,
                                                                         texts: list[str]) -> None:
    report = shrink(minilm, tmp_path / "small", vocabulary=_corpus(tmp_path, texts), coverage=100).vocabulary
    assert report is not None and (report.size_before, report.unspelled) == (30522, 0)
    assert (report.covered, report.texts_unchanged) == (100, 100)
    assert report.size_after < 4000
    old, new = SentenceEncoder.load(minilm), SentenceEncoder.load(tmp_path / "small")
    np.testing.assert_array_equal(new.encode(texts), old.encode(texts))
    assert (new.backbone.config.vocab_size, new.backbone.config.pad_token_id) == (report.size_after, 0)
    # Text far from the corpus is spelled out, never unknown where it was known.
    before, after = (encoder.tokenizer.backend for encoder in (old, new))
    for text in (*GOLDEN_TEXTS, "Quixotic Schadenfreude, naïveté & Übermut in Москва"):
        unknown = [backend.encode(text).tokens.count("[UNK]") for backend in (before, after)]
        assert unknown[0] == unknown[1]


def test_minilm_with_every_other_layer(minilm: Path, tmp_path: Path) -> None:
    result = shrink(minilm, tmp_path / "small", layers=3)
    assert result.layers == (1, 3, 5)
    old, new = SentenceEncoder.load(minilm), SentenceEncoder.load(tmp_path / "small")
    for position, index in enumerate(result.layers):
        source = old.backbone.encoder.layer[index].state_dict()
        for name, tensor in new.backbone.encoder.layer[position].state_dict().items():
            assert torch.equal(tensor, source[name])
    vectors = new.encode(CORPUS)
    assert np.isfinite(vectors).all() and np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-5


def test_everything_at_once_on_minilm_loads_in_other_libraries(minilm: Path, tmp_path: Path, texts: list[str]) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    shrink(minilm, tmp_path / "small", layers=3, ffn=768, vocabulary=_corpus(tmp_path, texts), to_distilbert=True)
    ours = SentenceEncoder.load(tmp_path / "small")
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "small"), device="cpu")
    probes = [*texts[:20], *GOLDEN_TEXTS]
    ids = transformers.AutoTokenizer.from_pretrained(tmp_path / "small")(probes, truncation=True)["input_ids"]
    assert ids == ours.tokenizer.encode_batch(probes)
    np.testing.assert_allclose(theirs.encode(probes), ours.encode(probes), atol=2e-6, rtol=0)


def test_a_shrunk_checkpoint_exports(tmp_path: Path, texts: list[str]) -> None:
    model = tiny_checkpoint(tmp_path / "model", "bert", layers=4)
    shrink(model, tmp_path / "small", layers=2, ffn=48, vocabulary=_corpus(tmp_path, CORPUS[:6]), coverage=95,
           to_distilbert=True)
    export(tmp_path / "small", tmp_path / "bundle")
    probes = [*texts[:20], *GOLDEN_TEXTS]
    torch_vectors = SentenceEncoder.load(tmp_path / "small").encode(probes)
    assert cosines(Encoder.load(tmp_path / "bundle").encode(probes), torch_vectors).min() > 0.99999


@pytest.mark.parametrize("architecture", ["distilbert", "bert"])
def test_pruned_heads_are_gone_from_the_graph(tmp_path: Path, architecture: str) -> None:
    """The checkpoint keeps its shapes, the graph does not; its vectors are the checkpoint's, and INT8 takes it."""
    model = tiny_checkpoint(tmp_path / "model", architecture, layers=2)
    shrink(model, tmp_path / "small", heads=2, calibration=_corpus(tmp_path, CORPUS))
    bundle = export(tmp_path / "small", tmp_path / "bundle")
    graph = onnx.load(str(bundle.graph("fp32"))).graph
    index = GraphIndex(graph)
    shapes = Counter(tuple(index.initializers[node.input[1]].dims) for node in index.weight_matmuls())
    assert shapes == {(32, 16): 6, (16, 32): 2, (32, 128): 2, (128, 32): 2}
    vectors = Encoder.load(bundle.folder).encode(CORPUS)
    assert cosines(vectors, SentenceEncoder.load(tmp_path / "small").encode(CORPUS)).min() > 0.999999
    made = quantize(bundle.folder, "dynamic", max_drop=100, min_cosine=-1)
    assert (made.variant.integer_matmuls, made.variant.float_matmuls) == (12, 0)
