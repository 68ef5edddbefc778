"""`quantize`: a bundle gains a smaller variant that passed its gate, or stays as it was."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distilface.artifact import (
    CARD,
    VARIANT_FILES,
    Bundle,
    Variant,
    atomic_directory,
    atomic_file,
    check_output,
    write_manifest,
)
from distilface.errors import UserError, require
from distilface.evaluation import StsPairs
from distilface.modelcard import write_card
from distilface.parity import batch_dependence, cosines
from distilface.quantization.gate import GateResult, broken_limits, enforce, measure
from distilface.quantization.graphs import Progress, write_graph
from distilface.quantization.recipe import CALIBRATED_MODES, Mode, Recipe, recipe_of
from distilface.runtime import Encoder
from distilface.tokenizer import Tokenizer, check_texts

MAX_DROP = 1.0
MAX_UNLIKENESS = 2.0
"""Default limit without labelled pairs. Similarities of random pairs reorder more easily than judgements change: a loss
of 1 point there goes with some 0.1 point of STS."""
MIN_COSINE = 0.95
MIN_COSINES = {"w4": 0.9, "pq": 0.9, "fp16": 0.999}
"""By mode or precision of the tables, the lower of both; the others' default is `MIN_COSINE`."""
MAX_UNLIKENESSES = {"w4": 4.0, "pq": 4.0}
"""Likewise, the higher of both; the others' default is `MAX_UNLIKENESS`."""
CALIBRATION_TEXTS = 300
MIN_TEXTS = 10
HELD_OUT_TEXTS = 200
MAX_READ_TEXTS = 100_000
FLOOR_MARGIN = 0.01


@dataclass(frozen=True)
class QuantizeResult:
    """The bundle, the new variant's name and manifest entry, fp32's size for comparison, and what the gate measured."""

    bundle: Bundle
    name: str
    variant: Variant
    fp32_size: int
    gate: GateResult


def quantize(bundle: str | Path, mode: Mode = "dynamic", calibration: Sequence[str] | None = None,
             out: str | Path | None = None, overwrite: bool = False, max_drop: float | None = None,
             min_cosine: float | None = None, labelled: StsPairs | None = None, target_isa: str | None = None,
             calibration_texts: int = CALIBRATION_TEXTS, progress: Progress | None = None,
             embeddings: str | None = None, block_size: int | None = None, keep_float: str | None = None,
             ranges: str | None = None) -> QuantizeResult:
    """Add a smaller variant to a bundle.

    Args:
        mode: ``static``, ``dynamic`` and ``token`` put every MatMul with a weight on integers. ``static`` needs
            ``calibration``; ``dynamic`` takes its ranges from each batch, ``token`` from each token. ``w8`` and ``w4``
            store weights in 8 or 4 bits and multiply in float. ``fp16`` is for GPUs. Only a ``dynamic`` vector
            depends on its neighbours.
        calibration: sentences of the kind the model will see. The first ``calibration_texts`` set the ranges, later
            ones (up to 200) are held out for the gate. ``w4`` uses them likewise, if given, to round better (GPTQ); in
            the other modes they serve the gate alone.
        out: write a copy of the bundle there; by default the bundle itself gains the variant.
        overwrite: replace the variant, or the folder ``out``, if it exists.
        max_drop: most Spearman points that may be lost; on ``labelled`` pairs where given (default 1), else against
            fp32's own similarities of held-out texts (default 2, for ``w4`` and ``pq`` 4).
        min_cosine: least cosine of any held-out vector to its fp32 vector; default 0.95, for ``w4`` and ``pq`` 0.9,
            for ``fp16`` 0.999.
        target_isa: of the INT8 modes. ``vnni`` (default): x86 with avx512_vnni or avx_vnni. ``avx2``: weights limited
            to 64, so that older x86 can't saturate. ``arm``: static activations as INT8. ``any``: right everywhere.
        embeddings: ``int8`` rows, ``int4`` blocks, ``pq`` (codebooks, 2 bits a value; ``calibration`` says which words
            matter) or ``fp32``; default as the weights.
        block_size: weights that share a scale, in ``w8`` (default 128) and ``w4`` (32).

        keep_float: in ``static``, what stays float: ``auto`` (default), the fewest groups of MatMuls with which the
            gate passes, at most half; a number, those whose quantization moves the vectors most; or names.
        ranges: in ``static``, how activation ranges are found: ``search`` (default) takes the one of least output
            error; ``minmax``, ``mse``, ``entropy``, ``percentile99.9``, ``percentile99.99``, ``percentile99.999``.

    Raises:
        UserError: wrong arguments; a bundle that already has the variant; too few calibration texts.
        GateError: a limit is broken; the bundle is left as it was.
    """
    require("onnx", "export", "quantizing a graph")
    require("scipy", "export", "the quantization gate")
    recipe = recipe_of(mode, embeddings, block_size, target_isa, keep_float, ranges)
    opened, name = Bundle.open(bundle), recipe.variant
    if min_cosine is None:
        min_cosine = min(MIN_COSINES.get(mode, MIN_COSINE), MIN_COSINES.get(recipe.tables, 1.0))
    _check_arguments(opened, recipe, calibration, out, overwrite, max_drop, min_cosine)
    destination = check_output(out, overwrite, [opened.folder]) if out is not None else None
    if destination is None and not os.access(opened.folder / "onnx", os.W_OK):
        raise UserError(f"bundle {str(opened.folder)!r} can't be written: no permission; pass --out FOLDER")
    say = progress or (lambda step, done, total: None)

    graph = opened.graph("fp32")
    # All files get a new sha256 at the end: an altered one must not pass for whole. These two are written anew.
    opened.check_files(set(opened.manifest.files) - {CARD, VARIANT_FILES[name]})
    tokenizer = Tokenizer.load(opened.folder, opened.manifest.max_seq_length)
    fitting, words, held_out = _split(calibration, mode, calibration_texts)
    with tempfile.TemporaryDirectory(prefix="distilface-quantize-") as work:
        scratch = Path(work) / "model.onnx"
        unlike = max(MAX_UNLIKENESSES.get(mode, MAX_UNLIKENESS), MAX_UNLIKENESSES.get(recipe.tables, 0.0))
        limit = MAX_DROP if labelled is not None else unlike
        limits = (limit if max_drop is None else max_drop, min_cosine)
        results: list[GateResult] = []

        def passes() -> bool:
            results.append(_gate(graph, scratch, tokenizer, held_out, labelled))
            return not broken_limits(results[-1], *limits)

        record, hint = write_graph(graph, scratch, recipe, tokenizer, fitting, words, say, passes)
        say("checking against fp32", 0, 1)
        result = results[-1] if results else _gate(graph, scratch, tokenizer, held_out, labelled)
        enforce(result, *limits, hint)
        variant = _describe(scratch, recipe, opened, tokenizer, result, record)
        say("checking against fp32", 1, 1)
        if destination is None:
            _install(opened.folder, opened, name, variant, scratch)
        else:
            with atomic_directory(destination, overwrite) as folder:
                shutil.copytree(opened.folder, folder, dirs_exist_ok=True)
                _install(folder, opened, name, variant, scratch)
    finished = Bundle.open(destination or opened.folder)
    return QuantizeResult(finished, name, finished.variant(name), finished.variant("fp32").size, result)


def _check_arguments(bundle: Bundle, recipe: Recipe, calibration: Sequence[str] | None, out: str | Path | None,
                     overwrite: bool, max_drop: float | None, min_cosine: float) -> None:
    if max_drop is not None and not max_drop >= 0:
        raise UserError(f"max_drop is {max_drop}; allowed: 0 or more, in Spearman points")
    if not -1 <= min_cosine <= 1:
        raise UserError(f"min_cosine is {min_cosine}; allowed: -1 to 1")
    if recipe.mode == "static" and calibration is None:
        raise UserError("static INT8 needs sentences to calibrate on: --calibration FILE (some 500 of the kind the "
                        "model will see), or use --mode token or dynamic")
    if "fp32" not in bundle.manifest.variants:
        raise UserError(f"bundle {str(bundle.folder)!r} has no fp32 variant to quantize; it has "
                        f"{', '.join(bundle.variant_names)}: export the checkpoint again")
    if recipe.variant in bundle.manifest.variants and out is None and not overwrite:
        raise UserError(f"bundle {str(bundle.folder)!r} already has {recipe.variant}; pass --overwrite to replace it, "
                        "or --out")


def _split(calibration: Sequence[str] | None, mode: str, fitting: int) -> tuple[list[str], list[str], list[str]]:
    """Distinct texts to set ranges on, all there are to count words in, and others than these to judge by.

    Without a file, the gate reads the built-in commands.
    """
    if calibration is None:
        from distilface.smarthome import utterances

        return [], [], [item.text for item in utterances("test")]
    distinct = list(dict.fromkeys(text for text in check_texts(calibration) if text.strip()))
    if len(distinct) < MIN_TEXTS:
        raise UserError(f"calibration got {len(distinct)} distinct text(s); give at least {MIN_TEXTS}, better 500 "
                        "sentences of the kind the model will see")
    random.Random(0).shuffle(distinct)
    if mode not in CALIBRATED_MODES:
        return [], distinct[HELD_OUT_TEXTS:], distinct[:HELD_OUT_TEXTS]
    size = min(HELD_OUT_TEXTS, max(2, len(distinct) - fitting, len(distinct) // 5))
    return distinct[size : size + fitting], distinct[size:], distinct[:size]


def _gate(graph: Path, scratch: Path, tokenizer: Tokenizer, texts: list[str],
          labelled: StsPairs | None) -> GateResult:
    return measure(Encoder(graph, tokenizer), Encoder(scratch, tokenizer), texts, labelled)


def _describe(scratch: Path, recipe: Recipe, bundle: Bundle, tokenizer: Tokenizer, result: GateResult,
              record: dict[str, Any]) -> Variant:
    """The manifest entry. Its cosine floor covers the held-out and the awkward texts, alone and with neighbours."""
    import onnx

    from distilface.onnxgraph import describe_variant
    from distilface.quantization.notes import notes_on

    encoder = Encoder(scratch, tokenizer)
    dependence = batch_dependence(encoder)
    golden = bundle.golden()
    expected = np.array([item.vector for item in golden], dtype=np.float32)
    alone = np.concatenate([encoder.embed_batch([item.ids]) for item in golden])
    together = encoder.embed_batch([item.ids for item in golden])
    worst = min(result.minimum_cosine, cosines(alone, expected).min(), cosines(together, expected).min())
    floor = round(float(worst) - FLOOR_MARGIN, 4)
    variant = describe_variant(scratch, VARIANT_FILES[recipe.variant], recipe.kind, dependence, floor,
                               record | {"gate": asdict(result)})
    return variant.model_copy(update={"notes": notes_on(variant, recipe, onnx.load(str(scratch)))})


def _install(folder: Path, bundle: Bundle, name: str, variant: Variant, scratch: Path) -> None:
    """Put the graph, the card and, last, the manifest into ``folder``."""
    with atomic_file(folder / variant.file) as target:
        shutil.copyfile(scratch, target)
    order = [known for known in VARIANT_FILES if known == name or known in bundle.manifest.variants]
    variants = {known: variant if known == name else bundle.manifest.variants[known] for known in order}
    scores = {known: value for known, value in bundle.manifest.scores.items() if known != name}
    manifest = bundle.manifest.model_copy(update={"variants": variants, "scores": scores})
    write_card(folder, manifest)
    write_manifest(folder, manifest)
