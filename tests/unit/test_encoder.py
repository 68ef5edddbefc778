"""The torch encoder: what it reads, what it refuses, and that others read what it writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray
from torch.nn import functional

from distilface.encoder import SentenceEncoder
from distilface.errors import UserError
from distilface.tokenizer import Tokenizer
from tests.tiny import ARCHITECTURES, tiny_checkpoint

TEXTS = ["turn on the light in the kitchen", "Hello, World!", "", "is the front door locked 0123456789", "a",
         "play some quiet music " * 6]


def _json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _write(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value), encoding="utf-8")


def _saved(encoder: SentenceEncoder, folder: Path) -> Path:
    folder.mkdir()
    encoder.save(folder)
    return folder


def _refused(folder: Path, **arguments: Any) -> str:
    with pytest.raises(UserError) as caught:
        SentenceEncoder.load(folder, **arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def _reference(folder: Path, texts: list[str]) -> NDArray[np.float32]:
    """Mean pooling written down with transformers alone, one text at a time, so nothing is padded."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = Tokenizer.load(folder)
    with torch.inference_mode():
        rows = [model(input_ids=torch.tensor([row])).last_hidden_state[0].mean(dim=0)
                for row in tokenizer.encode_batch(texts)]
    return functional.normalize(torch.stack(rows), dim=-1).numpy()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_vectors_are_the_unpadded_mean_of_transformers(tmp_path: Path, architecture: str) -> None:
    folder = tiny_checkpoint(tmp_path / architecture, architecture, layers=2)
    encoder = SentenceEncoder.load(folder)
    vectors = encoder.encode(TEXTS)
    np.testing.assert_allclose(vectors, _reference(folder, TEXTS), atol=2e-6)
    assert (encoder.dim, encoder.max_seq_length, encoder.pooling, encoder.num_layers) == (32, 64, "mean_last", 2)
    assert encoder.takes_token_types == (architecture == "bert")


def test_a_vector_has_unit_length_and_ignores_padding(checkpoint: Path) -> None:
    encoder = SentenceEncoder.load(checkpoint)
    (row,) = encoder.tokenizer.encode_batch(["Hello, World!"])
    ids, mask = torch.zeros(2, 1, 64, dtype=torch.int64)
    ids[0, : len(row)], mask[0, : len(row)] = torch.tensor(row), 1
    with torch.inference_mode():
        states, vector = encoder(torch.tensor([row]), torch.ones(1, len(row), dtype=torch.int64))
        wide_states, padded = encoder(ids, mask)
    assert vector.shape == padded.shape == (1, 32)
    assert abs(float(vector.norm()) - 1) < 1e-5 and abs(float(padded.norm()) - 1) < 1e-5
    assert float(functional.cosine_similarity(vector, padded)) >= 0.999999
    # The same check fails for what consumers get wrong, so it can fail.
    assert float(functional.cosine_similarity(vector, wide_states.mean(dim=1))) < 0.999
    assert float(functional.cosine_similarity(vector, states[:, 0])) < 0.999


def test_encode_keeps_order_mode_and_type(checkpoint: Path) -> None:
    encoder = SentenceEncoder.load(checkpoint)
    together = encoder.encode(TEXTS, batch_tokens=64)
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=1e-6)
    assert together.dtype == np.float32
    assert encoder.encode([]).shape == (0, 32)
    with pytest.raises(TypeError, match="index 0"):
        encoder.encode([None])  # type: ignore[list-item]
    assert np.isfinite(encoder.encode(["", "   ", "\x00", "\u200b", "😀", "[SEP]", "\ud83d"])).all()
    encoder.train()
    np.testing.assert_allclose(encoder.encode(TEXTS), together, atol=1e-6)  # dropout is off
    assert encoder.training


def test_over_long_text_equals_its_truncated_form(checkpoint: Path) -> None:
    encoder = SentenceEncoder.load(checkpoint, max_seq_length=10)
    np.testing.assert_allclose(*encoder.encode(["light " * 8, "light " * 500]), atol=1e-6)


def test_dropout_gives_two_views_in_training_and_one_in_evaluation(checkpoint: Path) -> None:
    encoder = SentenceEncoder.load(checkpoint)
    feed = {name: torch.from_numpy(array) for name, array in
            encoder.tokenizer.pad(encoder.tokenizer.encode_batch(["Hello, World!"] * 2)).items()}
    first, second = encoder.pooled(**feed).detach()
    assert float((first - second).abs().max()) < 1e-6
    first, second = encoder.train().pooled(**feed).detach()
    assert float((first - second).abs().max()) > 1e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_half_precision_checkpoint_is_loaded_as_float32(checkpoint: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    folder = Path(shutil.copytree(checkpoint, tmp_path / "half"))
    transformers.AutoModel.from_pretrained(checkpoint).to(dtype).save_pretrained(folder)
    assert str(dtype).removeprefix("torch.") in (folder / "config.json").read_text(encoding="utf-8")
    encoder = SentenceEncoder.load(folder)
    assert {tensor.dtype for tensor in encoder.parameters()} == {torch.float32}
    original = SentenceEncoder.load(checkpoint).encode(TEXTS)
    assert float((encoder.encode(TEXTS) * original).sum(axis=1).min()) > 0.999


def test_berts_own_pooler_is_not_trained(tmp_path: Path) -> None:
    encoder = SentenceEncoder.load(tiny_checkpoint(tmp_path / "bert", "bert", layers=1))
    frozen = {name for name, tensor in encoder.backbone.named_parameters() if not tensor.requires_grad}
    assert frozen == {"pooler.dense.weight", "pooler.dense.bias"}


# ----------------------------------------------------------------- save and load


@pytest.mark.parametrize(("pooling", "dim"), [("cls", 32), ("max", 32), ("first_last", 32), ("mean_all", 32)])
def test_a_saved_checkpoint_is_read_back_whole(checkpoint: Path, tmp_path: Path, pooling: str, dim: int) -> None:
    encoder = SentenceEncoder.load(checkpoint, pooling, max_seq_length=20, head="kept")
    again = SentenceEncoder.load(_saved(encoder, tmp_path / "saved"))
    assert (again.pooling, again.max_seq_length, again.dim, again.head_mode) == (encoder.pooling, 20, dim, "kept")
    np.testing.assert_array_equal(again.encode(TEXTS), encoder.encode(TEXTS))


def test_a_training_head_takes_part_in_training_and_is_not_saved(checkpoint: Path, tmp_path: Path) -> None:
    plain = SentenceEncoder.load(checkpoint)
    headed = SentenceEncoder.load(checkpoint, head="train_only")
    np.testing.assert_array_equal(headed.encode(TEXTS), plain.encode(TEXTS))
    feed = {name: torch.from_numpy(array) for name, array in plain.tokenizer.pad([[2, 7, 3]]).items()}
    assert headed.head is not None
    torch.testing.assert_close(headed.pooled(**feed), torch.tanh(headed.head.linear(plain.pooled(**feed))))
    saved = _saved(headed, tmp_path / "saved")
    assert not list(saved.glob("*_Dense"))
    assert SentenceEncoder.load(saved).head is None


def test_one_limit_in_every_file(checkpoint: Path, tmp_path: Path) -> None:
    saved = _saved(SentenceEncoder.load(checkpoint, max_seq_length=20), tmp_path / "saved")
    assert _json(saved / "sentence_bert_config.json") == {"max_seq_length": 20, "do_lower_case": False}
    assert _json(saved / "tokenizer_config.json")["model_max_length"] == 20
    assert _json(saved / "tokenizer.json")["truncation"]["max_length"] == 20
    assert _json(saved / "distilface.json")["max_seq_length"] == 20


def test_the_files_are_in_the_schema_every_reader_knows(checkpoint: Path, tmp_path: Path) -> None:
    saved = _saved(SentenceEncoder.load(checkpoint, "cls"), tmp_path / "saved")
    assert [module["type"] for module in _json(saved / "modules.json")] == [
        f"sentence_transformers.models.{kind}" for kind in ("Transformer", "Pooling", "Normalize")]
    pooling = _json(saved / "1_Pooling" / "config.json")
    assert [mode for mode, on in pooling.items() if on is True] == ["pooling_mode_cls_token"]
    assert pooling["word_embedding_dimension"] == 32
    assert not list(saved.rglob("*.bin"))


@pytest.mark.parametrize(("pooling", "head"), [
    ("cls", "none"), ("mean_last", "none"), ("max_last", "none"), ("mean_last", "kept")])
def test_sentence_transformers_gives_the_same_vectors(
        checkpoint: Path, tmp_path: Path, pooling: str, head: Any) -> None:
    library = pytest.importorskip("sentence_transformers")
    encoder = SentenceEncoder.load(checkpoint, pooling, head=head)
    peer = library.SentenceTransformer(str(_saved(encoder, tmp_path / "saved")), device="cpu")
    np.testing.assert_allclose(peer.encode(TEXTS), encoder.encode(TEXTS), atol=2e-6)
    assert peer.max_seq_length == 64


@pytest.mark.parametrize("pooling", ["mean_first_last", "max_last2", "mean_all"])
def test_a_pooling_sentence_transformers_does_not_know_fails_there(
        checkpoint: Path, tmp_path: Path, pooling: str) -> None:
    library = pytest.importorskip("sentence_transformers")
    saved = _saved(SentenceEncoder.load(checkpoint, pooling), tmp_path / "saved")
    with pytest.raises((KeyError, ValueError, TypeError)):
        library.SentenceTransformer(str(saved), device="cpu").encode(TEXTS)


@pytest.mark.parametrize(("mode", "name"), [("cls", "cls"), ("mean", "mean_last"), ("max", "max_last")])
def test_a_folder_of_sentence_transformers_is_read(checkpoint: Path, tmp_path: Path, mode: str, name: str) -> None:
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers import models

    SentenceEncoder.load(checkpoint).save(tmp_path / "ours")  # which tells transformers 4 of no token types
    transformer = models.Transformer(str(tmp_path / "ours"), max_seq_length=24)
    width = transformer.get_embedding_dimension() if hasattr(transformer, "get_embedding_dimension") else 32
    peer = library.SentenceTransformer(
        modules=[transformer, models.Pooling(width, pooling_mode=mode), models.Normalize()], device="cpu")
    peer.save(str(tmp_path / "theirs"))
    encoder = SentenceEncoder.load(tmp_path / "theirs")
    assert (encoder.pooling, encoder.max_seq_length) == (name, 24)
    np.testing.assert_allclose(encoder.encode(TEXTS), peer.encode(TEXTS), atol=2e-6)


def test_the_packaged_minilm_is_read_with_its_own_settings(minilm: Path) -> None:
    encoder = SentenceEncoder.load(minilm)
    assert (encoder.pooling, encoder.max_seq_length, encoder.dim, encoder.num_layers) == ("mean_last", 256, 384, 6)


# ----------------------------------------------------------------- what is refused


def test_missing_tensors(checkpoint: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = Path(shutil.copytree(checkpoint, tmp_path / "holed"))
    weights = load_file(folder / "model.safetensors")
    gone = [name for name in weights if name.endswith("layer.1.ffn.lin1.weight")]
    assert len(gone) == 1
    del weights[gone[0]]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    text = _refused(folder)
    assert "lack 1 tensors" in text and "lin1.weight" in text


def test_weights_of_another_size(checkpoint: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint, tmp_path / "other"))
    _write(folder / "config.json", _json(folder / "config.json") | {"hidden_dim": 64})
    text = _refused(folder)
    assert str(folder) in text and "ffn.lin" in text


def test_weights_that_only_pickle_could_read(checkpoint: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint, tmp_path / "pickled"))
    weights = transformers.AutoModel.from_pretrained(checkpoint).state_dict()
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    text = _refused(folder)
    assert "safetensors" in text and str(folder) in text


def test_damaged_weights(checkpoint: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint, tmp_path / "cut"))
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    assert str(folder) in _refused(folder)


def test_a_folder_that_is_no_checkpoint(tmp_path: Path) -> None:
    assert "config.json" in _refused(tmp_path)


def test_a_limit_over_the_positions(checkpoint: Path) -> None:
    text = _refused(checkpoint, max_seq_length=65)
    assert "65" in text and "64 positions" in text


@pytest.mark.parametrize("limit", [0, -1, 2])
def test_a_limit_without_room_for_text(checkpoint: Path, limit: int) -> None:
    assert f"max_seq_length {limit}" in _refused(checkpoint, max_seq_length=limit)


@pytest.mark.parametrize("architecture", ["roberta", "xlm-roberta", "mpnet"])
def test_positions_that_start_after_the_padding_id(tmp_path: Path, architecture: str) -> None:
    folder = tiny_checkpoint(tmp_path / architecture, architecture, layers=1)
    assert "64 positions" in _refused(folder, max_seq_length=65)
    encoder = SentenceEncoder.load(folder)
    assert np.isfinite(encoder.encode(["word " * 300])).all()  # 64 tokens run


def test_a_declared_limit_over_the_positions_is_cut(checkpoint: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint, tmp_path / "long"))
    _write(folder / "sentence_bert_config.json", {"max_seq_length": 512})
    assert SentenceEncoder.load(folder).max_seq_length == 64


def test_an_unknown_pooling_head_and_too_few_layers(checkpoint: Path) -> None:
    assert "'median'" in _refused(checkpoint, pooling="median")
    assert "'maybe'" in _refused(checkpoint, head="maybe")
    assert "2 and the embedding output" in _refused(checkpoint, pooling="last4")


def test_a_head_that_was_trained_for_another_pooling(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "four", layers=4)
    saved = _saved(SentenceEncoder.load(folder, "concat_last4", head="kept"), tmp_path / "saved")
    text = _refused(saved, pooling="mean")
    assert "head" in text and "'concat_last4'" in text


def _edited(checkpoint: Path, folder: Path, modules: list[str], **files: Any) -> Path:
    saved = _saved(SentenceEncoder.load(checkpoint), folder)
    (saved / "distilface.json").unlink()
    _write(saved / "modules.json", [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(item.split("/") for item in modules)])
    for name, value in files.items():
        (saved / name).mkdir(exist_ok=True)
        _write(saved / name / "config.json", value)
    return saved


def test_modules_that_would_be_ignored_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    saved = _edited(checkpoint, tmp_path / "s", ["/Transformer", "1_Pooling/Pooling", "2_LayerNorm/LayerNorm"])
    assert "LayerNorm" in _refused(saved)


@pytest.mark.parametrize("modes", [
    {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, {"pooling_mode_mean_sqrt_len_tokens": True}, {},
    {"pooling_mode": "lasttoken"}])
def test_poolings_of_sentence_transformers_that_are_not_ours(
        checkpoint: Path, tmp_path: Path, modes: dict[str, Any]) -> None:
    saved = _edited(checkpoint, tmp_path / "s", ["/Transformer", "1_Pooling/Pooling"], **{"1_Pooling": modes})
    assert "pools with" in _refused(saved)
    assert SentenceEncoder.load(saved, pooling="cls").pooling == "cls"


@pytest.mark.parametrize("change", [{"activation_function": "torch.nn.modules.linear.Identity"}, {"out_features": 16}])
def test_a_dense_module_that_is_no_tanh_head(checkpoint: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    dense = {"in_features": 32, "out_features": 32, "activation_function": "torch.nn.modules.activation.Tanh"} | change
    saved = _edited(checkpoint, tmp_path / "s", ["/Transformer", "1_Pooling/Pooling", "2_Dense/Dense"],
                    **{"2_Dense": dense})
    assert "square Dense layer with tanh" in _refused(saved)
