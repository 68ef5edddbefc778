"""Losses, projections, cache and configuration of distillation, on numbers small enough to check."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distilface.config import load_config
from distilface.data import DataSource
from distilface.distillation import DistillConfig
from distilface.distillation.config import DistillLossConfig, TeacherConfig
from distilface.distillation.objective import DistillObjective
from distilface.distillation.projection import fitted_projection, pooled_vectors, reduction, unit
from distilface.distillation.run import load_student
from distilface.distillation.teacher import cache_file, compute, identity, open_cached
from distilface.encoder import SentenceEncoder
from distilface.errors import GateError, UserError
from distilface.losses import (
    cosine_distance,
    distribution_cross_entropy,
    info_nce,
    similarity_mse,
    squared_distance,
)
from tests.tiny import CORPUS

BASE = ["teacher.name=t", "student.name=s", "data.path=text.txt"]

# Cosines of student and teacher by row: 1, 0.8; among the students 0.6, among the teachers 0.
STUDENT = torch.tensor([[2.0, 0.0], [0.6, 0.8]])
TEACHER = torch.tensor([[1.0, 0.0], [0.0, 5.0]])


def test_distances_by_hand() -> None:
    assert cosine_distance(STUDENT, TEACHER).item() == pytest.approx((0 + 0.2) / 2)
    assert squared_distance(STUDENT, TEACHER).item() == pytest.approx((1 + 0.36 + 4.2**2) / 2)
    assert similarity_mse(STUDENT, TEACHER).item() == pytest.approx(0.36)


def test_similarities_need_no_common_width() -> None:
    wide = torch.tensor([[0.0, 3.0, 0.0], [0.0, 3.0, 4.0]])  # cosine 0.6
    assert similarity_mse(STUDENT, wide).item() == pytest.approx(0, abs=1e-12)


def test_distribution_by_hand() -> None:
    queue = torch.tensor([[4.0, 0.0], [0.0, 1.0]])
    # Student cosines: (1, 0) and (0.6, 0.8); teacher cosines: (1, 0) and (0, 1); temperatures 0.5 and 1.
    ours = [_softmax(1 / 0.5, 0 / 0.5), _softmax(0.6 / 0.5, 0.8 / 0.5)]
    theirs = [_softmax(1, 0), _softmax(0, 1)]
    divergence = [sum(p * math.log(p / q) for p, q in zip(*pair, strict=True))
                  for pair in zip(theirs, ours, strict=True)]
    loss = distribution_cross_entropy(STUDENT, TEACHER, queue, temperature=0.5, teacher_temperature=1.0)
    assert loss.item() == pytest.approx(sum(divergence) / 2, abs=1e-6)
    assert distribution_cross_entropy(TEACHER, TEACHER, queue).item() == pytest.approx(0, abs=1e-6)


def _softmax(first: float, second: float) -> tuple[float, float]:
    share = math.exp(first) / (math.exp(first) + math.exp(second))
    return share, 1 - share


def test_equals_sentence_transformers() -> None:
    losses = pytest.importorskip("sentence_transformers.losses")
    torch.manual_seed(0)
    student, teacher = torch.randn(2, 6, 16)

    class Fixed(torch.nn.Module):
        def forward(self, _: Any) -> dict[str, torch.Tensor]:
            return {"sentence_embedding": student}

    theirs = losses.MSELoss(Fixed())([{}], teacher)  # the mean over dimensions, too
    assert squared_distance(student, teacher).item() == pytest.approx(16 * float(theirs), rel=1e-5)


@pytest.mark.parametrize("loss", [cosine_distance, squared_distance, similarity_mse])
def test_float32_under_autocast(loss: Any) -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(2, 8, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = loss(student, teacher)
    assert found.dtype == torch.float32 and found.item() == pytest.approx(loss(student, teacher).item(), rel=1e-6)


def test_reduction_keeps_products_and_turns_towards_the_student() -> None:
    random = np.random.default_rng(0)
    low = random.normal(size=(60, 4)).astype(np.float32)
    teacher = unit(low @ np.linalg.qr(random.normal(size=(9, 4)))[0].T.astype(np.float32))  # of rank 4
    rotation = np.linalg.qr(random.normal(size=(4, 4)))[0]
    student = unit(low @ rotation)
    reduce, kept = reduction(teacher, student.astype(np.float32))
    np.testing.assert_allclose(reduce.T @ reduce, np.eye(4), atol=1e-5)
    assert kept == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(teacher @ reduce, student, atol=1e-4)  # only a rotation apart: found exactly
    noisy = unit(random.normal(size=(200, 9)))
    reduce, kept = reduction(noisy, unit(random.normal(size=(200, 4))))
    values = np.sort(np.linalg.svd(noisy, compute_uv=False) ** 2)[::-1]
    assert kept == pytest.approx(values[:4].sum() / values.sum(), rel=1e-5)
    assert (np.linalg.norm(noisy @ reduce, axis=1) ** 2).mean() == pytest.approx(kept, rel=1e-4)


def test_projection_is_fitted() -> None:
    random = np.random.default_rng(0)
    student = random.normal(size=(50, 3)).astype(np.float32)
    true = random.normal(size=(3, 5)).astype(np.float32)
    linear = fitted_projection(student, student @ true, ridge=1e-9)
    np.testing.assert_allclose(linear.weight.detach().numpy(), true.T, atol=1e-4)
    few = fitted_projection(student[:2], (student @ true)[:2])  # fewer texts than dimensions
    assert torch.isfinite(few.weight).all()


def test_pooled_vectors_are_those_of_the_loss(checkpoint: Path) -> None:
    encoder = SentenceEncoder.load(checkpoint, head="train_only").train()
    found = pooled_vectors(encoder, CORPUS, batch_tokens=30)
    assert encoder.training
    encoder.eval()
    for text, vector in zip(CORPUS, found, strict=True):
        feed = encoder.tokenizer.pad(encoder.tokenizer.encode_batch([text]))
        alone = encoder.pooled(*(torch.from_numpy(feed[name]) for name in ("input_ids", "attention_mask")))
        np.testing.assert_allclose(vector, alone[0].detach().numpy(), atol=1e-5)


def _objective(vectors: Any, width: int, **settings: Any) -> DistillObjective:
    return DistillObjective(DistillLossConfig(**settings), vectors, width, seed=7)


def test_the_objective_is_the_weighted_sum() -> None:
    random = np.random.default_rng(0)
    vectors = random.normal(size=(10, 4)).astype(np.float32)
    objective = _objective(vectors, 4, cosine=0.5, mse=0.1, similarity=2.0, distribution=0.3, teacher_contrast=0.7,
                           contrastive=0.2, queue=6, temperature=0.1, matryoshka=(4, 2))
    numbers = np.array([[0, 1], [2, 3], [4, 5]])
    batch = objective.inputs(numbers, 3)
    columns = list(torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)))
    batch["exclude"] = torch.zeros(3, 3, dtype=torch.bool)
    student, teacher = torch.cat(columns), torch.from_numpy(unit(vectors[[0, 2, 4, 1, 3, 5]]))
    torch.testing.assert_close(batch["teacher"], teacher)
    queue = batch["queue"]
    by_hand = sum(
        0.5 * cosine_distance(student[:, :dim], teacher[:, :dim])
        + 0.1 * squared_distance(student[:, :dim], teacher[:, :dim])  # a prefix of a perfect vector costs nothing
        + 0.3 * distribution_cross_entropy(student[:, :dim], teacher[:, :dim], queue[:, :dim])
        + 0.7 * info_nce(student[:, :dim], teacher[:, :dim], queue[:, :dim], temperature=0.1, exclude=batch["own"])
        + 2.0 * similarity_mse(student[:, :dim], teacher)
        + 0.2 * info_nce(columns[0][:, :dim], columns[1][:, :dim], temperature=0.1) for dim in (4, 2))
    assert objective(columns, batch).item() == pytest.approx(by_hand.item(), rel=1e-5)


def test_the_queue_is_a_function_of_seed_and_step() -> None:
    vectors = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    one, two = (_objective(vectors, 4, teacher_contrast=1.0, queue=8) for _ in range(2))
    numbers = np.array([[3], [5]])
    first, again, other = one.inputs(numbers, 1), two.inputs(numbers, 1), two.inputs(numbers, 2)
    assert torch.equal(first["queue"], again["queue"]) and not torch.equal(first["queue"], other["queue"])
    assert first["queue"].shape == (8, 4) and len(torch.unique(first["queue"], dim=0)) == 8
    assert _objective(vectors, 4, distribution=1.0, queue=4096).inputs(numbers, 0)["queue"].shape == (50, 4)
    assert "queue" not in _objective(vectors, 4).inputs(numbers, 0)


def test_the_same_text_is_no_negative() -> None:
    vectors = np.eye(5, dtype=np.float32)
    objective = _objective(vectors, 5, teacher_contrast=1.0, queue=5)
    own = objective.inputs(np.array([[0, 1, 2], [3, 0, 4]]), 0)["own"].int().tolist()
    # rows of teacher: 0 3 | 1 0 | 2 4, then the whole queue 0 1 2 3 4
    assert own == [
        [1, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0],  # text 0: itself, its positive 1, text 0 in the other example
        [0, 1, 0, 1, 0, 0, 0, 0, 0, 1, 0],
        [1, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0],
        [1, 1, 0, 1, 0, 0, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0],  # a hard negative is alone
        [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1],
    ]


@pytest.mark.parametrize(("ours", "theirs", "settings", "expected"), [
    (32, 32, {}, "none"), (32, 48, {}, "pca"), (32, 16, {}, "learned"), (32, 48, {"projection": "learned"}, "learned"),
    (32, 48, {"cosine": 0, "similarity": 1}, "none"), (32, 32, {"projection": "pca"}, "pca"),
])
def test_which_projection(checkpoint: Path, ours: int, theirs: int, settings: dict[str, Any], expected: str) -> None:
    vectors = np.random.default_rng(0).normal(size=(len(CORPUS), theirs)).astype(np.float32)
    encoder = SentenceEncoder.load(checkpoint)
    objective = DistillObjective.create(DistillLossConfig(**settings), vectors, encoder, CORPUS, seed=0)
    batch = objective.inputs(np.array([[0], [1], [2]]), 0)
    assert (objective.projection is not None) is (expected == "learned")
    assert batch["teacher"].shape[1] == (ours if expected == "pca" else theirs)
    np.testing.assert_allclose(batch["teacher"].norm(dim=1).numpy(), 1, atol=1e-5)


def test_projections_that_can_not_be(checkpoint: Path) -> None:
    encoder = SentenceEncoder.load(checkpoint)
    vectors = np.ones((len(CORPUS), 16), dtype=np.float32)
    with pytest.raises(UserError, match=r"have 32 dimensions and the teacher's 16, so loss\.cosine"):
        DistillObjective.create(DistillLossConfig(projection="none"), vectors, encoder, CORPUS, seed=0)
    with pytest.raises(UserError, match="use learned"):
        DistillObjective.create(DistillLossConfig(projection="pca"), vectors, encoder, CORPUS, seed=0)


@pytest.mark.parametrize(("sets", "named"), [
    (["teacher.vectors=v.npy"], "name and vectors are both set"),
    (["teacher.name=null"], "name and vectors are both missing"),
    (["teacher.name=null", "teacher.vectors=v.pt"], r"\.npy or a \.parquet"),
    (["teacher.name=null", "teacher.vectors=v.npy", "teacher.pooling=cls"], "pooling is set"),
    (["teacher.texts=a.txt"], "texts says which text"),
    (["teacher.name=null", "teacher.vectors=v.npy", "data.kind=pairs"], r"teacher\.texts is not set"),
    (["student.name=null"], r"student\.name is not set"),
    (["student.layers=2", "student.keep_layers=[0]"], "keep_layers and layers are both set"),
    (["loss.cosine=0"], "every loss has weight 0"),
    (["loss.cosine=0", "loss.contrastive=1"], "run distilface train instead"),
    (["loss.cosine=0", "loss.hidden=1", "loss.matryoshka=[8]"], "matryoshka cuts sentence vectors"),
    (["loss.hidden=1", "teacher.name=null", "teacher.vectors=v.npy"], r"loss\.hidden .* one vector a text"),
    (["loss.attention=1", "teacher.name=null", "teacher.vectors=v.npy"], r"loss\.attention .* one vector a text"),
    (["loss.hidden=1", "teacher.pooling=sif"], r"loss\.hidden .* words alone"),
    (["loss.layer_map=[0]"], "layer_map is set, but hidden and attention"),
    (["loss.hidden=1", "loss.attention_heads=4"], "attention_heads is set, but attention"),
    (["loss.distribution=1", "loss.queue=0"], "queue is 0"),
    (["loss.hiden=1"], "did you mean 'hidden'"),
    (["train.max_length=64", "student.max_seq_length=32"], r"train\.max_length"),
])
def test_contradictions_name_the_key(sets: list[str], named: str) -> None:
    with pytest.raises(UserError, match=named) as caught:
        load_config(DistillConfig, sets=BASE + sets)
    assert "\n" not in str(caught.value)


def test_the_student_is_the_teacher_with_fewer_layers() -> None:
    config = load_config(DistillConfig, sets=["teacher.name=t", "data.path=text.txt", "student.layers=2"])
    assert config.student.name == "t"
    assert DistillConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize("file", sorted((Path(__file__).resolve().parents[2] / "configs" / "distill").glob("*.yaml")),
                         ids=lambda file: file.name)
def test_shipped_configurations(file: Path) -> None:
    config = load_config(DistillConfig, file)
    assert DistillConfig.model_validate(config.model_dump(mode="json")) == config


def test_reading_a_configuration_does_not_import_torch() -> None:
    code = "import sys, distilface.distillation.config, distilface.distillation; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_dropped_layers_keep_weights(tmp_path: Path) -> None:
    from distilface.distillation.config import StudentConfig
    from tests.tiny import tiny_checkpoint

    folder = tiny_checkpoint(tmp_path / "model", "bert", layers=4)
    whole = SentenceEncoder.load(folder, "layer_attention", new_pooler=True)
    (tmp_path / "trained").mkdir()
    whole.save(tmp_path / "trained")
    student = load_student(StudentConfig(name=str(tmp_path / "trained"), keep_layers=(0, 3)))
    assert student.num_layers == 2 and student.backbone.config.num_hidden_layers == 2
    assert torch.equal(student.backbone.encoder.layer[1].output.dense.weight,
                       whole.backbone.encoder.layer[3].output.dense.weight)
    assert torch.equal(student.pooler.state_dict()["key.weight"], whole.pooler.state_dict()["key.weight"])
    with pytest.raises(UserError, match="names layer 4"):
        load_student(StudentConfig(name=str(folder), keep_layers=(0, 4)))


def _cached(teacher: TeacherConfig, texts: list[str], source: str = "unused") -> Any:
    file = cache_file(teacher, identity(teacher), texts)
    compute(teacher, texts, file, DataSource(path=source), "cpu", lambda done, total: None)
    return open_cached(file, len(texts))


def test_vectors_are_cached_by_content(checkpoint: Path, tmp_path: Path) -> None:
    teacher = TeacherConfig(name=str(checkpoint), cache=str(tmp_path / "cache"))
    vectors = _cached(teacher, CORPUS)
    assert isinstance(vectors, np.memmap)
    np.testing.assert_array_equal(vectors, SentenceEncoder.load(checkpoint).encode(CORPUS))
    known = identity(teacher)
    file = cache_file(teacher, known, CORPUS)
    assert file.is_file() and [item.name for item in file.parent.iterdir()] == [file.name]
    copied = TeacherConfig(name=str(_copy(checkpoint, tmp_path / "elsewhere")), cache=teacher.cache)
    assert cache_file(copied, identity(copied), CORPUS) == file  # the same teacher at another place
    others = [cache_file(teacher, known, CORPUS[::-1]), cache_file(teacher, known, [*CORPUS, "more"]),
              cache_file(teacher, known, ["a", "bc"]), cache_file(teacher, known, ["ab", "c"])]
    pooled = TeacherConfig(name=str(checkpoint), pooling="cls", cache=teacher.cache)
    others.append(cache_file(pooled, identity(pooled), CORPUS))
    weights = tmp_path / "elsewhere" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    others.append(cache_file(copied, identity(copied), CORPUS))
    assert len({file, *others}) == 7


def test_a_teacher_of_words_alone(checkpoint: Path, tmp_path: Path) -> None:
    """Against the paper's algorithm 1, word by word; the principal direction by singular values."""
    encoder = SentenceEncoder.load(checkpoint)
    table = encoder.backbone.get_input_embeddings().weight.detach().double().numpy()
    texts = [*CORPUS, "", CORPUS[0]]
    words = [ids[1:-1] for ids in encoder.tokenizer.encode_batch(texts)]
    counts = Counter(word for text in words for word in text)
    total = sum(counts.values())
    plain = np.zeros((len(texts), table.shape[1]))
    for row, text in zip(plain, words, strict=True):
        for word in text:
            row += 1e-3 / (1e-3 + counts[word] / total) * table[word] / len(text)
    direction = np.linalg.svd(plain)[2][0]
    found = _cached(TeacherConfig(name=str(checkpoint), pooling="sif", cache=str(tmp_path)), texts)
    np.testing.assert_allclose(found, plain - np.outer(plain @ direction, direction), atol=1e-6)
    assert not found[-2].any() and found[:-2].any(axis=1).all()


def test_a_bundle_has_no_words_to_teach(tiny_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="name the checkpoint that it was made of"):
        _cached(TeacherConfig(name=str(tiny_bundle), pooling="sif", cache=str(tmp_path)), CORPUS)


def _copy(source: Path, target: Path) -> Path:
    import shutil

    return Path(shutil.copytree(source, target))


@pytest.mark.parametrize("damage", ["truncated", "header", "empty", "rows", "pickle"])
def test_an_interrupted_cache_file_is_seen(tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str) -> None:
    file = tmp_path / "cached.npy"
    assert open_cached(file, 4) is None and not caplog.records
    np.save(file, np.ones((4, 3), dtype=np.float32))
    whole = file.read_bytes()
    assert open_cached(file, 4) is not None
    if damage == "rows":
        np.save(file, np.ones((3, 3), dtype=np.float32))
    elif damage == "pickle":
        np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    else:
        file.write_bytes(whole[: {"truncated": len(whole) - 5, "header": 20, "empty": 0}[damage]])
    with caplog.at_level(logging.WARNING):
        assert open_cached(file, 4) is None
    assert "damaged or incomplete" in caplog.text


def test_a_teacher_that_is_interrupted_leaves_no_cache(checkpoint: Path, tmp_path: Path,
                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distilface.distillation.teacher.BLOCK", 4)
    teacher = TeacherConfig(name=str(checkpoint), cache=str(tmp_path))
    file = cache_file(teacher, identity(teacher), CORPUS)

    def stop(done: int, total: int) -> None:
        if done > 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compute(teacher, CORPUS, file, DataSource(path="unused"), "cpu", stop)
    assert list(file.parent.iterdir()) == []
    np.testing.assert_allclose(_cached(teacher, CORPUS), SentenceEncoder.load(checkpoint).encode(CORPUS), atol=1e-6)


def test_precomputed_npy(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("one\n\n  two \nthree\n")
    vectors = np.arange(8, dtype=np.float64).reshape(4, 2)
    np.save(tmp_path / "v.npy", vectors)
    teacher = TeacherConfig(vectors=str(tmp_path / "v.npy"), cache=str(tmp_path / "cache"))
    found = _cached(teacher, ["three", "one", "two"], str(tmp_path / "text.txt"))
    assert found.tolist() == [[6, 7], [0, 1], [4, 5]]
    with pytest.raises(UserError, match="no vector for 1 of 2 training texts, the first is 'four'"):
        _cached(teacher, ["one", "four"], str(tmp_path / "text.txt"))
    np.save(tmp_path / "v.npy", vectors[:3])
    with pytest.raises(UserError, match=r"has shape \[3, 2\]; .* has 4 rows"):
        _cached(teacher, ["one"], str(tmp_path / "text.txt"))
    (tmp_path / "v.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(UserError, match=r"no whole \.npy"):
        _cached(teacher, ["one"], str(tmp_path / "text.txt"))
    with pytest.raises(UserError, match="does not exist"):
        identity(TeacherConfig(vectors=str(tmp_path / "absent.npy")))


def test_precomputed_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "v.parquet"
    parquet.write_table(arrow.table({"text": ["one", "two"], "vector": [[1.0, 2.0], [3.0, 4.0]]}), file)
    teacher = TeacherConfig(vectors=str(file), cache=str(tmp_path / "cache"))
    assert _cached(teacher, ["two", "one", "two"]).tolist() == [[3, 4], [1, 2], [3, 4]]
    parquet.write_table(arrow.table({"text": ["one"]}), file)
    with pytest.raises(UserError, match="needs the columns text and vector"):
        _cached(teacher, ["one"])


def test_vectors_that_are_not_finite(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("one\ntwo\n")
    np.save(tmp_path / "v.npy", np.array([[1.0, 2.0], [np.nan, 0.0]], dtype=np.float32))
    teacher = TeacherConfig(vectors=str(tmp_path / "v.npy"), cache=str(tmp_path / "cache"))
    with pytest.raises(GateError, match="NaN or infinity"):
        _cached(teacher, ["one", "two"], str(tmp_path / "text.txt"))
