"""What `distilface train` can be told. Torch-free; contradictions are errors that name the key."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from distilface.config import StrictModel
from distilface.data import DataSource

Kind = Literal["sentences", "pairs", "groups", "triplets", "scored"]
Precision = Literal["fp32", "bf16", "fp16", "auto"]

_COLUMNS: dict[str, int] = {"sentences": 1, "pairs": 2, "triplets": 3, "scored": 3}


class ModelConfig(StrictModel):
    """The encoder to start from.

    Attributes:
        name: local folder, or Hub id.
        pooling: a pooling name; by default what the folder's files say, ``mean_last`` for a bare encoder.
        pooling_options: of pooling ``layer_attention``; see `distilface.pooling.LayerAttention`.
        head: ``none``, ``train_only`` or ``kept``; by default ``kept`` where the folder holds a head, else ``none``.
        max_seq_length: the deployed model's length limit in tokens; by default what the folder says.
        dropout: probability of every dropout in training; by default what config.json says.
    """

    name: str
    revision: str | None = None
    pooling: str | None = None
    pooling_options: dict[str, str] | None = None
    head: Literal["none", "train_only", "kept"] | None = None
    max_seq_length: int | None = Field(default=None, ge=3)
    dropout: float | None = Field(default=None, ge=0, lt=1)


class SourceConfig(DataSource):
    """One source of training text.

    Attributes:
        kind: ``sentences`` (unsupervised SimCSE: two dropout passes are the positives), ``pairs`` (anchor, positive),
            ``groups`` (two random members of every group, drawn anew each epoch), ``triplets`` (anchor, positive, hard
            negative), ``scored`` (two sentences and how similar people find them, on any scale).
        limit: use only the first so many examples.
    """

    kind: Kind = "sentences"
    limit: int | None = Field(default=None, ge=2)

    @model_validator(mode="after")
    def _columns_fit(self) -> SourceConfig:
        needed = _COLUMNS.get(self.kind)
        if needed is not None and self.columns is not None and len(self.columns) != needed:
            raise ValueError(f"columns names {len(self.columns)} columns; kind {self.kind!r} takes {needed}")
        return self


class LossConfig(StrictModel):
    """InfoNCE, and for scored pairs a ranking loss; see `distilface.losses`.

    Attributes:
        temperature, symmetric, hard_negative_weight: of InfoNCE.
        scored: the loss of sources of kind ``scored``: ``cosent`` or ``angle``.
        scored_temperature: its temperature.
        matryoshka: the loss is taken on the first so many dimensions, for each of these numbers, and summed. The full
            width counts only when it is among them.
        matryoshka_weights: one for each; 1 each by default.
    """

    temperature: float = Field(default=0.05, gt=0)
    symmetric: bool = False
    hard_negative_weight: float = 0.0
    scored: Literal["cosent", "angle"] = "cosent"
    scored_temperature: float = Field(default=0.05, gt=0)
    matryoshka: tuple[Annotated[int, Field(ge=1)], ...] = ()
    matryoshka_weights: tuple[Annotated[float, Field(gt=0)], ...] | None = None

    @model_validator(mode="after")
    def _weights_fit(self) -> LossConfig:
        if len(set(self.matryoshka)) < len(self.matryoshka):
            raise ValueError(f"matryoshka names a number of dimensions twice: {list(self.matryoshka)}")
        if self.matryoshka_weights is not None and len(self.matryoshka_weights) != len(self.matryoshka):
            raise ValueError(f"matryoshka_weights has {len(self.matryoshka_weights)} entries, matryoshka "
                             f"{len(self.matryoshka)}; give one weight for each")
        return self


class LoopConfig(StrictModel):
    """How to run.

    Attributes:
        batch_size: examples in one step, over all processes together, and with all of them as each other's negatives.
        max_length: tokens of a training text, special tokens included; longer ones are cut. Apart from the deployed
            model's limit.
        max_steps, epochs: one of them; one epoch when neither is given.
        chunk_tokens: a process's share of a batch goes through the encoder in chunks of texts of similar length, of at
            most so many tokens with padding; a longer text is a chunk of its own. The default fills a CPU; a GPU is
            only busy with more.
        gradient_caching: keep no activations beyond one chunk: the memory of a batch of any size is that of
            ``chunk_tokens``, its gradients are the same, and it takes a second forward pass. See
            `distilface.training.forward.PooledEncoder`.
        gradient_accumulation: batches to one optimizer step. Negatives come from one batch only: for more of them,
            raise ``batch_size``, with ``gradient_caching``.
        warmup_ratio, warmup_steps: share of the steps, or number of steps, in which the learning rate rises from 0.
        schedule: the learning rate after warm-up.
        max_grad_norm: gradients are scaled down to this norm; 0 turns it off.
        precision: ``fp32``; ``bf16`` or ``fp16`` autocast over float32 weights (``fp16`` with loss scaling, CUDA only);
            ``auto`` takes bf16 where a matrix product in it is measurably faster here than in fp32, else fp32.
        device: ``auto`` is CUDA where there is one.
        last_batch: the incomplete batch at the end of an epoch is dropped (other examples next epoch), or kept; a rest
            too small to train on is then merged into the batch before.
        window: batches hold texts of similar length, sorted within random windows of so many batches; 0 turns it off.
        token_cache: keep the token ids of the text for the next run in ``$DISTILFACE_CACHE``, else
            ``~/.cache/distilface``; see `distilface.training.token_cache`.
        log_every: steps between two logged losses.
        save_every: steps between two checkpoints to resume from; as often as dev evaluations, else 500.
        tensorboard: by default where the package is installed.
    """

    learning_rate: float = Field(default=3e-5, gt=0)
    batch_size: int = 64
    max_length: int = Field(default=32, ge=3)
    max_steps: int | None = Field(default=None, ge=1)
    epochs: float | None = Field(default=None, gt=0)
    chunk_tokens: int = Field(default=2048, ge=1)
    gradient_caching: bool = False
    gradient_accumulation: int = Field(default=1, ge=1)
    warmup_ratio: float | None = Field(default=None, ge=0, lt=1)
    warmup_steps: int | None = Field(default=None, ge=0)
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, ge=0)
    precision: Precision = "fp32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    seed: int = Field(default=42, ge=0, lt=2**32)
    last_batch: Literal["drop", "keep"] = "drop"
    window: int = Field(default=64, ge=0)
    token_cache: bool = True
    log_every: int = Field(default=10, ge=1)
    save_every: int | None = Field(default=None, ge=1)
    tensorboard: bool | None = None

    @field_validator("batch_size")
    @classmethod
    def _has_negatives(cls, value: int) -> int:
        if value < 2:
            raise ValueError(f"batch_size {value} leaves no negatives to contrast with; use at least 2, better 64")
        return value

    @model_validator(mode="after")
    def _one_of_each(self) -> LoopConfig:
        for first, second in (("max_steps", "epochs"), ("warmup_ratio", "warmup_steps")):
            if getattr(self, first) is not None and getattr(self, second) is not None:
                raise ValueError(f"{first} and {second} are both set; set one (--set train.{second}=null)")
        return self


class EvalConfig(StrictModel):
    """Dev evaluation, which chooses the checkpoint that is kept, or only watches.

    Attributes:
        sts: a SentEval folder (its STS-B dev set), a file or a Hub data set of scored pairs. Without it there is
            no selection, and the weights of the last step are kept.
        every_steps: steps between two evaluations; the last step is always evaluated.
        keep: the weights of the ``best`` evaluation, or those of the ``last`` step. Where a schedule falls to 0, the
            last evaluations differ by less than a dev set can tell, and the best of them is the luckiest.
        patience: stop after so many evaluations in a row without a new best.
    """

    sts: DataSource | None = None
    every_steps: int = Field(default=250, ge=1)
    keep: Literal["best", "last"] = "best"
    patience: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _patience_needs_scores(self) -> EvalConfig:
        if self.patience is not None and self.sts is None:
            raise ValueError("patience is set, but sts is not, so there are no scores to wait for; "
                             "set eval.sts or drop eval.patience")
        if self.patience is not None and self.keep == "last":
            raise ValueError("patience waits for a new best, but keep is 'last'; drop one of them")
        return self


class RunConfig(StrictModel):
    """What every training run has. ``data`` is one source or a list, each batch from one of them."""

    data: tuple[SourceConfig, ...] = Field(min_length=1)
    loss: LossConfig = LossConfig()
    train: LoopConfig = LoopConfig()
    eval: EvalConfig = EvalConfig()

    @field_validator("data", mode="before")
    @classmethod
    def _one_source(cls, value: Any) -> Any:
        return value if isinstance(value, list | tuple) else [value]

    @model_validator(mode="after")
    def _hard_negatives_exist(self) -> RunConfig:
        if self.loss.hard_negative_weight and all(source.kind != "triplets" for source in self.data):
            kinds = ", ".join(sorted({source.kind for source in self.data}))
            raise ValueError(f"loss.hard_negative_weight is set, but data.kind is {kinds}, which has no hard "
                             "negatives; use kind triplets or drop it")
        return self


class TrainConfig(RunConfig):
    """Everything `distilface.training.train` needs."""

    model: ModelConfig

    @model_validator(mode="after")
    def _lengths_fit(self) -> TrainConfig:
        limit = self.model.max_seq_length
        if limit is not None and self.train.max_length > limit:
            raise ValueError(f"train.max_length {self.train.max_length} is over model.max_seq_length {limit}")
        return self
