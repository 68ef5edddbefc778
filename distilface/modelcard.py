"""The bundle's README.md: a model card generated from the manifest, so that no number is typed by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from distilface.artifact import CARD, Bundle, FileRecord, Manifest, Variant, atomic_file, replace_manifest
from distilface.loading import sha256_of

_PLAIN_POOLERS = {"cls": "the first token", "mean": "the mean over the attention mask",
                  "max": "the maximum over the attention mask"}


def write_card(folder: Path, manifest: Manifest) -> None:
    """Write ``README.md`` with the metadata block that model hubs read."""
    (folder / CARD).write_text(render_card(manifest), encoding="utf-8", newline="\n")


def record_scores(bundle: Bundle, variant: str, scores: Mapping[str, float]) -> None:
    """Keep a variant's scores in the manifest, and so in the card's table and its ``model-index`` metadata.

    Args:
        scores: Spearman x 100 by data set. They replace earlier ones of the same sets.
    """
    name = bundle.resolve_variant(variant)
    kept = bundle.manifest.scores
    manifest = bundle.manifest.model_copy(update={"scores": {**kept, name: {**kept.get(name, {}), **scores}}})
    card = bundle.folder / CARD
    with atomic_file(card) as temporary:
        temporary.write_text(render_card(manifest), encoding="utf-8", newline="\n")
    # Only the card's hash is new: hashing all again would give an altered file a clean record.
    listed = FileRecord(sha256=sha256_of(card), size=card.stat().st_size)
    replace_manifest(bundle.folder, manifest.model_copy(update={"files": {**manifest.files, CARD: listed}}))


def render_card(manifest: Manifest) -> str:
    """The model card as Markdown."""
    parts = [
        "---\n" + yaml.safe_dump(_metadata(manifest), sort_keys=False) + "---",
        "# Sentence encoder bundle",
        f"{manifest.architecture}, {manifest.num_layers} layers, {manifest.hidden_size} wide; vectors of "
        f"{manifest.dim} dimensions, L2-normalised; pooling `{manifest.pooling}`; texts over "
        f"{manifest.max_seq_length} tokens (special tokens included) are cut. Made by {manifest.created_by}.",
        _table(manifest),
        "## Use",
        "```python\nfrom distilface import Encoder\n\nvectors = Encoder.load(\"this-folder\", variant=\""
        f"{_suggested(manifest)}\").encode([\"Hello, World!\"])\n```",
        _outputs(manifest),
        *_forms(manifest),
        *_notes(manifest),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _metadata(manifest: Manifest) -> dict[str, Any]:
    values: dict[str, Any] = {
        "library_name": "sentence-transformers", "pipeline_tag": "sentence-similarity",
        "tags": ["sentence-transformers", "feature-extraction", "onnx", "transformers.js", "distilface"],
    }
    results = [{"task": {"type": "STS"}, "dataset": {"name": metric, "type": metric},
                "metrics": [{"type": "spearman_cosine", "name": f"{variant} {metric}", "value": value}]}
               for variant, scores in manifest.scores.items() for metric, value in scores.items()]
    if results:
        name = f"{manifest.architecture}-{manifest.num_layers}l-{manifest.dim}d"
        values["model-index"] = [{"name": name, "results": results}]
    return values


def _table(manifest: Manifest) -> str:
    metrics = list(dict.fromkeys(name for scores in manifest.scores.values() for name in scores))
    header = ["variant", "file", "size, MB", "integer MatMuls", "cosine to fp32, at least", "batch-invariant", *metrics]
    rows = [header, ["---"] * len(header)]
    for name, variant in manifest.variants.items():
        total = variant.integer_matmuls + variant.weight_only_matmuls + variant.float_matmuls
        scores = manifest.scores.get(name, {})
        rows.append([
            name, f"`{variant.file}`", f"{variant.size / 1e6:.1f}", f"{variant.integer_matmuls} of {total}",
            "1" if name == "fp32" else f"{variant.cosine_floor:.4f}", _invariance(variant),
            *(f"{scores[metric]:.2f}" if metric in scores else "" for metric in metrics)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _invariance(variant: Variant) -> str:
    return "yes" if variant.batch_invariant else f"no: cosine down to {variant.batch_dependence:.4f}"


def _outputs(manifest: Manifest) -> str:
    width = manifest.hidden_size * (4 if manifest.pooling == "concat_last4" else 1)
    if manifest.dim < width:
        return (f"The graph has two outputs: `sentence_embedding` is the one to use, cut to its first {manifest.dim} "
                f"of {width} dimensions and normalised; `last_hidden_state` holds the token states, not cut. Libraries "
                "that pool the first output themselves find no pooling module here, so that they fail instead of "
                "returning longer vectors.")
    if manifest.pooling == "layer_attention":
        return ("The graph has two outputs: `sentence_embedding`, pooled over all layers by a trained attention and "
                "normalised, is the one to use; `last_hidden_state` holds the last layer's token states, from which no "
                "other pooling gives it. Libraries that pool the first output themselves find no pooling module here, "
                "so that they fail instead of returning other vectors.")
    kind = manifest.pooling.split("_")[0].replace("concat", "mean")
    text = ("The graph has two outputs: `sentence_embedding`, pooled and normalised, is the one to use; "
            f"`last_hidden_state` holds the token states it is pooled from by {_PLAIN_POOLERS[kind]}")
    if manifest.head == "kept":
        return text + ", before the trained MLP head: only `sentence_embedding` is the trained vector."
    if manifest.pooling in ("cls", "mean_last", "max_last"):
        return text + "."
    return text + f" (they combine layers as `{manifest.pooling}` asks, not the last layer alone)."


def _forms(manifest: Manifest) -> list[str]:
    lines = []
    for form in manifest.forms:
        what = ("takes strings (`text`, one axis) and gives `sentence_embedding` and `input_ids`" if form.kind == "text"
                else f"is {form.variant} in ONNX Runtime's own format (operators: `{form.required_operators}`)")
        other = f" The ids are those of tokenizer.json, but: {'; '.join(form.differences)}." if form.differences else ""
        lines.append(f"- `{form.file}`, {form.size / 1e6:.1f} MB, {what}; needs {form.needs}.{other}")
    return ["## Other forms", "\n".join(lines)] if lines else []


def _notes(manifest: Manifest) -> list[str]:
    notes = [f"- {name}: {note}" for name, variant in manifest.variants.items() for note in variant.notes]
    return ["## Notes", "\n".join(notes)] if notes else []


def _suggested(manifest: Manifest) -> str:
    return "int8" if any(name.startswith("int8") for name in manifest.variants) else "fp32"
