"""What `distilface distill` can be told. Torch-free; contradictions are errors that name the key."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from distilface.config import StrictModel
from distilface.data import DataSource
from distilface.training.config import LossConfig, ModelConfig, RunConfig

VECTOR_LOSSES = ("cosine", "mse", "distribution", "teacher_contrast")
"""Losses that set a student's vector against a teacher's: both must be in one space."""
TOKEN_LOSSES = ("hidden", "attention")
"""Losses on the states of tokens, for which the teacher runs in every step."""
SIF = "sif"
"""The pooling of a teacher that is no more than its table of words."""


class TeacherConfig(StrictModel):
    """Where the teacher's vectors come from: a model, or a file.

    Attributes:
        name: checkpoint, bundle, sentence-transformers folder or Hub id.
        variant: graph of a bundle.
        pooling: overrides what a checkpoint's files say; ``sif`` takes its word embeddings alone, weighted by how rare
            each word is in the training text, see `distilface.distillation.sif`.
        max_seq_length: tokens of the teacher's own tokenizer; longer texts are cut.
        vectors: instead of ``name``, a file of precomputed vectors, as ``distilface encode`` writes them: ``.parquet``
            with the columns ``text`` and ``vector``, or ``.npy`` whose row ``i`` belongs to row ``i`` of ``texts``.
        texts: the file behind ``.npy`` vectors; by default the only training source, when it is of kind ``sentences``.
        cache: folder for computed vectors; by default ``$DISTILFACE_CACHE``, else ``~/.cache/distilface``.
    """

    name: str | None = None
    variant: str | None = None
    pooling: str | None = None
    max_seq_length: int | None = Field(default=None, ge=3)
    vectors: str | None = None
    texts: DataSource | None = None
    cache: str | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> TeacherConfig:
        if (self.name is None) == (self.vectors is None):
            both = "both set" if self.name is not None else "both missing"
            raise ValueError(f"name and vectors are {both}; give one: a teacher model, or a file of its vectors")
        if self.vectors is not None:
            for key in ("variant", "pooling", "max_seq_length"):
                if getattr(self, key) is not None:
                    raise ValueError(f"{key} is set, but the vectors come from a file; drop it")
            if not self.vectors.endswith((".npy", ".parquet")):
                raise ValueError(f"vectors got {self.vectors!r}; it takes a .npy or a .parquet file")
        if self.texts is not None and not (self.vectors or "").endswith(".npy"):
            raise ValueError("texts says which text each row of .npy vectors belongs to; drop it")
        return self


class StudentConfig(ModelConfig):
    """The encoder to train, as in `distilface.training.config.ModelConfig`, with some of its layers dropped.

    Attributes:
        name: by default the teacher, of which layers must then be dropped.
        keep_layers: the layers to keep, numbered from 0.
        layers: how many layers to keep, evenly spaced with the last one among them.
    """

    keep_layers: tuple[int, ...] | None = None
    layers: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one_choice(self) -> StudentConfig:
        if self.keep_layers is not None and self.layers is not None:
            raise ValueError("keep_layers and layers are both set; set one")
        return self


class DistillLossConfig(LossConfig):
    """Weights of the losses, 0 for none, and their settings; see `distilface.losses`.

    Attributes:
        cosine: ``1 - cos`` to the teacher's vector.
        mse: squared distance to the teacher's unit vector, the student's length included.
        similarity: squared difference of the cosines within a batch. Needs no common space.
        distribution: ConGen: the distribution of cosines to a queue of teacher vectors.
        teacher_contrast: DistilCSE: InfoNCE that finds the teacher's vector among those of the batch and the queue.
        contrastive: the loss of `distilface train` for this kind of data.
        hidden: TinyBERT: squared difference of the hidden states after each layer of the student and the layer of the
            teacher that it stands for, through a learned linear map where the widths differ.
        attention: MiniLMv2: how the tokens' queries, keys and values relate in the student's last layer.
        layer_map: of ``hidden`` and ``attention``: the teacher's layer for each of the student's, numbered from 0. By
            default the layers that were kept, for another student evenly spaced ones with the last among them.
        attention_heads: pieces that ``attention`` cuts queries, keys and values into; the student's heads by default.
        temperature: of ``teacher_contrast`` and ``contrastive``.
        distribution_temperature, distribution_teacher_temperature: of ``distribution``.
        queue: teacher vectors of so many other training texts, drawn anew for every step.
        projection: how unlike widths meet. ``pca``: the teacher's vectors are reduced to the student's width, keeping
            their products as well as can be, and turned towards the student's vectors before training.
            ``learned``: a linear map of the student's vectors, fitted before training, trained along and dropped.
            By default ``none`` for equal widths, ``pca`` for a wider teacher, ``learned`` for a narrower one.
        matryoshka: of all losses but ``hidden`` and ``attention``. The first ``d`` dimensions are told the teacher's
            first ``d``, which ``pca``, then the default for equal widths, too, makes its best; or by ``learned`` the
            whole vector.
    """

    cosine: float = Field(default=1.0, ge=0)
    mse: float = Field(default=0.0, ge=0)
    similarity: float = Field(default=0.0, ge=0)
    distribution: float = Field(default=0.0, ge=0)
    teacher_contrast: float = Field(default=0.0, ge=0)
    contrastive: float = Field(default=0.0, ge=0)
    hidden: float = Field(default=0.0, ge=0)
    attention: float = Field(default=0.0, ge=0)
    layer_map: tuple[Annotated[int, Field(ge=0)], ...] | None = None
    attention_heads: int | None = Field(default=None, ge=1)
    distribution_temperature: float = Field(default=0.05, gt=0)
    distribution_teacher_temperature: float = Field(default=0.05, gt=0)
    queue: int = Field(default=4096, ge=0)
    projection: Literal["none", "pca", "learned"] | None = None

    @model_validator(mode="after")
    def _something_to_learn(self) -> DistillLossConfig:
        taught = (*VECTOR_LOSSES, "similarity", *TOKEN_LOSSES)
        if not any(getattr(self, name) for name in (*taught, "contrastive")):
            raise ValueError(f"every loss has weight 0; give one of {', '.join((*taught, 'contrastive'))} a weight")
        if not any(getattr(self, name) for name in taught):
            raise ValueError("only contrastive has a weight, so the teacher is not used; run distilface train instead")
        if self.distribution and self.queue < 2:
            raise ValueError(f"distribution compares with a queue, but queue is {self.queue}; use some thousands")
        if self.matryoshka and not (self.needs_vectors or self.contrastive):
            raise ValueError("matryoshka cuts sentence vectors, and every loss on them has weight 0; give cosine or "
                             "similarity a weight, or drop matryoshka")
        for key, users in (("layer_map", TOKEN_LOSSES), ("attention_heads", ("attention",))):
            if getattr(self, key) is not None and not any(getattr(self, name) for name in users):
                raise ValueError(f"{key} is set, but {' and '.join(users)} has weight 0; give it one or drop {key}")
        return self

    @property
    def needs_vectors(self) -> bool:
        """Whether a loss compares with the teacher's vectors."""
        return any(getattr(self, name) for name in (*VECTOR_LOSSES, "similarity"))


class DistillConfig(RunConfig):
    """Everything `distilface.distillation.distill` needs."""

    teacher: TeacherConfig
    student: StudentConfig
    loss: DistillLossConfig = DistillLossConfig()

    @model_validator(mode="before")
    @classmethod
    def _student_from_teacher(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        teacher, student = value.get("teacher"), value.get("student") or {}
        if isinstance(teacher, dict) and isinstance(student, dict) and student.get("name") is None:
            if student.get("layers") is None and student.get("keep_layers") is None:
                raise ValueError("student.name is not set; name a checkpoint, or set student.layers or "
                                 "student.keep_layers to take the teacher with fewer layers")
            if teacher.get("name") is None:
                raise ValueError("student.name is not set, and a file of vectors has no layers to keep; set it")
            return {**value, "student": {**student, "name": teacher["name"]}}
        return value

    @model_validator(mode="after")
    def _consistent(self) -> DistillConfig:
        limit = self.student.max_seq_length
        if limit is not None and self.train.max_length > limit:
            raise ValueError(f"train.max_length {self.train.max_length} is over student.max_seq_length {limit}")
        if (self.teacher.vectors or "").endswith(".npy") and self.teacher.texts is None and (
                len(self.data) > 1 or self.data[0].kind != "sentences"):
            raise ValueError("teacher.texts is not set; it says which text each row of teacher.vectors belongs to")
        for name in TOKEN_LOSSES:
            if getattr(self.loss, name) and self.teacher.vectors is not None:
                raise ValueError(f"loss.{name} compares token by token, and teacher.vectors holds one vector a text; "
                                 f"set teacher.name to a checkpoint, or loss.{name}=0")
            if getattr(self.loss, name) and self.teacher.pooling == SIF:
                raise ValueError(f"loss.{name} compares token by token, and teacher.pooling {SIF} has words alone; "
                                 f"drop teacher.pooling, or loss.{name}=0")
        return self
