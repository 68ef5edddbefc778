"""The verb: load, shrink in a fixed order, prove, save."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from distilface import __version__
from distilface.artifact import atomic_directory, check_output
from distilface.encoder import SentenceEncoder
from distilface.errors import GateError, UserError
from distilface.golden import GOLDEN_TEXTS
from distilface.shrinking.distilbert import check_convertible, to_distilbert, without_token_types
from distilface.shrinking.ffn import prune_ffn
from distilface.shrinking.heads import prune_heads, without_dead_heads
from distilface.shrinking.layers import choose_layers, drop_layers
from distilface.shrinking.vocabulary import CHECK_FLOOR, COVERAGE, VocabularyReport, trim_vocabulary
from distilface.tokenizer import write_json

RECORD = "shrink.json"
CONVERSION_LIMIT = 2e-6
"""Largest change of any component of a unit vector that conversion to DistilBERT may cause: float32 rounding."""
CALIBRATION_TEXTS = 1000


@dataclass(frozen=True)
class ShrinkResult:
    """What was done; also the content of shrink.json (with the paths as text).

    Attributes:
        layers: the layers kept, numbered from 0 as they were; None when none was dropped.
        ffn: units kept in every FFN; ``heads``: attention heads kept in every layer, None for all.
        importance: of units and heads: ``"activation variance"`` or ``"weight magnitude"``; None where all stay.
        vocabulary: None when it was left whole.
        conversion_difference: largest component-wise change of the golden texts' unit vectors by conversion to
            DistilBERT; None when not converted.
        parameters_before, parameters_after: of the backbone, heads that add nothing left out.
        bytes_before, bytes_after: of these in float32, 4 for each.
    """

    out: Path
    model: str
    architecture: str
    layers: tuple[int, ...] | None
    ffn: int | None
    heads: int | None
    importance: str | None
    vocabulary: VocabularyReport | None
    conversion_difference: float | None
    parameters_before: int
    parameters_after: int

    @property
    def bytes_before(self) -> int:
        return 4 * self.parameters_before

    @property
    def bytes_after(self) -> int:
        return 4 * self.parameters_after


def shrink(model: str | Path, out: str | Path, *, keep_layers: Sequence[int] | None = None, layers: int | None = None,
           ranking: str | Path | None = None, ffn: int | None = None, calibration: str | Path | None = None,
           heads: int | None = None, vocabulary: str | Path | None = None, coverage: float = COVERAGE,
           check_texts: str | Path | None = None, check_floor: float = CHECK_FLOOR, to_distilbert: bool = False,
           pooling: str | None = None, overwrite: bool = False,
           progress: Callable[[str], None] | None = None) -> ShrinkResult:
    """Make a smaller checkpoint of ``model``: layers, FFN units, heads, vocabulary, conversion, in this order.

    Pooling, kept head and length limit stay as they are. Dropping layers, units and heads loses quality, which
    distillation recovers; trimming and conversion keep the vectors (of texts that need no removed piece).

    Args:
        keep_layers: the layers to keep, numbered from 0.
        layers: how many layers to keep, evenly spaced with the last one among them, or the best of ``ranking``.
        ranking: file with layers from most to least important: a JSON list, or a table with the column ``layer``.
        ffn: units to keep in each FFN.
        heads: attention heads to keep in each layer. The others are zeros in the checkpoint and gone from what is
            exported (see `heads`).
        calibration: file of texts; what units and heads do on its first 1,000 decides which stay, without it the
            magnitude of their weights.
        vocabulary: file of texts; its most frequent tokens, ``coverage`` percent of all, stay.
        check_texts: file of texts the result is for; refused below ``check_floor`` percent of tokens covered.
        to_distilbert: turn a BERT checkpoint into a DistilBERT one with the same vectors.
        pooling: overrides what the checkpoint says.
        progress: called with the name of each step.

    Raises:
        UserError: for nothing to do, wrong or contradicting arguments, or what the architecture can't express.
        GateError: when a step that must keep vectors changed them, or the result differs when loaded again.
    """
    say = progress or (lambda step: None)
    out = check_output(out, overwrite, [model, vocabulary, calibration, check_texts])
    wants_layers = any(item is not None for item in (keep_layers, layers, ranking))
    _check_request(wants_layers, ffn, calibration, heads, vocabulary, coverage, check_texts, to_distilbert)
    say("loading the checkpoint")
    encoder = SentenceEncoder.load(model, pooling)
    if to_distilbert:
        check_convertible(encoder.backbone.config)
    before = _parameters(encoder)
    kept: tuple[int, ...] | None = None
    if wants_layers:
        say("dropping layers")
        kept = choose_layers(encoder.num_layers, keep_layers, layers, ranking)
        drop_layers(encoder.backbone, kept)
        encoder = encoder.rebuilt()
    texts = None if calibration is None else _calibration_texts(calibration)
    if ffn is not None:
        say("pruning FFN units")
        prune_ffn(encoder, ffn, texts)
    if heads is not None:
        say("pruning attention heads")
        prune_heads(encoder, heads, texts)
    report = None
    if vocabulary is not None:
        say("trimming the vocabulary")
        tokenizer, report = trim_vocabulary(encoder, vocabulary, coverage, check_texts, check_floor)
        encoder = encoder.rebuilt(tokenizer=tokenizer)
    difference = None
    if to_distilbert:
        say("converting to DistilBERT")
        encoder, difference = _converted(encoder)
    result = ShrinkResult(
        out, str(model), encoder.backbone.config.model_type, kept, ffn, heads,
        None if ffn is heads is None else "weight magnitude" if texts is None else "activation variance", report,
        difference, before, _parameters(encoder))
    with atomic_directory(out, overwrite) as folder:
        say("saving")
        encoder.save(folder)
        write_json(folder / RECORD, {
            "created_by": f"distilface {__version__}", **asdict(result), "out": str(out),
            "bytes_before": result.bytes_before, "bytes_after": result.bytes_after})
        _check_saved(encoder, folder)
    return result


def _check_request(wants_layers: bool, ffn: Any, calibration: Any, heads: Any, vocabulary: Any, coverage: float,
                   check_texts: Any, to_distilbert: bool) -> None:
    if not (wants_layers or to_distilbert or any(item is not None for item in (ffn, heads, vocabulary))):
        raise UserError("nothing to shrink: give at least one of keep_layers, layers, ffn, heads, vocabulary, "
                        "to_distilbert")
    if calibration is not None and ffn is None and heads is None:
        raise UserError(f"calibration={str(calibration)!r} chooses FFN units and heads; give ffn or heads too, or drop "
                        "calibration")
    if coverage != COVERAGE and vocabulary is None:
        raise UserError(f"coverage={coverage:g} is for trimming a vocabulary; give vocabulary (a file of texts) too")
    if check_texts is not None and vocabulary is None:
        raise UserError(f"check_texts={str(check_texts)!r} checks a trimmed vocabulary; give vocabulary too")


def _converted(encoder: SentenceEncoder) -> tuple[SentenceEncoder, float]:
    before = encoder.encode(GOLDEN_TEXTS)
    converted = encoder.rebuilt(to_distilbert(encoder.backbone), without_token_types(encoder.tokenizer))
    difference = float(np.abs(converted.encode(GOLDEN_TEXTS) - before).max())
    if not difference <= CONVERSION_LIMIT:
        raise GateError(f"conversion to DistilBERT changed a vector by {difference:.2g} (allowed: {CONVERSION_LIMIT:g})"
                        "; keep the BERT checkpoint")
    return converted, difference


def _check_saved(encoder: SentenceEncoder, folder: Path) -> None:
    difference = float(np.abs(SentenceEncoder.load(folder).encode(GOLDEN_TEXTS) - encoder.encode(GOLDEN_TEXTS)).max())
    if not difference <= CONVERSION_LIMIT:
        raise GateError(f"the saved checkpoint differs from the one in memory by {difference:.2g} (allowed: "
                        f"{CONVERSION_LIMIT:g}); the weights hold values that are not finite, or the disk is at fault")


def _calibration_texts(file: str | Path) -> list[str]:
    from distilface.data import iter_texts
    from distilface.tokenizer import check_texts

    texts = list(islice((text for text in iter_texts(file) if text.strip()), CALIBRATION_TEXTS))
    if not texts:
        raise UserError(f"calibration {str(file)!r} holds no text: every row is blank")
    return check_texts(texts)


def _parameters(encoder: SentenceEncoder) -> int:
    return sum(tensor.numel() for tensor in without_dead_heads(encoder).backbone.parameters())
