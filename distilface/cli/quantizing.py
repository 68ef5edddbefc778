"""The verb that makes a bundle's graph smaller."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from distilface.cli.options import File, Number, Overwrite, Text
from distilface.cli.progress import out as console
from distilface.cli.progress import progress
from distilface.errors import UserError

if TYPE_CHECKING:
    from distilface.quantization import QuantizeResult

INT8_MODES = ("dynamic", "static", "token")


def quantize(
    bundle: Annotated[Path, typer.Argument(help="Bundle with an fp32 graph.")],
    int8: Annotated[bool, typer.Option("--int8", help="INT8 weights and products.")] = False,
    mode: Annotated[Text, typer.Option("--mode", help="dynamic (default), token, or static (--calibration).")] = None,
    weights: Annotated[Number, typer.Option("--weights", help="8 or 4 bits for weights alone; float products.")] = None,
    fp16: Annotated[bool, typer.Option("--fp16", help="Half precision, for GPUs.")] = False,
    embeddings: Annotated[Text, typer.Option("--embeddings", help="int8, int4, pq, fp32; default: by weights.")] = None,
    block_size: Annotated[Number, typer.Option("--block-size", help="Weights that share a scale: 16, 32, ...")] = None,
    calibration: Annotated[Text, typer.Option("--calibration", help="Sentences: ranges and held-out check.")] = None,
    column: Annotated[Text, typer.Option("--column", help="Column of the calibration file.")] = None,
    dev: Annotated[Text, typer.Option("--dev", help="Scored pairs for the gate: SentEval folder or file.")] = None,
    max_drop: Annotated[Optional[float], typer.Option(  # noqa: UP045
        "--max-drop", help="Most Spearman points to lose; default 1 on --dev pairs, else by precision.")] = None,
    min_cosine: Annotated[Optional[float], typer.Option(  # noqa: UP045
        "--min-cosine", help="Least held-out cosine to fp32; default by precision.")] = None,
    target_isa: Annotated[Text, typer.Option("--target-isa", help="vnni (default), avx2, arm or any.")] = None,
    keep_float: Annotated[Text, typer.Option("--keep-float", help="static: auto, N worst, or NODE,NODE.")] = None,
    ranges: Annotated[Text, typer.Option("--ranges", help="static: search, minmax, mse, entropy, percentileP.")] = None,
    out: Annotated[File, typer.Option("--out", "-o", help="Write a copy; default, extend the bundle.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Add a smaller variant to a bundle: INT8, 8- or 4-bit weights, or half precision.

    It must pass a quality gate, or the bundle stays as it is.
    """
    chosen = _mode(int8, mode, weights, fp16)
    from itertools import islice

    from distilface.data import iter_texts
    from distilface.evaluation import load_scored
    from distilface.quantization import MAX_READ_TEXTS
    from distilface.quantization import quantize as run
    from distilface.quantization.recipe import recipe_of

    recipe_of(chosen, embeddings, block_size, target_isa, keep_float, ranges)
    if column is not None and calibration is None:
        raise UserError("--column names a column of the calibration file; give --calibration FILE too")
    texts = list(islice(iter_texts(calibration, column), MAX_READ_TEXTS)) if calibration is not None else None
    labelled = load_scored(dev) if dev is not None else None
    with progress() as report:
        result = run(bundle, chosen, texts, out, overwrite, max_drop, min_cosine, labelled, target_isa,  # type: ignore[arg-type]
                     progress=report, embeddings=embeddings, block_size=block_size, keep_float=keep_float,
                     ranges=ranges)
    _print(result)


def _mode(int8: bool, mode: str | None, weights: int | None, fp16: bool) -> str:
    """The one precision that was asked for."""
    asked = [flag for flag, given in (("--int8", int8), ("--weights", weights is not None), ("--fp16", fp16)) if given]
    if len(asked) > 1:
        raise UserError(f"{' and '.join(asked)} contradict each other; give one a call: each makes its own variant")
    if mode is not None and not int8:
        raise UserError(f"--mode {mode} is a way to do INT8; give --int8 too"
                        f"{', or drop --mode' if asked else ''}")
    if mode is not None and mode not in INT8_MODES:
        raise UserError(f"unknown mode {mode!r}; allowed: {', '.join(INT8_MODES)}")
    if weights not in (None, 4, 8):
        raise UserError(f"--weights got {weights}; allowed: 8 or 4 bits")
    if not asked:
        raise UserError("say which precision: distilface quantize BUNDLE --int8 (or --weights 8, --weights 4, --fp16)")
    return (mode or "dynamic") if int8 else "fp16" if fp16 else f"w{weights}"


def _print(result: QuantizeResult) -> None:
    variant, gate = result.variant, result.gate
    total = variant.integer_matmuls + variant.float_matmuls + variant.weight_only_matmuls
    how = {"weight-only": f"{variant.weight_only_matmuls} of {total} MatMuls weight-only",
           "float16": f"{total} MatMuls in float16"}.get(variant.kind,
                                                         f"{variant.integer_matmuls} of {total} MatMuls on integers")
    console.print(f"{result.bundle.folder}: {result.name}, {variant.size / 1e6:.1f} MB (fp32 "
                  f"{result.fp32_size / 1e6:.1f}), {how}")
    console.print(f"held out: cosine to fp32 at least {gate.minimum_cosine:.4f}, mean {gate.mean_cosine:.4f}; Spearman "
                  f"drop {gate.drop:.2f} points ({'labelled pairs' if gate.labelled else 'against fp32 similarities'})")
    for note in variant.notes:
        console.print(f"note: {note}")
