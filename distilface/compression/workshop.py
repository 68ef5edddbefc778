"""Makes and measures candidates; what is made stays in the search's folder, so nothing is made twice."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from distilface.artifact import Bundle
from distilface.benchmarking.worker import timed_calls
from distilface.compression.points import Point
from distilface.compression.space import Base, Candidate, GraphParts
from distilface.delivery import deliver
from distilface.evaluation import StsPairs, bootstrap_difference, similarities, spearman
from distilface.quantization import quantize
from distilface.quantization.recipe import BITS, VARIANTS
from distilface.runtime import Encoder

LATENCY_TOKENS = (12, 16)
LATENCY_TEXTS = 16
LATENCY_CALLS = 160
WARMUP_CALLS = 20
NO_LIMIT, NO_COSINE = 100.0, -1.0
"""Limits of `quantize` that let everything pass: the search is the judge."""

Say = Callable[[str], None]


def quiet(step: str) -> None:
    """No progress wanted."""


@dataclass
class Workshop:
    """Where candidates are made.

    Attributes:
        model: the checkpoint to compress, as the user named it.
        calibration: file of texts: ranges, rounding and, without another, the vocabulary.
        vocabulary: file of texts whose tokens the trimmed vocabularies must cover.
        texts: the calibration texts that `quantize` reads.
        dev_source: file or folder of the scored pairs ``dev``.
        folder: of the search.
    """

    model: str
    calibration: str
    vocabulary: str
    texts: list[str]
    dev_source: str
    dev: StsPairs
    folder: Path

    def bundle(self, base: Base, say: Say = quiet) -> Bundle:
        """The float32 bundle of ``base``."""
        out = self.folder / "work" / base.slug / "bundle"
        if not out.exists():
            from distilface.exporter import export

            export(self._checkpoint(base, say), out, progress=lambda stage, *_: say(f"{base.slug}: {stage}"))
        return Bundle.open(out)

    def _checkpoint(self, base: Base, say: Say) -> str | Path:
        if base == Base():
            return self.model
        return self.shrunk(base, say) if base.layers is None else self.student(base)

    def shrunk(self, base: Base, say: Say = quiet) -> Path:
        """The checkpoint with layers dropped and vocabulary trimmed, before any training."""
        out = self.folder / "work" / base.slug / "shrunk"
        if not out.exists():
            from distilface.shrinking import shrink
            from distilface.shrinking.vocabulary import COVERAGE

            trimmed = base.coverage < 100
            shrink(self.model, out, keep_layers=base.layers, vocabulary=self.vocabulary if trimmed else None,
                   coverage=base.coverage if trimmed else COVERAGE,
                   progress=lambda stage: say(f"{base.slug}: {stage}"))
        return out

    def teacher(self) -> Encoder:
        """The whole model's float32 graph."""
        return Encoder.load(self.bundle(Base()).folder, "fp32")

    def student(self, base: Base) -> Path:
        """The checkpoint after distillation."""
        return self.folder / "work" / base.slug / "student"

    def measure(self, candidate: Candidate, say: Say) -> Point:
        """Make the candidate and measure it, or read what an earlier run measured."""
        file = self.folder / "points" / f"{candidate.slug}.json"
        if file.is_file():
            return Point.read(file)
        made = self._make(candidate, say)
        say(f"{candidate.words}: measuring")
        (variant,) = made.variant_names
        encoder = Encoder.load(made.folder, variant)
        scores = self.scored(encoder)
        difference = bootstrap_difference(self.dev.gold, self._reference_scores, scores)
        record = made.variant(variant)
        point = Point(
            candidate.slug, candidate.base.slug, candidate.words, variant, record.size,
            sum(item.stat().st_size for item in made.folder.rglob("*") if item.is_file()),
            encoder.tokenizer.backend.get_vocab_size(), made.manifest.num_layers,
            100 * spearman(self.dev.gold, scores), _lost(difference.difference), _lost(difference.high),
            _lost(difference.low), self.latency(encoder), record.batch_invariant, record.integer_matmuls,
            record.integer_matmuls + record.weight_only_matmuls + record.float_matmuls, self.commands(candidate))
        point.write(file)
        return point

    def _make(self, candidate: Candidate, say: Say) -> Bundle:
        """A bundle with this one graph."""
        base = self.bundle(candidate.base, say)
        out = self.folder / "work" / candidate.base.slug / "graphs" / candidate.slug
        if candidate.mode is None:
            return base
        if out.exists():
            return Bundle.open(out)
        made = quantize(
            base.folder, candidate.mode, self.texts, out.with_name(f"{out.name}.all"), overwrite=True,
            embeddings=candidate.tables, labelled=None if candidate.mixed is None else self.dev,
            keep_float=None if candidate.mode != "static" else "0" if candidate.mixed is None else "auto",
            max_drop=NO_LIMIT if candidate.mixed is None else candidate.mixed, min_cosine=NO_COSINE,
            progress=lambda stage, *_: say(f"{candidate.words}: {stage}"))
        delivered = deliver(made.bundle.folder, out, made.name)
        shutil.rmtree(made.bundle.folder)
        return delivered

    def made(self, point: Point) -> Path:
        """The bundle that a point was measured on."""
        base = self.folder / "work" / point.base
        return base / "bundle" if point.variant == "fp32" else base / "graphs" / point.slug

    def scored(self, encoder: Encoder) -> NDArray[np.float64]:
        """Cosines of the dev pairs."""
        return np.asarray(similarities(encoder, [self.dev])[0], dtype=np.float64)

    @cached_property
    def _reference_scores(self) -> NDArray[np.float64]:
        return self.scored(self.teacher())

    @cached_property
    def reference(self) -> float:
        """Dev Spearman of the float32 model, in points."""
        return 100 * spearman(self.dev.gold, self._reference_scores)

    def latency(self, encoder: Encoder) -> float:
        """Median milliseconds of one short text, by all processors this process may use."""
        low, high = LATENCY_TOKENS
        lengths = zip(self.texts, encoder.tokenizer.encode_batch(self.texts[:1000]), strict=False)
        fitting = [text for text, ids in lengths if low <= len(ids) <= high][:LATENCY_TEXTS] or self.texts[:1]
        return 1000 * median(timed_calls(encoder.encode, fitting, LATENCY_CALLS, WARMUP_CALLS))

    def parts(self) -> GraphParts:
        """What the whole model's graph is made of."""
        whole = self.bundle(Base())
        return GraphParts.of(whole.graph("fp32"), whole.manifest.num_layers)

    def commands(self, candidate: Candidate) -> tuple[str, ...]:
        """The commands that make the candidate again, with relative folder names."""
        base, model = candidate.base, self.model
        lines = []
        if base != Base():
            shrunk = ["distilface", "shrink", self.model, "--out", f"{base.slug}/shrunk"]
            if base.layers is not None:
                shrunk += ["--keep-layers", ",".join(map(str, base.layers))]
            if base.coverage != 100:
                shrunk += ["--vocabulary", self.vocabulary, "--coverage", f"{base.coverage:g}"]
            lines.append(shrunk)
            model = f"{base.slug}/shrunk"
        if base.layers is not None:
            config = self.student(base).with_name("student.yaml")
            lines.append(["distilface", "distill", "--config", str(config), "--out", f"{base.slug}/student"])
            model = f"{base.slug}/student"
        bundle = f"{base.slug}/bundle"
        lines.append(["distilface", "export", model, "--out", bundle])
        variant = "fp32"
        if candidate.mode is not None:
            variant = VARIANTS[candidate.mode][0]
            lines.append(["distilface", "quantize", bundle, *self._flags(candidate), "--calibration",
                          self.calibration, "--embeddings", candidate.tables, "--overwrite"])
        lines.append(["distilface", "export", bundle, "--variant", variant, "--out", candidate.slug])
        return tuple(shlex.join(line) for line in lines)

    def _flags(self, candidate: Candidate) -> list[str]:
        assert candidate.mode is not None
        if candidate.mode in BITS:
            flags = ["--weights", str(BITS[candidate.mode])]
        else:
            flags = ["--int8", "--mode", candidate.mode]
        if candidate.mixed is not None:
            return [*flags, "--keep-float", "auto", "--dev", self.dev_source, "--max-drop", f"{candidate.mixed:g}",
                    "--min-cosine", f"{NO_COSINE:g}"]
        if candidate.mode == "static":
            flags += ["--keep-float", "0"]
        return [*flags, "--max-drop", f"{NO_LIMIT:g}", "--min-cosine", f"{NO_COSINE:g}"]


def _lost(difference: float) -> float:
    """Points that a change of Spearman loses; no negative zero."""
    return round(-100 * difference, 4) + 0.0
