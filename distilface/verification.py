"""`verify`: a bundle proves itself again, from its files alone and without torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from distilface.artifact import MANIFEST, Bundle, Form
from distilface.errors import DistilfaceError, GateError
from distilface.isa import ISA_LIMITS
from distilface.parity import FP32_FLOOR, INVARIANT, batch_dependence, cosines
from distilface.runtime import Encoder
from distilface.tokenizer import Tokenizer, check_texts

UNIT_TOLERANCE = 1e-5
EMPTY_TEXTS = ["", "   ", "\x00", "\u200b"]
AWKWARD_TEXTS = [*EMPTY_TEXTS, "😀", "[SEP]", "half an emoji \ud83d"]
DEPENDENCE_MARGIN = 0.01
"""Another processor rounds a little differently than the one a variant was measured on."""
_LENGTH_LIMITS: dict[str, Callable[[Any], int]] = {
    "sentence_bert_config.json": lambda values: values["max_seq_length"],
    "tokenizer_config.json": lambda values: values["model_max_length"],
    "tokenizer.json": lambda values: values["truncation"]["max_length"],
}


@dataclass(frozen=True)
class Check:
    """One thing that was checked, what was found, and whether it is right."""

    name: str
    passed: bool
    detail: str


def verify(folder: str | Path, variant: str | None = None,
           progress: Callable[[str], None] | None = None) -> list[Check]:
    """Check a bundle: file hashes, one length limit, golden ids and vectors, batch invariance, shapes.

    Args:
        variant: check this graph alone; default, all of them.

    Returns:
        every check, passed or not; the caller decides (the command exits with 1 when one failed).

    Raises:
        UserError: this is no bundle, or it has no such variant.
    """
    bundle = Bundle.open(folder)
    names = bundle.variant_names if variant is None else [bundle.resolve_variant(variant)]
    checks: list[Check] = []
    for check in _checks(bundle, names):
        checks.append(check)
        if progress is not None:
            progress(check.name)
    return checks


def _checks(bundle: Bundle, names: list[str]) -> Iterator[Check]:
    intact = True
    for relative in bundle.manifest.files:
        try:
            bundle.check_file(relative)
        except GateError as error:
            intact = False
            yield Check("files", False, str(error))
    if not intact:
        return  # what altered files would go on to say means nothing
    yield Check("files", True, f"{len(bundle.manifest.files)} files have the sha256 the manifest says")
    yield _unlisted(bundle)
    yield _one_limit(bundle)
    tokenizer = Tokenizer.load(bundle.folder, bundle.manifest.max_seq_length)
    yield _golden_ids(bundle, tokenizer)
    for name in names:
        try:
            encoder = Encoder.load(bundle.folder, name)
            yield from _graph_checks(bundle, name, encoder)
        except DistilfaceError as error:
            yield Check(f"{name}: loads", False, str(error))
    for form in bundle.manifest.forms:
        if form.kind == "ort" and form.variant in names:
            yield _ort_form(bundle, form, tokenizer)


def _unlisted(bundle: Bundle) -> Check:
    present = {path.relative_to(bundle.folder).as_posix() for path in bundle.folder.rglob("*") if path.is_file()}
    extra = sorted(present - set(bundle.manifest.files) - {MANIFEST})
    return Check("no stray files", not extra, f"not in the manifest: {', '.join(extra[:5])}" if extra else "none")


def _one_limit(bundle: Bundle) -> Check:
    found = {"manifest": bundle.manifest.max_seq_length}
    padding = None
    for name, read in _LENGTH_LIMITS.items():
        try:
            values = json.loads((bundle.folder / name).read_text(encoding="utf-8"))
            found[name] = read(values)
        except (OSError, ValueError, KeyError, TypeError):
            return Check("one length limit", False, f"{name} names no length limit; export the checkpoint again")
        padding = values.get("padding") if name == "tokenizer.json" else padding
    if padding is not None:
        return Check("one length limit", False, "tokenizer.json pads every text to a fixed length")
    same = len(set(found.values())) == 1
    return Check("one length limit", same, str(bundle.manifest.max_seq_length) if same else
                 ", ".join(f"{name}: {value}" for name, value in found.items()))


def _golden_ids(bundle: Bundle, tokenizer: Tokenizer) -> Check:
    golden = bundle.golden()
    rows = tokenizer.encode_batch([item.text for item in golden])
    wrong = [item.text for item, row in zip(golden, rows, strict=True) if item.ids != row]
    return Check("golden ids", not wrong, f"differ for {wrong[0][:40]!r}" if wrong else f"{len(golden)} texts")


def _graph_checks(bundle: Bundle, name: str, encoder: Encoder) -> Iterator[Check]:
    record = bundle.manifest.variants[name]
    golden = bundle.golden()
    ids = [item.ids for item in golden]
    expected = np.array([item.vector for item in golden], dtype=np.float32)
    floor = FP32_FLOOR if name == "fp32" else record.cosine_floor

    alone = np.concatenate([encoder.embed_batch([row]) for row in ids])
    near = float(cosines(alone, expected).min())
    yield Check(f"{name}: golden vectors", near >= floor, f"minimum cosine {near:.6f}, floor {floor}")

    norms = np.linalg.norm(alone.astype(np.float64), axis=1)
    off = float(np.abs(norms - 1).max())
    yield Check(f"{name}: unit vectors", off <= UNIT_TOLERANCE and alone.shape == (len(ids), bundle.manifest.dim),
                f"shape {alone.shape}, norms within {off:.1e} of 1")

    dependence = batch_dependence(encoder, [item.text for item in golden])
    allowed = INVARIANT if record.batch_invariant else round(record.batch_dependence - DEPENDENCE_MARGIN, 6)
    yield Check(f"{name}: neighbours", dependence >= allowed,
                f"cosine {dependence:.7f} alone and in company, allowed {allowed}")

    yield _shapes(name, encoder, allowed)
    yield from _integer_weights(bundle, name)
    vectors = encoder.encode_ids(encoder.tokenizer.encode_batch(check_texts(AWKWARD_TEXTS)))
    blank = vectors[: len(EMPTY_TEXTS)]
    # Blank texts have the same ids only where the tokenizer drops blanks, as BERT's does.
    rows = encoder.tokenizer.encode_batch(EMPTY_TEXTS)
    alike = rows.count(rows[0]) == len(rows) and record.batch_invariant
    same = not alike or float(cosines(blank, blank[:1]).min()) >= INVARIANT
    yield Check(f"{name}: awkward texts", bool(np.isfinite(vectors).all()) and same,
                "finite, blank texts alike" if same else "blank texts have different vectors")


def _ort_form(bundle: Bundle, form: Form, tokenizer: Tokenizer) -> Check:
    record = bundle.manifest.variants[form.variant]
    floor = FP32_FLOOR if form.variant == "fp32" else record.cosine_floor
    golden = bundle.golden()
    try:
        encoder = Encoder(bundle.folder / form.file, tokenizer)
        found = np.concatenate([encoder.embed_batch([item.ids]) for item in golden])
    except DistilfaceError as error:
        return Check(f"{form.variant}: ORT format", False, str(error))
    near = float(cosines(found, np.array([item.vector for item in golden], dtype=np.float32)).min())
    return Check(f"{form.variant}: ORT format", near >= floor, f"minimum cosine {near:.6f}, floor {floor}")


def _integer_weights(bundle: Bundle, name: str) -> Iterator[Check]:
    """No INT8 weight is too large for the processors the variant is for; read from the graph where onnx is there.

    Without onnx the manifest's number stands: it was read from the file with the sha256 that was checked.
    """
    record = bundle.manifest.variants[name]
    target = record.recipe.get("target_isa")
    if target not in ISA_LIMITS:
        return
    largest, source = record.largest_integer_weight, "the manifest"
    if find_spec("onnx") is not None:
        import onnx

        from distilface.onnxgraph import largest_integer_weight

        largest, source = largest_integer_weight(onnx.load(str(bundle.graph(name)))), "the graph"
    yield Check(f"{name}: integer weights", largest <= ISA_LIMITS[target] and largest == record.largest_integer_weight,
                f"up to {largest} in {source}, {record.largest_integer_weight} in the manifest, allowed for {target}: "
                f"{ISA_LIMITS[target]}")


def _shapes(name: str, encoder: Encoder, allowed: float) -> Check:
    """Batches 1, 2, 7 by lengths 1, 2, 3, 17, 64, max: every row as when it is alone."""
    limit = encoder.max_seq_length
    random = np.random.default_rng(0)
    vocabulary = encoder.tokenizer.backend.get_vocab_size()
    worst, where = 1.0, "1 x 1"
    for length in sorted({1, 2, 3, min(17, limit), min(64, limit), limit}):
        rows = [random.integers(0, vocabulary, length).tolist() for _ in range(7)]
        alone = np.concatenate([encoder.embed_batch([row]) for row in rows])
        for batch in (2, 7):
            value = float(cosines(encoder.embed_batch(rows[:batch]), alone[:batch]).min())
            if not value >= worst:
                worst, where = value, f"{batch} x {length}"
    return Check(f"{name}: shapes", worst >= allowed, f"up to 7 x {limit}, worst cosine {worst:.7f} at {where}")


def require_passed(folder: str | Path, checks: list[Check]) -> None:
    """Raise `GateError` naming the first failed check."""
    failed = [check for check in checks if not check.passed]
    if failed:
        raise GateError(f"{str(folder)!r} failed {len(failed)} of {len(checks)} checks; first: {failed[0].name}: "
                        f"{failed[0].detail}")


