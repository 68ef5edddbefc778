"""Configuration: the order in which values win, their types, and errors that name the key."""

from __future__ import annotations

from pathlib import Path

import pydantic
import pytest

from distilface.config import StrictModel, dump_config, load_config
from distilface.errors import UserError


class Optimiser(StrictModel):
    learning_rate: float = 1e-3
    steps: int = 10
    fused: bool = False


class Stage(StrictModel):
    name: str = "first"


class Settings(StrictModel):
    train: Optimiser = Optimiser()
    pooling: str = "mean"
    layers: list[int] = [1, 2]
    stages: list[Stage] = []
    limit: int | None = None

    @pydantic.model_validator(mode="after")
    def _no_contradiction(self) -> Settings:
        if self.pooling == "cls" and self.limit == 1:
            raise ValueError("limit 1 leaves no room for text with pooling cls")
        return self


def _message(file: Path | None = None, sets: tuple[str, ...] = (), **overrides: object) -> str:
    with pytest.raises(UserError) as caught:
        load_config(Settings, file, sets, overrides)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_without_a_file_the_defaults_hold() -> None:
    assert load_config(Settings) == Settings()


def test_set_wins_over_flags_and_flags_win_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("train: {learning_rate: 1, steps: 2, fused: true}\npooling: max\n", encoding="utf-8")
    config = load_config(Settings, file, ["train.learning_rate=3"],
                         {"train": {"learning_rate": 2, "steps": 5, "fused": None}, "pooling": None})
    assert config == Settings(train=Optimiser(learning_rate=3, steps=5, fused=True), pooling="max")


@pytest.mark.parametrize(("item", "expected"), [
    ("train.learning_rate=1e-5", Optimiser(learning_rate=0.00001)),
    ("train.learning_rate=2.5e-05", Optimiser(learning_rate=0.000025)),
    ("train.fused=true", Optimiser(fused=True)),
    ("train.steps=20000", Optimiser(steps=20000)),
])
def test_set_values_have_types(item: str, expected: Optimiser) -> None:
    assert load_config(Settings, sets=[item]).train == expected


def test_set_takes_lists_nulls_and_values_with_an_equals_sign() -> None:
    config = load_config(Settings, sets=["layers=[4, 5]", "limit=null", "pooling=a=b"])
    assert (config.layers, config.limit, config.pooling) == ([4, 5], None, "a=b")


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "empty.yaml"
    file.write_text("# nothing\n", encoding="utf-8")
    assert load_config(Settings, file) == Settings()


def test_an_unknown_key_is_named_with_the_nearest_one() -> None:
    text = _message(sets=("train.lerning_rate=1",))
    assert "'train.lerning_rate'" in text and "'learning_rate'" in text


def test_an_unknown_key_unlike_any_other_lists_the_known_ones() -> None:
    assert all(key in _message(sets=("zzz=1",)) for key in ("'zzz'", "train", "pooling", "layers", "limit"))


def test_an_unknown_key_inside_a_list_is_named(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("stages: [{name: a}, {nme: b}]\n", encoding="utf-8")
    text = _message(file)
    assert "stages.1.nme" in text and "'name'" in text and str(file) in text


def test_a_wrong_type_says_what_was_received() -> None:
    text = _message(sets=("train.steps=many",))
    assert "train.steps" in text and "'many'" in text


def test_a_contradiction_is_one_line_and_further_errors_are_counted() -> None:
    assert "limit 1 leaves no room" in _message(sets=("pooling=cls", "limit=1"))
    assert "1 more" in _message(sets=("train.steps=many", "limit=few"))


@pytest.mark.parametrize("item", ["train.steps", "=3", " = 3"])
def test_set_without_key_or_value_shows_the_form(item: str) -> None:
    text = _message(sets=(item,))
    assert repr(item) in text and "section.key=value" in text


def test_set_below_a_value_that_is_no_section() -> None:
    text = _message(sets=("pooling=cls", "pooling.kind=1"))
    assert "'pooling'" in text and "'cls'" in text


def test_set_value_that_is_no_yaml() -> None:
    assert "[1" in _message(sets=("layers=[1",))


@pytest.mark.parametrize(("content", "expected"), [
    (b"train:\n  steps: [1\n", "line"),
    (b"- 1\n- 2\n", "list"),
    (b"just words\n", "str"),
    (b"\xff\xfe\x00", "can't be read"),
])
def test_a_file_that_is_no_configuration(tmp_path: Path, content: bytes, expected: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_bytes(content)
    text = _message(file)
    assert str(file) in text and expected in text


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    assert "does not exist" in _message(tmp_path / "none.yaml")
    assert str(tmp_path) in _message(tmp_path)


def test_the_dump_spells_out_every_default_and_reads_back(tmp_path: Path) -> None:
    config = load_config(Settings, sets=["train.learning_rate=1e-5", "stages=[{name: é}]"])
    file = tmp_path / "resolved.yaml"
    file.write_text(dump_config(config), encoding="utf-8")
    assert load_config(Settings, file) == config
    assert "steps: 10" in dump_config(config)


def test_a_configuration_is_frozen() -> None:
    with pytest.raises(pydantic.ValidationError):
        Settings().pooling = "cls"


def test_unknown_key_inside_a_list_item_names_the_items_own_keys() -> None:
    class Item(StrictModel):
        path: str = ""

    class Whole(StrictModel):
        data: tuple[Item, ...] = ()

    with pytest.raises(UserError, match=r"unknown key 'data\.0\.pth'; did you mean 'path'\?"):
        load_config(Whole, overrides={"data": [{"pth": "x"}]})
