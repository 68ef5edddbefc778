"""A cut dimension in the exported graph, in float and INT8."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from distilface.config import load_config
from distilface.distillation import DistillConfig, distill
from distilface.encoder import SentenceEncoder
from distilface.errors import UserError
from distilface.evaluation import spearman
from distilface.exporter import export
from distilface.parity import batch_dependence
from distilface.quantization import quantize
from distilface.runtime import Encoder
from distilface.smarthome import utterances
from distilface.verification import verify
from tests.tiny import tiny_checkpoint

pytestmark = pytest.mark.integration
TEXTS = [item.text for item in utterances("train")][:120]


def test_the_graph_cuts_and_normalises(checkpoint: Path, tmp_path: Path) -> None:
    whole = SentenceEncoder.load(checkpoint).encode(TEXTS)[:, :24]
    whole /= np.linalg.norm(whole, axis=1, keepdims=True)
    with pytest.raises(UserError, match="truncate_dim 64 does not fit vectors of 32"):
        export(checkpoint, tmp_path / "bundle", truncate_dim=64)
    bundle = export(checkpoint, tmp_path / "bundle", truncate_dim=24)
    assert (bundle.manifest.dim, bundle.manifest.hidden_size) == (24, 32)
    runtime = Encoder.load(bundle.folder)
    assert runtime.dim == 24
    np.testing.assert_allclose(runtime.encode(TEXTS), whole, atol=1e-5)
    quantize(bundle.folder, "static", TEXTS, calibration_texts=40)
    assert [check for check in verify(bundle.folder) if not check.passed] == []
    assert batch_dependence(Encoder.load(bundle.folder, "int8-static")) >= 0.999999
    assert "first 24 of 32" in (bundle.folder / "README.md").read_text()
    assert not (bundle.folder / "1_Pooling").exists()


def test_a_distilled_student_is_cut_in_the_graph(tmp_path: Path) -> None:
    teacher = tiny_checkpoint(tmp_path / "teacher", "bert", layers=4)
    wanted = SentenceEncoder.load(teacher).encode(TEXTS)
    gold = spread(wanted)
    (tmp_path / "text.txt").write_text("\n".join(TEXTS))
    scores = {}
    for name, sets in (("plain", []), ("nested", ["loss.matryoshka=[32, 6]"])):
        distill(load_config(DistillConfig, sets=[
            f"teacher.name={teacher}", f"teacher.cache={tmp_path / 'cache'}", f"data.path={tmp_path / 'text.txt'}",
            "student.keep_layers=[1, 3]", "student.dropout=0", "train.batch_size=32", "train.max_steps=60",
            "train.learning_rate=2e-3", "train.tensorboard=false", *sets]), tmp_path / name, progress=False)
        bundle = export(tmp_path / name, tmp_path / f"{name}-bundle", truncate_dim=6)
        cut = SentenceEncoder.load(tmp_path / name, truncate_dim=6).encode(TEXTS)
        found = Encoder.load(bundle.folder).encode(TEXTS)
        np.testing.assert_allclose(found, cut, atol=1e-5)
        scores[name] = spearman(gold, spread(found))
        assert scores[name] == pytest.approx(spearman(gold, spread(cut)), abs=1e-4)
    assert scores["nested"] > scores["plain"] + 0.02  # six dimensions that were told to be the best six


def spread(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Cosines of all pairs of texts."""
    return (vectors @ vectors.T)[np.triu_indices(len(vectors), 1)]
