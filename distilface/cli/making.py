"""The verbs that make something: each parses, calls one function of the library, and prints what came back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from distilface.cli.options import File, Number, Overwrite, Sets, Text, numbers
from distilface.cli.progress import out as console
from distilface.cli.progress import progress, show_table
from distilface.errors import UserError

if TYPE_CHECKING:
    from distilface.training import TrainResult


def train(
    config: Annotated[File, typer.Option("--config", help="YAML with differences from the defaults.")] = None,
    sets: Sets = None,
    model: Annotated[Text, typer.Option("--model", help="Checkpoint folder or Hub id to start from.")] = None,
    data: Annotated[Text, typer.Option("--data", help="Training text: a file, or a Hub data set id.")] = None,
    kind: Annotated[Text, typer.Option("--kind", help="sentences, pairs, groups, triplets or scored.")] = None,
    pooling: Annotated[Text, typer.Option("--pooling", help="cls, mean_last4, ... (see README).")] = None,
    head: Annotated[Text, typer.Option("--head", help="none, train_only or kept.")] = None,
    steps: Annotated[Number, typer.Option("--steps", help="Optimizer steps.")] = None,
    batch_size: Annotated[Number, typer.Option("--batch-size", help="Examples a step.")] = None,
    precision: Annotated[Text, typer.Option("--precision", help="fp32, bf16, fp16 or auto.")] = None,
    sts: Annotated[Text, typer.Option("--sts", help="Scored dev pairs: SentEval folder, file or Hub id.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Checkpoint folder to write.")] = Path("runs/model"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on from an interrupted run's checkpoint.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Fine-tune an encoder contrastively: text -> checkpoint.

    Unsupervised SimCSE on sentences; supervised on pairs, groups, or triplets with hard negatives.
    """
    from distilface.config import load_config
    from distilface.training import TrainConfig
    from distilface.training import train as run

    overrides: dict[str, Any] = {
        "model": {"name": model, "pooling": pooling, "head": head},
        "train": {"max_steps": steps, "batch_size": batch_size, "precision": precision}, "eval": {"sts": sts},
    }
    if data is not None:
        overrides["data"] = {"path": data, "kind": kind}
    elif kind is not None:
        raise UserError("--kind says what --data holds; give --data too, or set data in the config file")
    if config is None and model is None:
        raise UserError("nothing to train: give --model MODEL and --data FILE, or --config FILE (see configs/train/)")
    _print_training(run(load_config(TrainConfig, config, sets or (), overrides), out, resume, overwrite))


def distill(
    config: Annotated[File, typer.Option("--config", help="YAML with differences from the defaults.")] = None,
    sets: Sets = None,
    teacher: Annotated[Text, typer.Option("--teacher", help="Model or bundle; or its .npy/.parquet vectors.")] = None,
    student: Annotated[Text, typer.Option("--student", help="Checkpoint or Hub id; default: the teacher.")] = None,
    layers: Annotated[Number, typer.Option("--layers", help="How many of its layers to keep, evenly spaced.")] = None,
    keep_layers: Annotated[Text, typer.Option("--keep-layers", help="Which layers to keep, from 0: 1,3,5.")] = None,
    data: Annotated[Text, typer.Option("--data", help="Training text: a file, or a Hub data set id.")] = None,
    kind: Annotated[Text, typer.Option("--kind", help="sentences, pairs, groups, triplets or scored.")] = None,
    steps: Annotated[Number, typer.Option("--steps", help="Optimizer steps.")] = None,
    batch_size: Annotated[Number, typer.Option("--batch-size", help="Examples a step.")] = None,
    precision: Annotated[Text, typer.Option("--precision", help="fp32, bf16, fp16 or auto.")] = None,
    sts: Annotated[Text, typer.Option("--sts", help="Scored dev pairs: SentEval folder, file or Hub id.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Checkpoint folder to write.")] = Path("runs/student"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on from an interrupted run's checkpoint.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Train a student on a teacher's vectors: text -> checkpoint.

    The teacher is anything that encodes, or a file of its vectors; they are computed once and cached.
    """
    from distilface.config import load_config
    from distilface.distillation import DistillConfig
    from distilface.distillation import distill as run

    source = "vectors" if teacher is not None and teacher.endswith((".npy", ".parquet")) else "name"
    kept = None if keep_layers is None else numbers(keep_layers, "--keep-layers")
    overrides: dict[str, Any] = {
        "teacher": {source: teacher}, "student": {"name": student, "layers": layers, "keep_layers": kept},
        "train": {"max_steps": steps, "batch_size": batch_size, "precision": precision}, "eval": {"sts": sts},
    }
    if data is not None:
        overrides["data"] = {"path": data, "kind": kind}
    elif kind is not None:
        raise UserError("--kind says what --data holds; give --data too, or set data in the config file")
    if config is None and teacher is None:
        raise UserError("nothing to learn from: give --teacher MODEL and --data FILE, or --config FILE (see "
                        "configs/distill/)")
    _print_training(run(load_config(DistillConfig, config, sets or (), overrides), out, resume, overwrite))


def _print_training(result: TrainResult) -> None:
    if int(os.environ.get("RANK", "0")) == 0:
        dev = ("" if result.dev_selected is None else
               f", dev Spearman {result.dev_start:.2f} -> {result.dev_selected:.2f}")
        console.print(f"{result.out}: {result.steps} steps at {result.examples_per_second:.0f} examples/s, step "
                      f"{result.selected_step} kept{dev}")


def export(
    model: Annotated[str, typer.Argument(help="Checkpoint, sentence-transformers folder or Hub id; or a bundle.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Bundle folder to write.")],
    pooling: Annotated[Text, typer.Option("--pooling", help="Override the checkpoint's pooling.")] = None,
    max_seq_length: Annotated[Number, typer.Option("--max-seq-length", help="The bundle's length limit.")] = None,
    truncate_dim: Annotated[Number, typer.Option("--truncate-dim", help="Cut vectors (Matryoshka models).")] = None,
    variant: Annotated[Text, typer.Option("--variant", help="Of a bundle: this graph alone, as model.onnx.")] = None,
    tokenizer_in_graph: Annotated[bool, typer.Option("--tokenizer-in-graph", help="Also a graph of strings.")] = False,
    ort_format: Annotated[bool, typer.Option("--ort-format", help="Also a .ort file, for mobile builds.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Export a checkpoint as an ONNX bundle, or one variant of a bundle as a bundle of its own.

    One graph, proved equal to torch, and the files that other libraries need to load it.
    """
    from distilface.artifact import is_bundle
    from distilface.errors import require

    if is_bundle(model):
        from distilface.delivery import deliver

        if given := [flag for flag, value in (("--pooling", pooling), ("--max-seq-length", max_seq_length),
                                              ("--truncate-dim", truncate_dim)) if value is not None]:
            raise UserError(f"{given[0]} changes a graph when it is made, and {model!r} is a bundle; export the "
                            "checkpoint with it")
        with progress() as report:
            bundle = deliver(model, out, variant, tokenizer_in_graph, ort_format, overwrite, report)
        name, record = next(iter(bundle.manifest.variants.items()))
        console.print(f"{bundle.folder}: {name} as {record.file}, {record.size / 1e6:.1f} MB")
    else:
        require("torch", "export", "distilface export")
        from distilface.exporter import export as run

        if variant is not None:
            raise UserError(f"--variant {variant} names a graph of a bundle, and {model!r} is none; export it first, "
                            "then quantize")
        with progress() as report:
            bundle = run(model, out, pooling, max_seq_length, overwrite, report, truncate_dim, tokenizer_in_graph,
                         ort_format)
        record = bundle.variant("fp32")
        worst = record.recipe["minimum_cosine_to_torch"]
        console.print(f"{bundle.folder}: fp32, {record.size / 1e6:.1f} MB, worst cosine to torch {worst:.7f}")
    for form in bundle.manifest.forms:
        console.print(f"{form.file}: {form.size / 1e6:.1f} MB; needs {form.needs}")
        for difference in form.differences:
            console.print(f"note: other ids than tokenizer.json: {difference}")


def shrink(
    model: Annotated[str, typer.Argument(help="Checkpoint, sentence-transformers folder or Hub id.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Checkpoint folder to write.")],
    layers: Annotated[Number, typer.Option("--layers", help="How many to keep: evenly spaced, the last too.")] = None,
    keep_layers: Annotated[Text, typer.Option("--keep-layers", help="Which layers, from 0: 1,3,5.")] = None,
    ranking: Annotated[File, typer.Option("--ranking", help="Layers, best first (JSON, table): keep --layers.")] = None,
    ffn: Annotated[Number, typer.Option("--ffn", help="Units to keep in each FFN.")] = None,
    calibration: Annotated[File, typer.Option("--calibration", help="Texts that choose units and heads.")] = None,
    heads: Annotated[Number, typer.Option("--heads", help="Attention heads to keep in each layer.")] = None,
    vocabulary: Annotated[File, typer.Option("--vocabulary", help="Texts: keep only the pieces they need.")] = None,
    coverage: Annotated[float, typer.Option("--coverage", help="Percent of their tokens to keep whole.")] = 99.5,
    check_texts: Annotated[File, typer.Option("--check-texts", help="Texts the result must still cover.")] = None,
    check_floor: Annotated[float, typer.Option("--check-floor", help="Least percent of their tokens.")] = 95.0,
    to_distilbert: Annotated[bool, typer.Option("--to-distilbert", help="BERT to DistilBERT, same vectors.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Make a smaller checkpoint: layers, FFN units, heads, vocabulary, DistilBERT.

    Recover what dropped layers, units and heads cost with distillation; the other two keep the vectors.
    """
    from distilface.errors import require

    require("torch", "train", "distilface shrink")
    from distilface.shrinking import shrink as run

    kept = None if keep_layers is None else numbers(keep_layers, "--keep-layers")
    with progress() as report:
        result = run(model, out, keep_layers=kept, layers=layers, ranking=ranking, ffn=ffn, calibration=calibration,
                     heads=heads, vocabulary=vocabulary, coverage=coverage, check_texts=check_texts,
                     check_floor=check_floor, to_distilbert=to_distilbert, overwrite=overwrite, progress=report)
    done = []
    if result.layers is not None:
        done.append(f"layers {','.join(map(str, result.layers))}")
    if result.ffn is not None:
        done.append(f"{result.ffn} FFN units by {result.importance}")
    if result.heads is not None:
        done.append(f"{result.heads} heads by {result.importance}")
    if result.vocabulary is not None:
        done.append(f"{result.vocabulary.size_before} -> {result.vocabulary.size_after} pieces "
                    f"({result.vocabulary.covered:.2f} % of tokens)")
    if result.conversion_difference is not None:
        done.append(f"DistilBERT (vectors within {result.conversion_difference:.1g})")
    console.print(f"{result.out}: {result.bytes_before / 1e6:.1f} -> {result.bytes_after / 1e6:.1f} MB of float32; "
                  f"{', '.join(done)}")


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for all results.")] = Path("runs/demo"),
    overwrite: Overwrite = False,
) -> None:
    """All of it on built-in data, in about two minutes.

    Train on commands to a smart home, export, quantize, verify, bench. No network.
    """
    from distilface.demo import HEADER, TITLE, run_demo

    result = run_demo(out, overwrite, progress)
    show_table(TITLE, HEADER, result.cells)
    console.print(f"verified: {result.checks} checks passed\nreport: {result.page}\nbundle: {result.bundle}")
