"""What one call of `quantize` makes: precision, embedding tables, block size, and the processors it is for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from distilface.artifact import Kind
from distilface.errors import UserError
from distilface.isa import ISA_LIMITS, TARGET_ISA
from distilface.quantization.blocks import check_block_size
from distilface.quantization.ranges import RANGE_METHODS, SEARCH

Mode = Literal["dynamic", "static", "token", "w8", "w4", "fp16"]
VARIANTS: dict[str, tuple[str, Kind]] = {
    "dynamic": ("int8-dynamic", "int8-dynamic"), "static": ("int8-static", "int8-static"),
    "token": ("int8-token", "int8-token"), "w8": ("w8", "weight-only"), "w4": ("w4", "weight-only"),
    "fp16": ("fp16", "float16"),
}
"""Variant name and kind of each mode."""
INTEGER_MODES = ("dynamic", "static", "token")
CALIBRATED_MODES = ("static", "w4")
BITS = {"w8": 8, "w4": 4}
BLOCK_SIZES = {8: 128, 4: 32}
"""Default block sizes by bits."""

Tables = Literal["fp32", "int8", "int4", "pq"]
TABLES = ("fp32", "int8", "int4", "pq")


@dataclass(frozen=True)
class Recipe:
    """Checked and complete: see `recipe_of`. ``None`` is what means nothing to the mode."""

    mode: Mode
    tables: Tables
    block_size: int | None
    target_isa: str | None
    keep_float: str | None = None
    ranges: str | None = None

    @property
    def variant(self) -> str:
        return VARIANTS[self.mode][0]

    @property
    def kind(self) -> Kind:
        return VARIANTS[self.mode][1]

    @property
    def limit(self) -> int:
        """Largest INT8 weight."""
        return ISA_LIMITS[self.target_isa or TARGET_ISA]

    @property
    def signed(self) -> bool:
        """Static activations as INT8 instead of UINT8: what ONNX Runtime's Arm kernels are fastest on."""
        return self.target_isa == "arm"


def recipe_of(mode: str, embeddings: str | None = None, block_size: int | None = None,
              target_isa: str | None = None, keep_float: str | None = None, ranges: str | None = None) -> Recipe:
    """Fill in the defaults.

    Args:
        embeddings: ``int8``, ``int4``, ``pq`` or ``fp32``; default as the weights: ``int4`` with ``w4``, else ``int8``.
        block_size: for ``w8`` (default 128) and ``w4`` (32).
        target_isa: for the INT8 modes: ``vnni`` (default), ``avx2``, ``arm`` or ``any``.
        keep_float: for ``static``: ``auto`` (default), how many groups of MatMuls, or names; see `sensitivity`.
        ranges: for ``static``: ``search`` (default) or a way to activation ranges by name, see `ranges`.

    Raises:
        UserError: an unknown value, or two that contradict each other.
    """
    if mode not in VARIANTS:
        raise UserError(f"unknown mode {mode!r}; allowed: {', '.join(VARIANTS)}")
    if embeddings is not None and embeddings not in TABLES:
        raise UserError(f"unknown precision of embeddings {embeddings!r}; allowed: {', '.join(TABLES)}")
    if embeddings is not None and mode == "fp16":
        raise UserError("fp16 stores the embedding tables in half precision as well; leave --embeddings out")
    if block_size is not None and mode not in BITS:
        raise UserError(f"a block size means nothing to {VARIANTS[mode][0]}, which has one scale a channel; leave "
                        "--block-size out, or use --weights 8 or 4")
    if target_isa is not None and target_isa not in ISA_LIMITS:
        raise UserError(f"unknown target ISA {target_isa!r}; allowed: {', '.join(ISA_LIMITS)}")
    if target_isa is not None and mode not in INTEGER_MODES:
        raise UserError(f"a target ISA means nothing to {VARIANTS[mode][0]}, which multiplies in float; leave "
                        "--target-isa out, or use --int8")
    if mode != "static" and (keep_float is not None or ranges is not None):
        flag = "--keep-float" if keep_float is not None else "--ranges"
        raise UserError(f"{flag} means nothing to {VARIANTS[mode][0]}, which is not calibrated; leave it out, or use "
                        "--int8 --mode static")
    if ranges is not None and ranges not in RANGE_METHODS:
        raise UserError(f"unknown ranges {ranges!r}; allowed: {', '.join(RANGE_METHODS)}")
    tables = embeddings or ("fp32" if mode == "fp16" else "int4" if mode == "w4" else "int8")
    size = BLOCK_SIZES.get(BITS.get(mode, 0)) if block_size is None else check_block_size(block_size)
    isa = (target_isa or TARGET_ISA) if mode in INTEGER_MODES else None
    calibrated = (keep_float or "auto", ranges or SEARCH) if mode == "static" else (None, None)
    return Recipe(mode, tables, size, isa, *calibrated)  # type: ignore[arg-type]
