"""The verb that asks which layers matter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from distilface.cli.options import File, Number, Overwrite, Sets, Text, numbers
from distilface.cli.progress import out as console
from distilface.cli.progress import progress, show_table
from distilface.errors import UserError


def probe(
    kind: Annotated[str, typer.Argument(help="layerwise, progressive, localized or permutation.", metavar="PROBE")],
    model: Annotated[Text, typer.Argument(help="Checkpoint folder or Hub id.")] = None,
    config: Annotated[File, typer.Option("--config", help="YAML with differences from the defaults.")] = None,
    sets: Sets = None,
    data: Annotated[Text, typer.Option("--data", help="Text to train on contrastively, scored by --sts.")] = None,
    data_kind: Annotated[Text, typer.Option("--kind", help="sentences, pairs, groups, triplets or scored.")] = None,
    sts: Annotated[Text, typer.Option("--sts", help="Scored dev pairs: SentEval folder, file or Hub id.")] = None,
    labels: Annotated[Text, typer.Option("--labels", help="Instead of --data: texts and labels to train on.")] = None,
    dev: Annotated[Text, typer.Option("--dev", help="Texts and labels to score that classifier on.")] = None,
    columns: Annotated[Text, typer.Option("--columns", help="Their columns: text,label.")] = None,
    pooling: Annotated[Text, typer.Option("--pooling", help="cls, mean_last4, ... (see README).")] = None,
    steps: Annotated[Number, typer.Option("--steps", help="Optimizer steps of each run.")] = None,
    batch_size: Annotated[Number, typer.Option("--batch-size", help="Examples a step.")] = None,
    precision: Annotated[Text, typer.Option("--precision", help="fp32, bf16, fp16 or auto.")] = None,
    seeds: Annotated[Text, typer.Option("--seeds", help="Comma-separated; default 0,1,2.")] = None,
    sizes: Annotated[Text, typer.Option("--sizes", help="Training examples, comma-separated; default all.")] = None,
    window: Annotated[Number, typer.Option("--window", help="localized: layers in a window (3).")] = None,
    orders: Annotated[Number, typer.Option("--orders", help="permutation: random orders (10).")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the grid; run again, it goes on.")] = Path(
        "runs/probe"),
    overwrite: Overwrite = False,
) -> None:
    """Find out which layers matter: scores, plots and a ranking for shrink.

    layerwise scores every layer untrained. progressive, localized and permutation fine-tune after re-initialising the
    upper layers, a window of layers, or after changing their order. A finished run is never run again.
    """
    from distilface.config import load_config
    from distilface.probing.config import KINDS, ProbeConfig

    if kind not in KINDS:
        raise UserError(f"unknown probe {kind!r}; allowed: {', '.join(KINDS)}")
    if config is None and model is None:
        raise UserError("nothing to probe: give PROBE MODEL and --data FILE --sts PAIRS, or --config FILE (see "
                        "configs/probe/)")
    if dev is not None and labels is None:
        raise UserError("--dev scores a classifier; give --labels FILE to train it on too")
    overrides: dict[str, Any] = {
        "probe": kind, "model": {"name": model, "pooling": pooling}, "eval": {"sts": sts},
        "train": {"max_steps": steps, "batch_size": batch_size, "precision": precision},
        "grid": {"seeds": None if seeds is None else numbers(seeds, "--seeds"),
                 "sizes": None if sizes is None else numbers(sizes, "--sizes"), "window": window, "orders": orders},
    }
    if data is not None:
        overrides["data"] = {"path": data, "kind": data_kind}
    elif data_kind is not None:
        raise UserError("--kind says what --data holds; give --data too, or set data in the config file")
    if labels is not None:
        named = None if columns is None else columns.split(",")
        overrides["labels"] = {"train": {"path": labels, "columns": named}, "dev": {"path": dev, "columns": named}}
    elif columns is not None:
        raise UserError("--columns names the text and the label in --labels and --dev; give --labels too")
    settings = load_config(ProbeConfig, config, sets or (), overrides)
    from distilface.probing import probe as run

    with progress() as report:
        result = run(settings, out, overwrite, report)
    title = f"{settings.probe}: {settings.metric} x 100, mean over seeds"
    show_table(title, ("", "examples", "mean", "95 % interval"), [
        (item.label, "all" if item.size is None else item.size, f"{item.mean:.2f}",
         "-" if item.low is None else f"{item.low:.2f} to {item.high:.2f}") for item in result.summaries])
    ranked = ", ".join(f"{item.layer} ({item.value:+.2f})" for item in result.ranking)
    console.print(f"{result.out}: {result.cells} cells, {result.run} runs now")
    console.print(f"layers from most to least worth keeping: {ranked}")
    console.print(f"drop the others: distilface shrink {settings.model.name} --ranking {result.out / 'ranking.json'} "
                  "--layers N --out DIR")
