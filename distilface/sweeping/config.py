"""What `distilface sweep` can be told. Torch-free; contradictions are errors that name the key."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails

from distilface.config import StrictModel, assign, build_config, read_yaml
from distilface.distillation.config import DistillConfig
from distilface.errors import UserError
from distilface.sweeping.space import Choices, Range, Setting, cells, check_key, count_cells, parse_space
from distilface.training.config import RunConfig, TrainConfig

MAX_CELLS = 10_000
_METHODS: dict[str, type[RunConfig]] = {"train": TrainConfig, "distill": DistillConfig}


class SweepConfig(StrictModel):
    """A search over settings of one training configuration.

    Attributes:
        method: ``train`` or ``distill``.
        base: the configuration that every trial starts from, or the path of its YAML file; see `load_sweep`.
            ``eval.sts`` is a must: its Spearman is the score. Nothing else is ever scored.
        space: dotted key of ``base`` -> a list of values, or a range ``{low, high, log, step, int}``.
        sampler: ``grid`` runs every combination of lists; ``tpe`` learns from the trials before; ``random`` does not.
        trials: of ``tpe`` and ``random``, over all workers together.
        sampler_startup: ``tpe`` draws so many trials at random first.
        pruner: ``median`` stops a trial whose best score so far is below the median of what earlier trials had at the
            same step; ``none``. With several seeds, the first one decides.
        pruner_startup: so many trials must be complete before one is stopped.
        pruner_warmup: and no trial is stopped before this step.
        seeds: each setting is trained once with each of these as ``train.seed``, and its score is the mean; by default
            the one that ``base`` has.
        seed: of the sampler.
        storage: URL of a database (Optuna's RDBStorage) to share between workers on many machines; by default a SQLite
            file in the output folder, for workers that share that.
        name: the sweep's name in the storage.
        keep_model: keep the best model; the others are deleted as soon as they are beaten.
        retries: a trial whose process died is started again this often, then counts as failed.
    """

    method: Literal["train", "distill"] = "train"
    base: dict[str, Any]
    space: dict[str, Choices | Range]
    sampler: Literal["grid", "tpe", "random"] = "grid"
    trials: int | None = Field(default=None, ge=1)
    sampler_startup: int = Field(default=10, ge=1)
    pruner: Literal["median", "none"] = "median"
    pruner_startup: int = Field(default=5, ge=1)
    pruner_warmup: int = Field(default=0, ge=0)
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**32)], ...] = ()
    seed: int = Field(default=0, ge=0)
    storage: str | None = None
    name: str = Field(default="sweep", min_length=1)
    keep_model: bool = True
    retries: int = Field(default=3, ge=0)

    @field_validator("base", mode="before")
    @classmethod
    def _read(cls, value: Any) -> Any:
        if isinstance(value, BaseModel):
            return value.model_dump(mode="json", exclude_unset=True)
        return read_yaml(Path(value)) if isinstance(value, str | Path) else value

    @field_validator("space", mode="before")
    @classmethod
    def _parse(cls, value: Any) -> Any:
        return parse_space(value)

    @model_validator(mode="after")
    def _consistent(self) -> SweepConfig:
        for key in self.space:
            try:
                check_key(key, _METHODS[self.method])
            except ValueError as error:
                raise ValueError(f"space: {error}") from None
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds names a seed twice: {list(self.seeds)}")
        if self.sampler != "grid":
            if self.trials is None:
                raise ValueError(f"trials is not set; sampler {self.sampler} needs to know how many to run")
            return self
        for key, values in self.space.items():
            if isinstance(values, Range):
                raise ValueError(f"space: {key} is a range, and sampler is grid, which needs a list of values; list "
                                 "them, or use sampler tpe or random")
        count = count_cells(self.space)
        if count > MAX_CELLS:
            raise ValueError(f"space makes a grid of {count:,} cells, and {MAX_CELLS:,} is the most; use sampler "
                             "random or tpe with a number of trials")
        if self.trials is not None and self.trials != count:
            raise ValueError(f"trials is {self.trials}, but the grid has {count} cells and a grid runs each once; drop "
                             "trials, or use sampler random or tpe")
        return self

    @property
    def total(self) -> int:
        """Settings to try, over all workers."""
        return self.trials if self.sampler != "grid" and self.trials is not None else count_cells(self.space)

    @property
    def pooling_key(self) -> str:
        """The key of the pooling method."""
        return "model.pooling" if self.method == "train" else "student.pooling"

    @property
    def plan(self) -> dict[str, Any]:
        """What must stay the same for a sweep to be gone on with."""
        return self.model_dump(mode="json", include={
            "method", "base", "space", "sampler", "sampler_startup", "pruner", "pruner_startup", "pruner_warmup",
            "seeds", "seed"})

    def resolve(self, setting: Mapping[str, Any], seed: int | None = None) -> RunConfig:
        """The configuration of one run.

        Raises:
            UserError: naming the key that does not fit.
        """
        values = self._values(setting)
        if seed is not None:
            assign(values, ["train", "seed"], seed)
        return build_config(_METHODS[self.method], values, source="base")

    @property
    def example(self) -> Setting:
        """One setting of the space."""
        return {key: values.probes()[0] for key, values in self.space.items()}

    def check(self) -> None:
        """Try what can be tried before any training.

        All cells of a grid; of the other samplers, every listed value and the ends of every range, one key at a time.

        Raises:
            UserError: naming the key of a value that the configuration does not allow.
        """
        for key, values in self.space.items():
            for value in values.probes():
                self._try({**self.example, key: value}, key)
        if self.sampler == "grid":
            for cell in cells(self.space):
                self._try(cell)
        if self.resolve(self.example).eval.sts is None:
            raise UserError("base: eval.sts is not set, and a sweep scores on nothing but dev pairs; set it to a "
                            "SentEval folder, a file or a Hub data set (--set base.eval.sts=...)")

    def _try(self, setting: Setting, key: str | None = None) -> None:
        first = self._fault(setting)
        if first is not None:
            where = ".".join(str(part) for part in first["loc"])
            message = first["msg"].removeprefix("Value error, ")
            named = next((name for name in setting if f"{where}.".startswith(f"{name}.")), None)
            if named is None and key is not None and where and key.startswith(f"{where}."):
                named = key  # a contradiction within its section
            if named is not None:
                range_of_floats = first["type"] == "int_from_float" and isinstance(self.space[named], Range)
                hint = "; add int: true" if range_of_floats else ""
                raise UserError(f"space: {named}: {setting[named]!r} is not allowed: {message}{hint}")
            alone = self._fault({})
            if alone is not None and (alone["loc"], alone["msg"]) == (first["loc"], first["msg"]):
                self.resolve({})  # the fault is the base's own
            raise UserError(f"space: {describe(setting)}: {message}")
        if key == self.pooling_key and isinstance(setting[key], str):
            from distilface.pooling import canonical  # imports torch

            try:
                canonical(setting[key])
            except UserError as error:
                raise UserError(f"space: {key}: {error}") from None

    def _fault(self, setting: Setting) -> ErrorDetails | None:
        """The first error of a configuration."""
        try:
            _METHODS[self.method].model_validate(self._values(setting))
        except ValidationError as error:
            return error.errors(include_url=False)[0]
        return None

    def _values(self, setting: Mapping[str, Any]) -> dict[str, Any]:
        values = copy.deepcopy(self.base)
        for key, value in setting.items():
            assign(values, key.split("."), copy.deepcopy(value))
        return values


def load_sweep(file: str | Path, sets: Sequence[str] = (), trials: int | None = None) -> SweepConfig:
    """Read a sweep's YAML file; ``base`` as a path is looked up beside it first, then from the working folder.

    Args:
        sets: see `distilface.config.load_config`; ``base.train.max_steps=100`` reaches into the base.

    Raises:
        UserError: naming the key, on an unknown key, a wrong type or a contradiction.
    """
    values = read_yaml(Path(file))
    base = values.get("base")
    if isinstance(base, str):
        beside = Path(file).parent / base
        values["base"] = read_yaml(beside if beside.is_file() else Path(base))
    if trials is not None:
        values["trials"] = trials
    config = build_config(SweepConfig, values, sets, str(file))
    config.check()
    return config


def describe(setting: Mapping[str, Any]) -> str:
    """A setting in one line."""
    return ", ".join(f"{key}={_text(value)}" for key, value in setting.items())


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

