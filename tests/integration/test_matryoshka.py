"""A cut dimension in the exported graph, in float and INT8."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from distilface.encoder import SentenceEncoder
from distilface.errors import UserError
from distilface.exporter import export
from distilface.parity import batch_dependence
from distilface.quantization import quantize
from distilface.runtime import Encoder
from distilface.smarthome import utterances
from distilface.verification import verify

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
