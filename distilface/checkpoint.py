"""The files around the weights of a checkpoint: what they say, and what we write so that others can read it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from distilface.errors import UserError
from distilface.pooling.names import TRAINED_POOLINGS
from distilface.tokenizer import Tokenizer, write_json

CHECKPOINT_FILE = "distilface.json"
POOLER_FILE = "pooling.safetensors"
_ST = "sentence_transformers.models."


class CheckpointFiles:
    """What the files around the weights say: our own distilface.json first, then sentence-transformers' modules."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        own = folder / CHECKPOINT_FILE
        self.own: dict[str, Any] = json.loads(own.read_text(encoding="utf-8")) if own.is_file() else {}
        modules = folder / "modules.json"
        listed = json.loads(modules.read_text(encoding="utf-8")) if modules.is_file() else []
        self.paths = {str(module["type"]).rsplit(".", 1)[-1]: module["path"] for module in listed}
        unknown = set(self.paths) - {"Transformer", "Pooling", "Dense", "Normalize"}
        if unknown:
            raise UserError(f"{str(folder)!r} has sentence-transformers modules this tool does not know: "
                            f"{', '.join(sorted(unknown))}; known: Transformer, Pooling, Dense (tanh), Normalize")

    @property
    def max_seq_length(self) -> int | None:
        value = self.own.get("max_seq_length")
        return int(value) if value is not None else None

    @property
    def pooling(self) -> str:
        if "pooling" in self.own:
            return str(self.own["pooling"])
        if "Pooling" not in self.paths:
            return "mean_last"
        modes = json.loads((self.folder / self.paths["Pooling"] / "config.json").read_text(encoding="utf-8"))
        active = [mode for mode, on in modes.items() if mode.startswith("pooling_mode_") and on is True]
        if isinstance(modes.get("pooling_mode"), str):  # the schema of sentence-transformers 6
            active = [f"pooling_mode_{modes['pooling_mode']}_tokens"]
        names = {"pooling_mode_cls_token": "cls", "pooling_mode_cls_tokens": "cls",
                 "pooling_mode_mean_tokens": "mean_last", "pooling_mode_max_tokens": "max_last"}
        if len(active) != 1 or active[0] not in names:
            raise UserError(f"{str(self.folder)!r} pools with {', '.join(active) or 'nothing'}; supported: "
                            "exactly one of cls, mean, max (pass --pooling to choose another)")
        return names[active[0]]

    @property
    def pooling_options(self) -> dict[str, str] | None:
        return self.own.get("pooling_options")

    @property
    def truncate_dim(self) -> int | None:
        return self.own.get("truncate_dim")

    @property
    def pooler_weights(self) -> dict[str, Tensor] | None:
        file = self.folder / POOLER_FILE
        return load_tensors(file) if file.is_file() else None

    @property
    def head_weights(self) -> dict[str, Tensor] | None:
        if "Dense" not in self.paths:
            return None
        folder = self.folder / self.paths["Dense"]
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if "Tanh" not in settings["activation_function"] or settings["in_features"] != settings["out_features"]:
            shape = f"{settings['in_features']} -> {settings['out_features']}, {settings['activation_function']}"
            raise UserError(f"{str(folder)!r}: only a square Dense layer with tanh is supported, got {shape}")
        return load_tensors(folder / "model.safetensors")


def load_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name.

    Raises:
        UserError: if it is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights: dict[str, Tensor] = load_file(str(file))
    except SafetensorError as error:
        raise UserError(f"{str(file)!r} is damaged: {error}; fetch or save it again") from None
    return weights


def write_pooler(folder: Path, weights: dict[str, Tensor]) -> None:
    """Write the weights of a pooling that has some, in a file of their own."""
    from safetensors.torch import save_file

    save_file({name: value.contiguous() for name, value in weights.items()}, str(folder / POOLER_FILE))


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers' own bars and notices; what matters of them is checked and raised by us."""
    from transformers.utils import logging as hf_logging

    verbosity = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        hf_logging.set_verbosity(verbosity)
        hf_logging.enable_progress_bar()


def load_backbone(transformers: Any, folder: Path, attn_implementation: str | None) -> nn.Module:
    """The transformers encoder in ``folder`` in float32, read from safetensors only and complete."""
    if not (folder / "config.json").is_file():
        raise UserError(f"{str(folder)!r} has no config.json, so it is no transformers checkpoint")
    chosen = {} if attn_implementation is None else {"attn_implementation": attn_implementation}
    try:
        with quiet_transformers():
            backbone, info = transformers.AutoModel.from_pretrained(
                folder, dtype=torch.float32, use_safetensors=True, local_files_only=True, output_loading_info=True,
                ignore_mismatched_sizes=True, **chosen)  # a mismatch is refused below, by the tensor's name
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"{str(folder)!r} can't be loaded as a safetensors encoder: {reason}") from None
    except Exception as error:
        if type(error).__name__ != "SafetensorError":
            raise
        raise UserError(f"the weights in {str(folder)!r} are damaged: {error}; fetch or save them again") from None
    mismatched = sorted(key if isinstance(key, str) else str(key[0]) for key in info["mismatched_keys"])
    if mismatched:
        raise UserError(f"the weights in {str(folder)!r} have other sizes than config.json says: {len(mismatched)} "
                        f"tensors ({mismatched[0]}, ...); config.json and the weights do not belong together")
    missing = sorted(key for key in info["missing_keys"] if "pooler." not in key and "position_ids" not in key)
    if missing:
        raise UserError(f"the weights in {str(folder)!r} lack {len(missing)} tensors of {backbone.config.model_type} "
                        f"({missing[0]}, ...); config.json and the weights do not belong together")
    return backbone  # type: ignore[no-any-return]


def load_tokenizer(transformers: Any, folder: Path, max_seq_length: int | None) -> Tokenizer:
    """The tokenizer in ``folder``, converted by transformers where there is a vocabulary but no tokenizer.json."""
    if (folder / "tokenizer.json").is_file():
        return Tokenizer.load(folder, max_seq_length)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True).save_pretrained(scratch)
        except (OSError, ValueError) as error:
            raise UserError(f"{str(folder)!r} has no usable tokenizer: {str(error).splitlines()[0]}") from None
        return Tokenizer.load(scratch, max_seq_length)


def write_modules(folder: Path, pooling: str, dim: int, max_seq_length: int, has_head: bool, truncated: bool = False,
                  first_output_is_pooled_from: bool = False) -> None:
    """Write the sentence-transformers files in the legacy schema, the one every reader understands.

    What these files can't say (layer attention, the vector's cut) leaves the pooling module out: a reader then fails
    where it would return other vectors.

    Args:
        dim: width of the pooled vector, before it is cut.
        truncated: the vector is cut after pooling.
        first_output_is_pooled_from: the folder is read through an ONNX graph whose first output holds the states that
            the trained pooler reads, so a plain mean over them is right for every mean pooler.
    """
    kind = pooling.split("_")[0].replace("concat", "mean")
    plain = pooling in ("cls", "mean_last", "max_last")
    known = (plain or first_output_is_pooled_from) and pooling not in TRAINED_POOLINGS and not truncated
    modules = [("Transformer", "")]
    if known:
        modules.append(("Pooling", "1_Pooling"))
        (folder / "1_Pooling").mkdir(exist_ok=True)
        write_json(folder / "1_Pooling" / "config.json", {
            "word_embedding_dimension": dim,
            "pooling_mode_cls_token": kind == "cls",
            "pooling_mode_mean_tokens": kind == "mean",
            "pooling_mode_max_tokens": kind == "max",
            "pooling_mode_mean_sqrt_len_tokens": False,
        })
    if has_head:
        modules.append(("Dense", "2_Dense"))
        (folder / "2_Dense").mkdir(exist_ok=True)
        write_json(folder / "2_Dense" / "config.json", {
            "in_features": dim, "out_features": dim, "bias": True,
            "activation_function": "torch.nn.modules.activation.Tanh",
        })
    normalize = f"{len(modules)}_Normalize"
    modules.append(("Normalize", normalize))
    (folder / normalize).mkdir(exist_ok=True)
    write_json(folder / "modules.json", [
        {"idx": index, "name": str(index), "path": path, "type": _ST + kind}
        for index, (kind, path) in enumerate(modules)
    ])
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_seq_length, "do_lower_case": False})
    write_json(folder / "config_sentence_transformers.json", {
        "__version__": {"sentence_transformers": "2.0.0", "transformers": "4.6.1", "pytorch": "1.8.1"},
        "prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine",
    })
