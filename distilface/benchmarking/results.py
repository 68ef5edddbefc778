"""The report of a benchmark run as frozen data: the one definition that JSON, Markdown and HTML are made from.

Ratios are gains over the baseline: above 1 is better (smaller, faster), whatever is measured.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from distilface.config import StrictModel
from distilface.errors import UserError, first_fault
from distilface.machine import Disturbance, MachineFacts

SCHEMA_VERSION = 3
"""2: retrieval, threads of a throughput row, energy, roofline. 3: sittings."""


class Spread(StrictModel):
    """A median with the smallest and largest of the values behind it, one value a round (or a start)."""

    median: float
    low: float
    high: float


class Gain(Spread):
    """How many times better than the baseline: median, lowest and highest over rounds measured side by side."""


class Latency(StrictModel):
    """Time of one ``encode([text])``, in milliseconds, over all rounds together.

    Attributes:
        tokens: length the text was built for, in the baseline's tokens, special tokens included.
        own_tokens: mean length of the same texts in this subject's own tokens; None where it can't tell.
        q1, q3: quartiles of the single calls.
        round_p50: median of each round, the values a gain is computed from.
    """

    tokens: int
    own_tokens: float | None
    p50: float
    p90: float
    p99: float
    q1: float
    q3: float
    samples: int
    round_p50: tuple[float, ...]
    gain: Gain | None = None


class Throughput(StrictModel):
    """Sentences a second over real text.

    Attributes:
        batch_tokens: None is the encoder's default policy. ``threads``: None is the run's own number.
        joules: energy for 1,000 sentences, of all processor packages; None where it can't be read.
    """

    batch_tokens: int | None
    threads: int | None = None
    texts: int
    sentences_per_second: Spread
    rounds: tuple[float, ...]
    gain: Gain | None = None
    joules: Spread | None = None


class Cosine(StrictModel):
    """Cosine of each text's vector with the same text's vector from ``reference``."""

    reference: str
    texts: int
    mean: float
    p1: float
    minimum: float


class StsScore(StrictModel):
    """Spearman and Pearson in points on one set; the change is against the baseline on the same pairs.

    ``change_low`` and ``change_high`` are the 95 % paired bootstrap interval of the change.
    """

    name: str
    pairs: int
    spearman: float
    pearson: float
    change: float | None = None
    change_low: float | None = None
    change_high: float | None = None


class StsResult(StrictModel):
    """All sets of one subject. ``average`` is the mean Spearman over them, called ``avg7`` for the full seven."""

    sets: tuple[StsScore, ...]
    average: float
    average_name: str
    change: float | None = None


class Retrieval(StrictModel):
    """How often a text of a group finds another of it among all texts: recall at 1 and 10, in points.

    The changes are against the baseline.
    """

    groups: int
    recall1: float
    recall10: float
    change1: float | None = None
    change10: float | None = None


class Roofline(StrictModel):
    """How near throughput comes to the limit of the processor's arithmetic.

    Attributes:
        precision: of the products: ``int8``, ``bf16`` (torch) or ``fp32``, in which weight-only and half-precision
            graphs multiply, too.
        needed: 10^9 multiply-adds for 1,000 sentences, padding not counted.
        reached: 10^9 multiply-adds a second; ``peak``: of one large product; ``fraction``: reached / peak.
    """

    precision: Literal["fp32", "bf16", "int8"]
    needed: float
    reached: float
    peak: float
    fraction: float


class SubjectResult(StrictModel):
    """Everything measured of one subject; a value that could not be measured is None and ``notes`` says why.

    Attributes:
        kind: ``float32``, ``float16``, ``int8-static``, ``int8-dynamic``, ``weight-only``, ``bfloat16`` (torch);
            ``other`` if unknown.
        size_bytes: the graph file (a checkpoint: its weight files); ``zip_bytes``: the same, deflated.
        import_ms, load_ms, first_vector_ms: in a fresh process: importing the runtime, loading the model, and the
            first short text after that. The file is in the page cache.
        peak_rss_bytes: the process's largest resident size from its start on, seen after each throughput round.
        batch_dependence: worst cosine of a short text alone and beside long ones; 1 is independent.
        size_gain, zip_gain, load_gain, rss_gain: against the baseline.
    """

    name: str
    model: str
    variant: str | None
    backend: str
    kind: str
    file: str | None
    is_baseline: bool
    size_bytes: int | None
    zip_bytes: int | None
    parameters: int | None
    integer_matmuls: int | None
    weight_only_matmuls: int | None
    float_matmuls: int | None
    dim: int
    max_seq_length: int | None
    import_ms: Spread
    load_ms: Spread
    first_vector_ms: Spread
    peak_rss_bytes: int | None
    latency: tuple[Latency, ...]
    throughput: tuple[Throughput, ...]
    batch_dependence: float | None
    cosine: Cosine | None
    sts: StsResult | None
    retrieval: Retrieval | None = None
    roofline: Roofline | None = None
    size_gain: float | None = None
    zip_gain: float | None = None
    load_gain: float | None = None
    rss_gain: float | None = None
    notes: tuple[str, ...] = ()

    def latency_at(self, tokens: int) -> Latency:
        """The latency row of one length; KeyError names the lengths there are."""
        for row in self.latency:
            if row.tokens == tokens:
                return row
        raise KeyError(f"no latency at {tokens} tokens; measured: {[row.tokens for row in self.latency]}")

    @property
    def best_throughput(self) -> Throughput:
        """The fastest of the batch policies, with the run's own threads."""
        own = [row for row in self.throughput if row.threads is None]
        return max(own, key=lambda row: row.sentences_per_second.median)


class Sitting(StrictModel):
    """A stretch of measuring without interruption, on the machine as it was then.

    ``steps`` were measured in it. A killed sitting has neither ``seconds`` nor ``disturbance``.
    """

    started: str
    machine: MachineFacts
    steps: int = 0
    seconds: float | None = None
    disturbance: Disturbance | None = None


class BenchReport(StrictModel):
    """One run: the subjects side by side, on one machine, from one command.

    Attributes:
        peaks: 10^9 multiply-adds a second of a large product by precision; empty where it was not measured.
        seconds: of all sittings; ``machine`` and ``disturbance``: of the last one.
        sittings: one, or more where the run was interrupted and went on.
    """

    schema_version: Literal[1, 2, 3] = 3
    kind: Literal["distilface-bench"] = "distilface-bench"
    distilface_version: str
    created: str
    command: str
    target: str
    threads: int
    rounds: int
    seconds: float
    text_source: str
    text_count: int
    mean_tokens: float
    sts_source: str | None
    groups_source: str | None = None
    peaks: dict[str, float] = Field(default_factory=dict)
    short_tokens: int
    long_tokens: int
    baseline: str
    machine: MachineFacts
    disturbance: Disturbance
    sittings: tuple[Sitting, ...] = ()
    subjects: tuple[SubjectResult, ...] = Field(min_length=1)
    notes: tuple[str, ...] = ()

    def subject(self, name: str) -> SubjectResult:
        """The subject called ``name``, or whose variant alone has that name; KeyError lists the names."""
        for result in self.subjects:
            if result.name == name:
                return result
        matches = [result for result in self.subjects if result.variant == name]
        if len(matches) == 1:
            return matches[0]
        raise KeyError(f"no single subject {name!r}; the subjects are {', '.join(r.name for r in self.subjects)}")

    @property
    def baseline_result(self) -> SubjectResult:
        """The subject that the gains are computed against."""
        return self.subject(self.baseline)

    def to_json(self) -> str:
        """The report as indented JSON with a final newline."""
        return json.dumps(self.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, source: str = "the report") -> BenchReport:
        """Read a report written by `to_json`.

        Raises:
            UserError: not JSON, not a report, written by a newer schema, or with keys this schema does not know.
        """
        try:
            values: Any = json.loads(text)
        except ValueError as error:
            raise UserError(f"{source} is not valid JSON ({error}); pass a report.json of distilface bench") from None
        if not isinstance(values, dict) or values.get("kind") != "distilface-bench":
            raise UserError(f"{source} is not a benchmark report; pass a report.json written by distilface bench")
        version = values.get("schema_version")
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise UserError(f"{source} has schema version {version!r}; this distilface reads 1 to {SCHEMA_VERSION}")
        if version > SCHEMA_VERSION:
            raise UserError(f"{source} has schema version {version}; this distilface reads up to {SCHEMA_VERSION}: "
                            "pip install --upgrade distilface")
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise UserError(f"{source} is damaged at {first_fault(error)}; run distilface bench again") from None

    @classmethod
    def read(cls, file: str | Path) -> BenchReport:
        """`from_json` of a file, or of the report.json in a folder."""
        path = Path(file)
        path = path / "report.json" if path.is_dir() else path
        try:
            return cls.from_json(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"report {str(path)!r} can't be read: {error}") from None
