"""Hidden-state and attention-relation losses: by hand, against transformers' own outputs, and what they refuse."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from distilface.config import load_config
from distilface.distillation import DistillConfig
from distilface.distillation.objective import DistillObjective
from distilface.distillation.run import load_student
from distilface.distillation.tokens import TokenLosses, token_losses
from distilface.encoder import SentenceEncoder
from distilface.errors import UserError
from distilface.losses import hidden_distance, relation_divergence
from distilface.training.trainer import PooledEncoder
from tests.tiny import ARCHITECTURES, CORPUS, tiny_checkpoint

MASK = torch.tensor([[1, 1], [1, 0]])


def test_hidden_distance_by_hand() -> None:
    student = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[0.0, 0.0], [9.0, 9.0]]])
    teacher = torch.tensor([[[1.0, 0.0], [3.0, 4.0]], [[3.0, 1.0], [0.0, 0.0]]])
    # text 1: squares 0 4 0 0 over 2 tokens of 2 dimensions; text 2: 9 1, its second token is padding
    assert hidden_distance(student, teacher, MASK).tolist() == [1.0, 5.0]


def _relations(states: NDArray[np.float64], heads: int) -> list[list[list[float]]]:
    """MiniLMv2's distributions of one text without padding, ``[heads][s][s]``, by plain loops."""
    width = states.shape[1] // heads
    found = []
    for head in range(heads):
        piece = states[:, head * width : (head + 1) * width]
        rows = []
        for query in piece:
            scores = [math.exp(sum(a * b for a, b in zip(query, key, strict=True)) / math.sqrt(width)) for key in piece]
            rows.append([score / sum(scores) for score in scores])
        found.append(rows)
    return found


def _divergence(student: NDArray[np.float64], teacher: NDArray[np.float64], heads: int) -> float:
    parts = [sum(p * math.log(p / q) for p, q in zip(theirs, ours, strict=True))
             for pair in zip(_relations(teacher, heads), _relations(student, heads), strict=True)
             for theirs, ours in zip(*pair, strict=True)]
    return sum(parts) / len(parts)


def test_relation_divergence_by_plain_loops() -> None:
    random = np.random.default_rng(0)
    student, teacher = random.normal(size=(2, 5, 4)), random.normal(size=(2, 5, 8))
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    found = relation_divergence(*map(torch.from_numpy, (student, teacher, mask)), heads=2)
    wanted = [_divergence(student[row, :length], teacher[row, :length], 2) for row, length in enumerate((5, 3))]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert min(wanted) > 0.01
    same = torch.from_numpy(teacher)
    np.testing.assert_allclose(relation_divergence(same, same, torch.from_numpy(mask), heads=4), 0, atol=1e-7)


def _configured(teacher: Path, *sets: str) -> DistillConfig:
    return load_config(DistillConfig, sets=[f"teacher.name={teacher}", "data.path=t.txt", "loss.cosine=0", *sets])


def _feed(encoder: SentenceEncoder, texts: list[str]) -> list[torch.Tensor]:
    feed = encoder.tokenizer.pad(encoder.tokenizer.encode_batch(texts))
    return [torch.from_numpy(feed[name]) for name in ("input_ids", "attention_mask")]


QUERIES = {"distilbert": "transformer.layer.{}.attention.{}_lin", "mpnet": "encoder.layer.{}.attention.attn.{}"}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_costs_equal_transformers_own_outputs(tmp_path: Path, architecture: str) -> None:
    folder = tiny_checkpoint(tmp_path / "teacher", architecture, layers=4)
    config = _configured(folder, "student.keep_layers=[0, 2]", "loss.hidden=1", "loss.attention=1")
    student = load_student(config.student).eval()
    losses = token_losses(config, student, CORPUS)
    assert losses is not None and not list(losses.parameters())
    texts = CORPUS[:3]
    student.pooled(*_feed(student, texts))
    found = losses().detach().numpy()
    whole = transformers.AutoModel.from_pretrained(folder).eval()
    for row, text in enumerate(texts):  # alone, so without padding
        ids, mask = _feed(student, [text])
        with torch.no_grad():
            ours = student.hidden_states(ids, mask)
            theirs = whole(ids, mask, output_hidden_states=True).hidden_states
            hidden = [((ours[mine + 1] - theirs[its + 1]) ** 2).mean() for mine, its in ((0, 0), (1, 2))]
            relations = []
            for name in (("q", "k", "v") if architecture in QUERIES else ("query", "key", "value")):
                where = QUERIES.get(architecture, "encoder.layer.{}.attention.self.{}")
                mine = student.backbone.get_submodule(where.format(1, name))(ours[1])
                its = whole.get_submodule(where.format(2, name))(theirs[2])
                relations.append(_divergence(mine[0].double().numpy(), its[0].double().numpy(), 4))
        np.testing.assert_allclose(found[row], [np.mean(hidden), np.mean(relations)], rtol=1e-3)


def test_a_text_costs_the_same_in_any_batch_and_only_the_student_learns(tmp_path: Path) -> None:
    folder = tiny_checkpoint(tmp_path / "teacher", layers=3)
    config = _configured(folder, "student.layers=2", "loss.hidden=1", "loss.attention=1")
    student = load_student(config.student).eval()
    losses = token_losses(config, student, CORPUS)
    assert losses is not None
    objective = DistillObjective.create(config.loss, None, student, CORPUS, 0, losses)
    model = PooledEncoder(student, objective.projection).train()
    assert not losses._teacher[0].training and not [name for name in model.state_dict() if "teacher" in name]
    model.eval()
    together = model(*_feed(student, CORPUS))
    alone = torch.cat([model(*_feed(student, [text])) for text in CORPUS])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    loss = objective([together], {})
    assert loss.item() == pytest.approx(together[:, -2:].mean(dim=0).sum().item())
    loss.backward()
    assert student.backbone.embeddings.word_embeddings.weight.grad is not None
    assert all(parameter.grad is None for parameter in losses._teacher[0].parameters())


def test_unlike_widths_meet_in_a_fitted_map(tmp_path: Path) -> None:
    teacher = tiny_checkpoint(tmp_path / "teacher", layers=4, hidden=48)
    other = tiny_checkpoint(tmp_path / "student", layers=2, hidden=32)
    config = _configured(teacher, f"student.name={other}", "loss.hidden=1", "loss.attention=1")
    student = load_student(config.student).eval()
    losses = token_losses(config, student, CORPUS)
    assert losses is not None and losses.map is not None and losses.map.weight.shape == (48, 32)
    student.pooled(*_feed(student, CORPUS))
    fitted = losses()[:, 0].mean().item()
    torch.nn.init.zeros_(losses.map.weight)
    assert fitted < 0.8 * losses()[:, 0].mean().item()  # better than the best constant without a map


@pytest.mark.parametrize("caching", [False, True])
def test_chunks_and_cached_gradients_change_nothing(tmp_path: Path, caching: bool) -> None:
    teacher = tiny_checkpoint(tmp_path / "teacher", layers=4, hidden=48)
    other = tiny_checkpoint(tmp_path / "student", layers=2, dropout=0.0)
    config = _configured(teacher, f"student.name={other}", "loss.hidden=1", "loss.attention=1")
    gradients = []
    for chunk_tokens in (None, 40):
        student = load_student(config.student).train()
        losses = token_losses(config, student, CORPUS)
        objective = DistillObjective.create(config.loss, None, student, CORPUS, 0, losses)
        model = PooledEncoder(student, objective.projection, chunk_tokens, caching)
        objective([model(*_feed(student, CORPUS))], {}).backward()
        gradients.append({name: item.grad for name, item in model.named_parameters() if item.grad is not None})
    assert gradients[0].keys() == gradients[1].keys() and "projection.tokens.map.weight" in gradients[0]
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "sets", "expected"), [
    ("teacher", ["student.layers=2"], [1, 3]), ("teacher", ["student.keep_layers=[3, 0]"], [0, 3]),
    ("other", [], [1, 3]), ("teacher", ["student.layers=2", "loss.layer_map=[2, 0]"], [2, 0]),
])
def test_which_layer_stands_for_which(tmp_path: Path, name: str, sets: list[str], expected: list[int]) -> None:
    teacher = tiny_checkpoint(tmp_path / "teacher", layers=4)
    tiny_checkpoint(tmp_path / "other", layers=2)
    config = _configured(teacher, f"student.name={tmp_path / name}", "loss.hidden=1", *sets)
    losses = token_losses(config, load_student(config.student), CORPUS)
    assert losses is not None and list(losses._layer_map) == expected


@pytest.mark.parametrize(("sets", "named"), [
    (["student.layers=2", "loss.layer_map=[0]"], r"layer_map names 1 of the teacher's layers, and the student has 2"),
    (["student.layers=1", "loss.layer_map=[4]"], r"layer_map names layer 4; the teacher has layers 0 to 3"),
    (["student.layers=1", "loss.attention_heads=3"], r"into 3 heads, but .* are 32 and 32; set loss\.attention_heads"),
    (["student.name={deep}"], r"student has 5 layers and the teacher 4"),
    (["student.name={roberta}"], r"loss\.attention compares token by token.*tokenizers; set loss\.attention=0"),
    (["student.name={upper}"], r"different tokenizers"),
    (["student.name={long}", "train.max_length=100"], r"max_length 100 is over the 64 positions of"),
])
def test_what_can_not_be_compared(tmp_path: Path, sets: list[str], named: str) -> None:
    teacher = tiny_checkpoint(tmp_path / "teacher", layers=4)
    folders = {"deep": tiny_checkpoint(tmp_path / "deep", layers=5),
               "roberta": tiny_checkpoint(tmp_path / "roberta", "roberta", layers=2),
               "long": tiny_checkpoint(tmp_path / "long", layers=2, max_length=128),
               "upper": tiny_checkpoint(tmp_path / "upper", layers=2)}
    _keep_case(folders["upper"])
    config = _configured(teacher, "loss.attention=1", *(item.format(**folders) for item in sets))
    with pytest.raises(UserError, match=named) as caught:
        token_losses(config, load_student(config.student), ["Turn on the light", *CORPUS])
    assert "\n" not in str(caught.value)


def _keep_case(folder: Path) -> None:
    """The same words, but capitals are no longer turned to small letters."""
    file = folder / "tokenizer.json"
    text = file.read_text(encoding="utf-8")
    assert '"lowercase": true' in text
    file.write_text(text.replace('"lowercase": true', '"lowercase": false'), encoding="utf-8")


def test_a_bundle_shows_no_layers(checkpoint: Path, tiny_bundle: Path) -> None:
    config = _configured(tiny_bundle, f"student.name={checkpoint}", "loss.hidden=1")
    with pytest.raises(UserError, match=r"loss\.hidden needs the states of every layer.*returns those of the last"):
        token_losses(config, SentenceEncoder.load(checkpoint), CORPUS)
    assert token_losses(_configured(tiny_bundle, f"student.name={checkpoint}", "loss.cosine=1"),
                        SentenceEncoder.load(checkpoint), CORPUS) is None


def test_what_is_saved_is_what_is_trained(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tiny_checkpoint(tmp_path / "teacher", layers=2)
    config = _configured(folder, "student.layers=1", "loss.hidden=1")
    student = load_student(config.student)
    losses: Any = token_losses(config, student, CORPUS)
    assert isinstance(losses, TokenLosses)
    projection = DistillObjective.create(config.loss, None, student, CORPUS, 0, losses).projection
    assert projection is not None
    save_file(projection.state_dict(), tmp_path / "p.safetensors")  # nothing, and that can be read again
    projection.load_state_dict(load_file(tmp_path / "p.safetensors"))
