"""`quantize`: a bundle gains an INT8 variant that passed its gate, or stays as it was."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from distilface.artifact import (
    VARIANT_FILES,
    Bundle,
    Kind,
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
from distilface.quantization.gate import GateResult, enforce, measure
from distilface.runtime import Encoder
from distilface.tokenizer import Tokenizer, check_texts

Mode = Literal["dynamic", "static"]
MODES = ("dynamic", "static")
ISA_LIMITS = {"vnni": 127, "any": 64}
"""Largest INT8 weight. Without VNNI two U8xS8 products are added in 16 bits, which 2 x 255 x 64 = 32,640 still fits."""

MAX_DROP = 1.0
MAX_UNLIKENESS = 2.0
"""Default limit without labelled pairs. Similarities of random pairs reorder more easily than judgements change: a loss
of 1 point there goes with some 0.1 point of STS."""
MIN_COSINE = 0.95
CALIBRATION_TEXTS = 300
MIN_TEXTS = 10
HELD_OUT_TEXTS = 200
MAX_READ_TEXTS = 100_000
FLOOR_MARGIN = 0.01

Progress = Callable[[str, int, int], None]


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
             min_cosine: float = MIN_COSINE, labelled: StsPairs | None = None, target_isa: str = "vnni",
             calibration_texts: int = CALIBRATION_TEXTS, progress: Progress | None = None) -> QuantizeResult:
    """Add an INT8 variant to a bundle: every MatMul with a weight on integers, the embedding tables row-wise INT8.

    Args:
        mode: ``static`` needs ``calibration`` and gives vectors that never depend on their neighbours; ``dynamic``
            needs nothing and takes its ranges from each batch.
        calibration: sentences of the kind the model will see. The first ``calibration_texts`` set the ranges, later
            ones (up to 200) are held out for the gate. In dynamic mode they serve the gate alone.
        out: write a copy of the bundle there; by default the bundle itself gains the variant.
        overwrite: replace the variant, or the folder ``out``, if it exists.
        max_drop: most Spearman points that may be lost; on ``labelled`` pairs where given (default 1), else against
            fp32's own similarities of held-out texts (default 2).
        min_cosine: least cosine of any held-out vector to its fp32 vector.
        target_isa: ``vnni`` (avx512_vnni, avx_vnni, and Arm with dot products), or ``any``: weights limited to 64,
            so that processors without VNNI can't saturate.

    Raises:
        UserError: wrong arguments; a bundle that already has the variant; too few calibration texts.
        GateError: a limit is broken; the bundle is left as it was.
    """
    require("onnx", "export", "quantizing a graph")
    require("scipy", "export", "the quantization gate")
    opened, name = Bundle.open(bundle), f"int8-{mode}"
    _check_arguments(opened, name, mode, calibration, out, overwrite, target_isa, max_drop, min_cosine)
    destination = check_output(out, overwrite, [opened.folder]) if out is not None else None
    if destination is None and not os.access(opened.folder / "onnx", os.W_OK):
        raise UserError(f"bundle {str(opened.folder)!r} can't be written: no permission; pass --out FOLDER")
    say = progress or (lambda step, done, total: None)

    tokenizer = Tokenizer.load(opened.folder, opened.manifest.max_seq_length)
    fitting, held_out = _split(calibration, mode, calibration_texts)
    graph = opened.graph("fp32")
    opened.check_file(VARIANT_FILES["fp32"])
    with tempfile.TemporaryDirectory(prefix="distilface-quantize-") as work:
        scratch = Path(work) / "model.onnx"
        recipe, hint = _write_graph(graph, scratch, mode, tokenizer, fitting, ISA_LIMITS[target_isa], say)
        say("checking against fp32", 0, 1)
        result = _gate(graph, scratch, tokenizer, held_out, labelled)
        limit = MAX_DROP if labelled is not None else MAX_UNLIKENESS
        enforce(result, limit if max_drop is None else max_drop, min_cosine, hint)
        variant = _describe(scratch, name, opened, tokenizer, result, recipe | {"target_isa": target_isa})
        say("checking against fp32", 1, 1)
        if destination is None:
            _install(opened.folder, opened, name, variant, scratch)
        else:
            with atomic_directory(destination, overwrite) as folder:
                shutil.copytree(opened.folder, folder, dirs_exist_ok=True)
                _install(folder, opened, name, variant, scratch)
    finished = Bundle.open(destination or opened.folder)
    return QuantizeResult(finished, name, finished.variant(name), finished.variant("fp32").size, result)


def _check_arguments(bundle: Bundle, name: str, mode: str, calibration: Sequence[str] | None,
                     out: str | Path | None, overwrite: bool, target_isa: str, max_drop: float | None,
                     min_cosine: float) -> None:
    if mode not in MODES:
        raise UserError(f"unknown mode {mode!r}; allowed: {', '.join(MODES)}")
    if target_isa not in ISA_LIMITS:
        raise UserError(f"unknown target ISA {target_isa!r}; allowed: {', '.join(ISA_LIMITS)}")
    if max_drop is not None and not max_drop >= 0:
        raise UserError(f"max_drop is {max_drop}; allowed: 0 or more, in Spearman points")
    if not -1 <= min_cosine <= 1:
        raise UserError(f"min_cosine is {min_cosine}; allowed: -1 to 1")
    if mode == "static" and calibration is None:
        raise UserError("static INT8 needs sentences to calibrate on: --calibration FILE (some 500 of the kind the "
                        "model will see), or use --mode dynamic")
    if "fp32" not in bundle.manifest.variants:
        raise UserError(f"bundle {str(bundle.folder)!r} has no fp32 variant to quantize; it has "
                        f"{', '.join(bundle.variant_names)}: export the checkpoint again")
    if name in bundle.manifest.variants and out is None and not overwrite:
        raise UserError(f"bundle {str(bundle.folder)!r} already has {name}; pass --overwrite to replace it, or --out")


def _split(calibration: Sequence[str] | None, mode: str, fitting: int) -> tuple[list[str], list[str]]:
    """Distinct texts to set ranges on, and others to judge by; without a file, the gate reads the built-in commands."""
    if calibration is None:
        from distilface.smarthome import utterances

        return [], [item.text for item in utterances("test")]
    distinct = list(dict.fromkeys(text for text in check_texts(calibration) if text.strip()))
    if len(distinct) < MIN_TEXTS:
        raise UserError(f"calibration got {len(distinct)} distinct text(s); give at least {MIN_TEXTS}, better 500 "
                        "sentences of the kind the model will see")
    random.Random(0).shuffle(distinct)
    if mode == "dynamic":
        return [], distinct[:HELD_OUT_TEXTS]
    size = min(HELD_OUT_TEXTS, max(2, len(distinct) - fitting, len(distinct) // 5))
    return distinct[size : size + fitting], distinct[:size]


def _write_graph(graph: Path, scratch: Path, mode: str, tokenizer: Tokenizer, fitting: list[str], limit: int,
                 say: Progress) -> tuple[dict[str, Any], str]:
    """Write the quantized graph; returns its recipe and, for the gate's message, what to try when it is not enough."""
    import onnx

    from distilface.calibration import collect
    from distilface.quantization.dynamic import quantize_dynamic
    from distilface.quantization.static import groups_of, quantize_static

    model = onnx.load(str(graph))
    groups = groups_of(model)
    if not groups:
        raise UserError(f"{str(graph)!r} has no MatMul with a float weight; it is quantized already")
    if mode == "dynamic":
        say("quantizing", 0, 1)
        quantized = quantize_dynamic(model, limit)
        recipe: dict[str, Any] = {"mode": mode, "weights": "int8 per channel", "tables": "int8 per row"}
        hint = "Try --mode static with --calibration FILE"
    else:
        stats = collect(model, [group.source for group in groups], tokenizer, fitting,
                        lambda done, total: say("calibrating", done, total))
        quantized, choices = quantize_static(model, stats, limit=limit,
                                             progress=lambda done, total: say("quantizing", done, total))
        worst = sorted(choices.items(), key=lambda item: -item[1].error)[:3]
        named = ", ".join(f"{source} (relative error {choice.error:.1e})" for source, choice in worst)
        hint = f"The nodes that hurt most: {named}. Try more calibration texts of the right kind"
        recipe = {
            "mode": mode, "weights": "int8 per channel", "tables": "int8 per row",
            "calibration": {"texts": len(fitting), "sha256": _hash(fitting)},
            "groups": {source: {"smoothing": choice.smoothing, "clipping": choice.clipping,
                                "relative_error": float(f"{choice.error:.3g}")}
                       for source, choice in choices.items()},
        }
    onnx.checker.check_model(quantized)
    onnx.save_model(quantized, str(scratch))
    say("quantizing", 1, 1)
    return recipe, hint


def _gate(graph: Path, scratch: Path, tokenizer: Tokenizer, texts: list[str],
          labelled: StsPairs | None) -> GateResult:
    return measure(Encoder(graph, tokenizer), Encoder(scratch, tokenizer), texts, labelled)


def _describe(scratch: Path, name: str, bundle: Bundle, tokenizer: Tokenizer, result: GateResult,
              recipe: dict[str, Any]) -> Variant:
    """The manifest entry. Its cosine floor covers the held-out and the awkward texts, alone and with neighbours."""
    from distilface.onnxgraph import describe_variant

    encoder = Encoder(scratch, tokenizer)
    dependence = batch_dependence(encoder)
    golden = bundle.golden()
    expected = np.array([item.vector for item in golden], dtype=np.float32)
    alone = np.concatenate([encoder.embed_batch([item.ids]) for item in golden])
    together = encoder.embed_batch([item.ids for item in golden])
    worst = min(result.minimum_cosine, cosines(alone, expected).min(), cosines(together, expected).min())
    notes = []
    if name == "int8-dynamic":
        notes.append(f"a vector depends on what else is in its batch: cosine down to {dependence:.4f} between a text "
                     "alone and beside long ones")
    if recipe["target_isa"] == "vnni":
        notes.append("weights use the full INT8 range; on x86 processors without VNNI the products can saturate")
    floor = round(float(worst) - FLOOR_MARGIN, 4)
    return describe_variant(scratch, VARIANT_FILES[name], cast(Kind, name), dependence, floor,
                            recipe | {"gate": asdict(result)}, notes)


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


def _hash(texts: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()
