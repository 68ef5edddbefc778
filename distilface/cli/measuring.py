"""The verbs that use or measure something: each parses, calls one function of the library, and prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from distilface.cli.options import File, Number, Overwrite, Sets, Text
from distilface.cli.progress import out as console
from distilface.cli.progress import progress, show_table
from distilface.errors import UserError

if TYPE_CHECKING:
    from distilface.benchmarking import Subject


def evaluate(
    model: Annotated[str, typer.Argument(help="Checkpoint, bundle, sentence-transformers folder or Hub id.")],
    data: Annotated[Path, typer.Option("--data", help="SentEval folder (holds STS/ and SICK/).")],
    sets: Annotated[Text, typer.Option("--sets", help="Comma-separated; default all seven.")] = None,
    aggregation: Annotated[str, typer.Option("--aggregation", help="all, mean or wmean.")] = "all",
    variant: Annotated[Text, typer.Option("--variant", help="Graph of a bundle; default fp32.")] = None,
    pooling: Annotated[Text, typer.Option("--pooling", help="Override a checkpoint's pooling.")] = None,
    max_seq_length: Annotated[Number, typer.Option("--max-seq-length", help="A lower length limit.")] = None,
    geometry: Annotated[bool, typer.Option("--geometry", help="Also alignment and uniformity (STS-B).")] = False,
    json_file: Annotated[File, typer.Option("--json", help="Write the scores there, too.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Score anything that encodes on the seven STS sets.

    Spearman and Pearson of each set, and the averages avg7 and avg5 (STS12-15 and STS-B).
    """
    from distilface.artifact import atomic_file, check_output_file
    from distilface.evaluation import STS_SETS, alignment_uniformity, evaluate_sts, load_sts_benchmark
    from distilface.loading import load_any
    from distilface.tokenizer import write_json

    if json_file is not None:
        check_output_file(json_file, overwrite, [model])
    names = list(STS_SETS) if sets is None else [name.strip() for name in sets.split(",")]
    with progress() as report:
        report("loading")
        encoder = load_any(model, variant, pooling, max_seq_length)
        report("scoring")
        scores = evaluate_sts(encoder, data, names, aggregation)  # type: ignore[arg-type]
        values: dict[str, Any] = {"model": model, "variant": variant, **scores.as_dict()}
        if geometry:
            report("alignment and uniformity")
            found = alignment_uniformity(encoder, load_sts_benchmark(data, "test"))
            values |= {"alignment": found.alignment, "uniformity": found.uniformity}
    show_table("Spearman x 100", ("", *(item.name for item in scores.sets), "avg7", "avg5"), [
        (model, *(f"{item.spearman:.2f}" for item in scores.sets),
         *("-" if value is None else f"{value:.2f}" for value in (scores.avg7, scores.avg5)))])
    if geometry:
        console.print(f"alignment {values['alignment']:.4f}   uniformity {values['uniformity']:.4f}")
    if json_file is not None:
        with atomic_file(json_file) as temporary:
            write_json(temporary, values)


def verify(
    bundle: Annotated[Path, typer.Argument(help="Bundle to check.")],
    variant: Annotated[Text, typer.Option("--variant", help="Only this graph.")] = None,
) -> None:
    """Re-prove a bundle from its files alone.

    Hashes, golden ids and vectors, one length limit, batch invariance, shapes.
    """
    from distilface.verification import require_passed
    from distilface.verification import verify as run

    with progress() as report:
        checks = run(bundle, variant, report)
    for check in checks:
        console.print(f"{'pass' if check.passed else 'FAIL'}  {check.name}: {check.detail}")
    require_passed(bundle, checks)


def bench(
    models: Annotated[list[str], typer.Argument(help="Bundles or checkpoints; BUNDLE:VARIANT for one graph.")],
    target: Annotated[str, typer.Option("--target", help="cpu or cuda; never replaced by another.")] = "cpu",
    out: Annotated[Path, typer.Option("--out", "-o", help="Report folder to write.")] = Path("runs/bench"),
    sts: Annotated[File, typer.Option("--sts", help="SentEval folder, scored pairs, or 'smarthome'.")] = None,
    texts: Annotated[File, typer.Option("--texts", help="Sentences for throughput; default built in.")] = None,
    threads: Annotated[Number, typer.Option("--threads", help="Default: what this process may use.")] = None,
    compare: Annotated[File, typer.Option("--compare", help="An older report.json.")] = None,
    fail_on: Annotated[Optional[list[str]], typer.Option(  # noqa: UP045
        "--fail-on", help="Rule such as 'drop>0.3' or 'p50>+10%'; repeat for more.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds and lengths.")] = False,
    config: Annotated[File, typer.Option("--config", help="YAML with differences from the defaults.")] = None,
    sets: Sets = None,
    overwrite: Overwrite = False,
) -> None:
    """Measure bundles side by side: JSON, Markdown, HTML.

    Size, load time, memory, latency, throughput and quality of every variant, in turn and each in its own process.
    """
    from distilface.artifact import check_output
    from distilface.benchmarking import BenchConfig, BenchReport
    from distilface.benchmarking import bench as run
    from distilface.config import load_config
    from distilface.report import compare as compare_reports
    from distilface.report import enforce, parse_rule, ship, write_report
    from distilface.report.tables import summary_table

    rules = fail_on or []
    for rule in rules:
        if parse_rule(rule).metric.name in ("drop", "spearman") and sts is None:
            raise UserError(f"--fail-on {rule!r} needs judged pairs; give --sts FOLDER (or --sts smarthome)")
    check_output(out, overwrite, [*models, texts, sts])
    old = BenchReport.from_json(_read(compare), str(compare)) if compare is not None else None
    overrides: dict[str, Any] = {"target": target, "sts": sts, "texts": texts, "threads": threads}
    if quick:
        overrides |= {"rounds": 3, "latency_samples": 15, "load_repeats": 1, "lengths": [16, 128]}
    settings = load_config(BenchConfig, config, sets or (), overrides)
    subjects = [subject for model in models for subject in _subjects(model)]
    with progress() as report:
        result = run(subjects, settings, report)
    page = write_report(result, out, overwrite, compare_reports(old, result) if old is not None else None)
    table = summary_table(result)
    show_table(table.title, table.header, [
        [f"{cell.main} ({cell.detail})".replace("\n", "; ") if cell.detail else cell.main for cell in row]
        for row in table.rows])
    verdict = ship(result)
    console.print(f"ship {verdict.name or 'nothing'}: {verdict.reason}")
    console.print(f"report: {page}")
    enforce(rules, result, old)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"report {str(file)!r} can't be read ({error}); give a report.json of bench") from None


def _subjects(model: str) -> list[Subject]:
    """``BUNDLE:VARIANT`` for one graph; a path that exists as it stands (C:\\models) is a path."""
    from distilface.benchmarking import find_subjects

    path, separator, variant = model.rpartition(":")
    if separator and not Path(model).exists() and Path(path).is_dir():
        return find_subjects(path, variant)
    return find_subjects(model)


def encode(
    bundle: Annotated[Path, typer.Argument(help="Bundle.")],
    source: Annotated[str, typer.Argument(help="File of texts (text, TSV, CSV, JSONL, Parquet, .gz), or - for stdin.")],
    out: Annotated[str, typer.Option("--out", "-o", help="FILE.npy, .jsonl or .parquet; - for JSONL on stdout.")] = "-",
    variant: Annotated[str, typer.Option("--variant", help="fp32, int8, int8-static, int8-dynamic.")] = "fp32",
    column: Annotated[Text, typer.Option("--column", help="Column that holds the text.")] = None,
    format: Annotated[Text, typer.Option("--format", help="npy, jsonl or parquet; default by suffix.")] = None,
    threads: Annotated[Number, typer.Option("--threads", help="Default: what this process may use.")] = None,
    batch_tokens: Annotated[int, typer.Option("--batch-tokens", help="Padded tokens in one batch.")] = 512,
    provider: Annotated[str, typer.Option("--provider", help="cpu, cuda or tensorrt; never replaced.")] = "cpu",
    special_tokens: Annotated[str, typer.Option("--special-tokens", help="parse, or escape [SEP] in texts.")] = "parse",
    overwrite: Overwrite = False,
) -> None:
    """Encode texts to vectors: .npy, JSON lines or Parquet."""
    from distilface.data import iter_texts
    from distilface.encoding import encode_to
    from distilface.runtime import Encoder

    encoder = Encoder.load(bundle, variant, threads, provider, special_tokens)  # type: ignore[arg-type]
    with progress() as report:
        count = encode_to(encoder, iter_texts(source, column), out, format, overwrite, batch_tokens,
                          lambda done: report("encoding", done, done), source)
    if out != "-":
        console.print(f"{out}: {count} vectors of {encoder.dim} dimensions")
