"""Which processors the integer products of a file are right on.

x86 without VNNI multiplies UINT8 by INT8 with ``vpmaddubsw``, which adds two products in 16 bits and saturates: two
such sums with weights of 127 under activations of 255 give 65,534 for 129,540. ONNX Runtime turns INT8 activations into
UINT8 there first, so they fare no better. With weights up to 64 no sum exceeds 2 x 255 x 64 = 32,640. Arm and VNNI add
in 32 bits.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING

from distilface.machine import instruction_sets

if TYPE_CHECKING:
    from distilface.artifact import Variant

FULL_RANGE = 127
PAIR_LIMIT = 64
ISA_LIMITS = {"vnni": FULL_RANGE, "avx2": PAIR_LIMIT, "arm": FULL_RANGE, "any": PAIR_LIMIT}
"""Largest INT8 weight that meets an integer product, by the processors a file is for."""
TARGET_ISA = "vnni"
_EXACT = {"avx_vnni", "avx512_vnni", "amx_int8"}


def pairs_saturate(architecture: str, sets: Sequence[str] | None) -> bool:
    """Whether a processor is known to add pairs of products in 16 bits; False where its sets are unknown."""
    return architecture.lower() in ("x86_64", "amd64") and sets is not None and not _EXACT & set(sets)


def saturation_warning(variant: Variant, architecture: str | None = None,
                       sets: Sequence[str] | None = None) -> str | None:
    """One line when ``variant`` can be wrong on this processor (or the one given), else None."""
    if variant.largest_integer_weight <= PAIR_LIMIT:
        return None
    if architecture is None:
        architecture, sets = platform.machine(), instruction_sets()
    if not pairs_saturate(architecture, sets):
        return None
    return (f"{variant.file} has INT8 weights up to {variant.largest_integer_weight} and this processor has no VNNI: "
            "sums of two products saturate at 16 bits and vectors can be wrong; quantize with --target-isa avx2 or any")
