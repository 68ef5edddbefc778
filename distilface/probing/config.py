"""What `distilface probe` can be told. Torch-free; contradictions are errors that name the key."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import Field, field_validator, model_validator

from distilface.config import StrictModel
from distilface.data import DataSource
from distilface.training.config import LoopConfig, LossConfig, ModelConfig, SourceConfig

Kind = Literal["layerwise", "progressive", "localized", "permutation"]
KINDS: tuple[str, ...] = get_args(Kind)
Metric = Literal["spearman", "accuracy", "matthews"]


class LabelsConfig(StrictModel):
    """A classification task: a linear layer on the sentence vector, trained with the encoder.

    Attributes:
        train, dev: two columns, text and label.
        metric: what the plots and the ranking show; the table always holds both.
    """

    train: DataSource
    dev: DataSource
    metric: Literal["accuracy", "matthews"] = "matthews"


class EvalConfig(StrictModel):
    """What contrastive training, and `layerwise`, is scored on.

    Attributes:
        sts: a SentEval folder (its STS-B dev set), a file or a Hub data set of scored pairs.
        limit: use only the first so many pairs.
    """

    sts: DataSource | None = None
    limit: int | None = Field(default=None, ge=2)

    @model_validator(mode="after")
    def _limit_needs_pairs(self) -> EvalConfig:
        if self.limit is not None and self.sts is None:
            raise ValueError(f"limit {self.limit} is set, but sts is not; set eval.sts or drop eval.limit")
        return self


class ReinitConfig(StrictModel):
    """How layers lose their pre-trained weights (``progressive``, ``localized``), and the paper's two controls.

    Attributes:
        weights: ``normal`` is what a new model starts from: normal with the config's ``initializer_range`` as standard
            deviation, biases 0. ``authors`` is what the paper's code did: biases stay pre-trained, and the normal is
            cut at ``2 * initializer_range`` of *its own standard deviations*, which makes weights 43 times too small
            for a range of 0.02.
        keep_layernorms: LayerNorms keep their pre-trained weights instead of starting at weight 1 and bias 0.
        learning_rate_factor: re-initialised layers learn at so many times the learning rate (the paper tried 5).
    """

    weights: Literal["normal", "authors"] = "normal"
    keep_layernorms: bool = False
    learning_rate_factor: float = Field(default=1.0, gt=0)


class GridConfig(StrictModel):
    """Which runs.

    Attributes:
        seeds: every setting is run with each: random weights, order of examples, dropout, classification's subset.
        sizes: training examples (of each source); everything there is when empty. Of contrastive data the first so
            many, of labelled texts a random choice by seed, a small one being part of a larger.
        window: ``localized``: how many neighbouring layers are re-initialised together.
        inverse: ``localized``: also re-initialise all layers but the window.
        orders: ``permutation``: how many random orders, besides the original.
        order_seed: ``permutation``: draws the orders.
    """

    seeds: tuple[Annotated[int, Field(ge=0, lt=2**32)], ...] = Field(default=(0, 1, 2), min_length=1)
    sizes: tuple[Annotated[int, Field(ge=2)], ...] = ()
    window: int = Field(default=3, ge=1)
    inverse: bool = True
    orders: int = Field(default=10, ge=1)
    order_seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _no_repeats(self) -> GridConfig:
        for name in ("seeds", "sizes"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise ValueError(f"{name} names a value twice: {list(values)}")
        return self


_ONLY: dict[str, tuple[str, ...]] = {"localized": ("window", "inverse"), "permutation": ("orders", "order_seed")}


class ProbeConfig(StrictModel):
    """Everything `distilface.probing.probe` needs.

    ``layerwise`` trains nothing: it takes ``model`` and ``eval.sts``. The others fine-tune on one task: contrastively
    on ``data``, scored by ``eval.sts``, or as a classifier on ``labels``. ``grid.seeds`` sets ``train.seed``.
    """

    probe: Kind
    model: ModelConfig
    data: tuple[SourceConfig, ...] = ()
    labels: LabelsConfig | None = None
    loss: LossConfig = LossConfig()
    train: LoopConfig = LoopConfig()
    eval: EvalConfig = EvalConfig()
    reinit: ReinitConfig = ReinitConfig()
    grid: GridConfig = GridConfig()

    @field_validator("data", mode="before")
    @classmethod
    def _one_source(cls, value: Any) -> Any:
        return value if isinstance(value, list | tuple) else [value]

    @model_validator(mode="after")
    def _one_task(self) -> ProbeConfig:
        if self.probe == "layerwise":
            for key in ("data", "labels"):
                if getattr(self, key):
                    raise ValueError(f"{key} is set, but layerwise scores an untrained encoder; drop it")
        elif bool(self.data) == bool(self.labels):
            both = "both set" if self.data else "both missing"
            raise ValueError(f"data and labels are {both}; give one: text to train on contrastively, or labelled texts")
        if self.labels is None and self.eval.sts is None:
            raise ValueError("eval.sts is missing; the runs are scored on it: a SentEval folder, or scored pairs")
        if self.labels is not None and self.eval.sts is not None:
            raise ValueError("eval.sts is set, but classification is scored on labels.dev; drop it")
        return self

    @model_validator(mode="after")
    def _fits_the_probe(self) -> ProbeConfig:
        if self.probe in ("layerwise", "permutation") and self.reinit != ReinitConfig():
            raise ValueError(f"reinit is set, but {self.probe} re-initialises no layer; drop it")
        for probe, keys in _ONLY.items():
            for key in keys:
                if probe != self.probe and getattr(self.grid, key) != GridConfig.model_fields[key].default:
                    raise ValueError(f"grid.{key} is set, but belongs to {probe}; drop it")
        if self.train.seed != LoopConfig.model_fields["seed"].default:
            raise ValueError("train.seed is set; a probe runs with each of grid.seeds: set that")
        return self

    @model_validator(mode="after")
    def _sizes_fit(self) -> ProbeConfig:
        sizes = self.grid.sizes
        if sizes and self.probe == "layerwise":
            raise ValueError("grid.sizes is set, but layerwise trains nothing; drop it")
        if sizes and any(source.limit is not None for source in self.data):
            raise ValueError("grid.sizes and data.limit are both set; set one")
        if sizes and min(sizes) < self.train.batch_size:
            raise ValueError(f"grid.sizes names {min(sizes)} examples, less than one batch of train.batch_size "
                             f"{self.train.batch_size}")
        return self

    @property
    def metric(self) -> Metric:
        """What plots and ranking show."""
        return "spearman" if self.labels is None else self.labels.metric
