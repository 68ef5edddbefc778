"""The verbs that use or measure something: each parses, calls one function of the library, and prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from distilface.cli.options import File, Names, Number, Overwrite, Sets, Text, numbers
from distilface.cli.progress import out as console
from distilface.cli.progress import progress, show_table
from distilface.errors import UserError

if TYPE_CHECKING:
    from distilface.artifact import Bundle
    from distilface.benchmarking import BenchConfig, Subject


def evaluate(
    model: Annotated[str, typer.Argument(help="Checkpoint, bundle, sentence-transformers folder or Hub id.")],
    data: Annotated[File, typer.Option("--data", help="SentEval folder (holds STS/ and SICK/).")] = None,
    sets: Annotated[Text, typer.Option("--sets", help="Comma-separated; default all seven.")] = None,
    aggregation: Annotated[str, typer.Option("--aggregation", help="all, mean or wmean.")] = "all",
    groups: Annotated[Text, typer.Option("--groups", help="Texts that mean the same, a row each: retrieval.")] = None,
    last: Annotated[Number, typer.Option("--last", help="Only the last so many groups: those held out.")] = None,
    variant: Annotated[Text, typer.Option("--variant", help="Graph of a bundle; default fp32 or the only one.")] = None,
    pooling: Annotated[Text, typer.Option("--pooling", help="Override a checkpoint's pooling.")] = None,
    max_seq_length: Annotated[Number, typer.Option("--max-seq-length", help="A lower length limit.")] = None,
    geometry: Annotated[bool, typer.Option("--geometry", help="Also alignment and uniformity (STS-B).")] = False,
    json_file: Annotated[File, typer.Option("--json", help="Write the scores there, too.")] = None,
    record: Annotated[bool, typer.Option("--record", help="Keep a bundle's STS scores in its model card.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Score anything that encodes: STS and retrieval.

    --data: Spearman and Pearson of the seven STS sets, avg7 and avg5 (STS12-15 and STS-B). --groups: recall@1 and @10,
    the share of texts that find another text of their group among the nearest of all others.
    """
    from distilface.artifact import atomic_file, check_output_file
    from distilface.data import read_groups
    from distilface.evaluation import STS_SETS, alignment_uniformity, evaluate_sts, group_recall, load_sts_benchmark
    from distilface.loading import load_any
    from distilface.tokenizer import write_json

    _check_asked(data, sets, geometry, groups, last)
    bundle = _bundle_to_record(model, data, aggregation) if record else None
    if json_file is not None:
        check_output_file(json_file, overwrite, [model, *([] if groups is None else [groups])])
    rows = [] if groups is None else read_groups(groups)
    if last is not None and not 1 <= last <= len(rows):
        raise UserError(f"--last {last} does not fit the {len(rows)} groups of {groups!r}; use 1 to {len(rows)}")
    rows = rows[-last:] if last is not None else rows
    names = list(STS_SETS) if sets is None else [name.strip() for name in sets.split(",")]
    values: dict[str, Any] = {"model": model, "variant": variant}
    scores = None
    with progress() as report:
        report("loading")
        encoder = load_any(model, variant, pooling, max_seq_length)
        if data is not None:
            report("scoring")
            scores = evaluate_sts(encoder, data, names, aggregation)  # type: ignore[arg-type]
            values |= scores.as_dict()
        if geometry and data is not None:
            report("alignment and uniformity")
            found = alignment_uniformity(encoder, load_sts_benchmark(data, "test"))
            values |= {"alignment": found.alignment, "uniformity": found.uniformity}
        if rows:
            report("retrieval")
            values |= {f"recall@{k}": 100 * share for k, share in group_recall(encoder, rows).items()}
            values["groups"] = len(rows)
    if scores is not None:
        show_table("Spearman x 100", ("", *(item.name for item in scores.sets), "avg7", "avg5"), [
            (model, *(f"{item.spearman:.2f}" for item in scores.sets),
             *("-" if value is None else f"{value:.2f}" for value in (scores.avg7, scores.avg5)))])
    if geometry:
        console.print(f"alignment {values['alignment']:.4f}   uniformity {values['uniformity']:.4f}")
    if rows:
        console.print(f"recall@1 {values['recall@1']:.2f}   recall@10 {values['recall@10']:.2f}   ({len(rows)} groups)")
    if json_file is not None:
        with atomic_file(json_file) as temporary:
            write_json(temporary, values)
    if bundle is not None and scores is not None:
        from distilface.modelcard import record_scores

        averages = {"avg7": scores.avg7} if scores.avg7 is not None else {}
        name = bundle.resolve_variant(variant)
        record_scores(bundle, name, {**{item.name: item.spearman for item in scores.sets}, **averages})
        console.print(f"{bundle.folder}: scores of {name} are in its manifest and model card")


def _bundle_to_record(model: str, data: Path | None, aggregation: str) -> Bundle:
    from distilface.artifact import Bundle

    if data is None:
        raise UserError("--record keeps STS scores; give --data FOLDER, too")
    if aggregation != "all":
        raise UserError(f"--record keeps scores of --aggregation all, which others publish; got {aggregation!r}")
    return Bundle.open(model)


def _check_asked(data: Path | None, sets: str | None, geometry: bool, groups: str | None, last: int | None) -> None:
    """Refuse flags that would have no effect."""
    if data is None and groups is None:
        raise UserError("nothing to score on: give --data FOLDER (SentEval's), --groups FILE, or both")
    if data is None and (geometry or sets is not None):
        raise UserError(f"{'--geometry' if geometry else '--sets'} belongs to the STS sets; give --data FOLDER, too")
    if groups is None and last is not None:
        raise UserError(f"--last {last} belongs to --groups; give --groups FILE, too")


def verify(
    bundle: Annotated[Path, typer.Argument(help="Bundle to check.")],
    variant: Annotated[Text, typer.Option("--variant", help="Only this graph.")] = None,
    consumers: Annotated[bool, typer.Option("--consumers", help="Also in the other libraries that load it.")] = False,
    only: Annotated[Names, typer.Option("--consumer", help="Only this one; repeat for more.")] = None,
    pythons: Annotated[Names, typer.Option("--consumer-python", help="Python of an environment that has some.")] = None,
    node: Annotated[File, typer.Option("--consumer-node", help="Folder with npm packages; default, this one.")] = None,
    checkpoint: Annotated[File, typer.Option("--consumer-checkpoint", help="What it was exported from.")] = None,
) -> None:
    """Re-prove a bundle from its files alone.

    Hashes, golden ids and vectors, one length limit, batch invariance, shapes. With --consumers, each library that is
    installed loads the bundle in a process of its own and must give the golden ids and vectors.
    """
    from distilface.verification import require_passed
    from distilface.verification import verify as run

    given = {"--consumer": only, "--consumer-python": pythons, "--consumer-node": node,
             "--consumer-checkpoint": checkpoint}
    if not consumers and (flag := next((flag for flag, value in given.items() if value), None)):
        raise UserError(f"{flag} belongs to --consumers; give --consumers, too")
    with progress() as report:
        checks = run(bundle, variant, report)
    for check in checks:
        console.print(f"{'pass' if check.passed else 'FAIL'}  {check.name}: {check.detail}")
    require_passed(bundle, checks)
    if consumers:
        from distilface.consumers import check_consumers, require_consumers

        with progress() as report:
            outcomes = check_consumers(bundle, variant, pythons or (), node, checkpoint, only, report)
        for outcome in outcomes:
            console.print(outcome.line)
        require_consumers(bundle, outcomes)


def bench(
    models: Annotated[list[str], typer.Argument(
        help="Bundles or checkpoints; BUNDLE:VARIANT for one graph; BUNDLE@openvino, BUNDLE:VARIANT@tensorrt.")],
    target: Annotated[str, typer.Option("--target", help="cpu, cuda or web; never replaced by another.")] = "cpu",
    out: Annotated[Path, typer.Option("--out", "-o", help="Report folder to write.")] = Path("runs/bench"),
    sts: Annotated[File, typer.Option("--sts", help="SentEval folder, scored pairs, or 'smarthome'.")] = None,
    texts: Annotated[File, typer.Option("--texts", help="Sentences for throughput; default built in.")] = None,
    groups: Annotated[File, typer.Option("--groups", help="Texts that mean the same, a row each: retrieval.")] = None,
    last: Annotated[Number, typer.Option("--last", help="Only the last so many groups.")] = None,
    threads: Annotated[Number, typer.Option("--threads", help="Default: what this process may use.")] = None,
    thread_sweep: Annotated[Text, typer.Option("--thread-sweep", help="Throughput with these, too: 1,2,4.")] = None,
    batch_tokens: Annotated[Text, typer.Option("--batch-tokens", help="Throughput at each: 256,512,2048.")] = None,
    roofline: Annotated[bool, typer.Option("--roofline", help="Also the fraction of the processor's limit.")] = False,
    npm: Annotated[File, typer.Option("--npm-folder", help="For web: holds node_modules; default, here.")] = None,
    compare: Annotated[File, typer.Option("--compare", help="An older report.json.")] = None,
    fail_on: Annotated[Optional[list[str]], typer.Option(  # noqa: UP045
        "--fail-on", help="Rule such as 'drop>0.3' or 'p50>+10%'; repeat for more.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds and lengths.")] = False,
    config: Annotated[File, typer.Option("--config", help="YAML with differences from the defaults.")] = None,
    sets: Sets = None,
    overwrite: Overwrite = False,
) -> None:
    """Measure bundles side by side: JSON, Markdown, HTML.

    Size, load time, memory, latency, throughput and quality of every variant, in turn and each in its own process. An
    interrupted run keeps what it measured in OUT.partial, and the same command goes on.
    """
    from distilface.artifact import check_output
    from distilface.benchmarking import BenchConfig, BenchReport
    from distilface.benchmarking import bench as run
    from distilface.benchmarking.kept import forget
    from distilface.benchmarking.subjects import with_unique_names
    from distilface.config import load_config
    from distilface.report import compare as compare_reports
    from distilface.report import enforce, parse_rule, ship, write_report
    from distilface.report.gates import check_old
    from distilface.report.tables import summary_table

    rules = fail_on or []
    for rule in rules:
        check_old(parse_rule(rule), compare)
    check_output(out, overwrite, [*models, texts, sts, groups])
    old = BenchReport.from_json(_read(compare), str(compare)) if compare is not None else None
    overrides: dict[str, Any] = {
        "target": target, "sts": sts, "texts": texts, "threads": threads, "npm_folder": npm, "groups": groups,
        "last_groups": last, "roofline": roofline or None,
        "thread_sweep": None if thread_sweep is None else numbers(thread_sweep, "--thread-sweep"),
        "batch_tokens": None if batch_tokens is None else numbers(batch_tokens, "--batch-tokens")}
    if quick:
        overrides |= {"rounds": 3, "latency_samples": 15, "load_repeats": 1, "lengths": [16, 128]}
    settings = load_config(BenchConfig, config, sets or (), overrides)
    subjects = with_unique_names([subject for model in models for subject in _subjects(model)])
    for rule in rules:
        _check_measured(rule, settings, subjects)
    kept = out.absolute().with_name(f"{out.absolute().name}.partial")
    with progress() as report:
        result = run(subjects, settings, report, keep=kept, anew=overwrite)
    page = write_report(result, out, overwrite, compare_reports(old, result) if old is not None else None)
    forget(kept)
    table = summary_table(result)
    show_table(table.title, table.header, [
        [f"{cell.main} ({cell.detail})".replace("\n", "; ") if cell.detail else cell.main for cell in row]
        for row in table.rows])
    verdict = ship(result)
    console.print(f"ship {verdict.name or 'nothing'}: {verdict.reason}")
    console.print(f"report: {page}")
    enforce(rules, result, old)


def _check_measured(text: str, settings: BenchConfig, subjects: list[Subject]) -> None:
    """Refuse a rule on what this run will not measure, before it measures anything."""
    from distilface.report import parse_rule

    rule = parse_rule(text)
    if rule.metric.name in ("drop", "spearman") and settings.sts is None:
        raise UserError(f"--fail-on {text!r} needs judged pairs; give --sts FOLDER (or --sts smarthome)")
    if rule.metric.name == "recall" and settings.groups is None:
        raise UserError(f"--fail-on {text!r} needs texts that mean the same; give --groups FILE")
    names = [subject.name for subject in subjects]
    if rule.subject is not None and rule.subject not in (*names, *(subject.variant for subject in subjects)):
        raise UserError(f"--fail-on {text!r}: no subject {rule.subject!r}; the subjects are {', '.join(names)}")


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"report {str(file)!r} can't be read ({error}); give a report.json of bench") from None


def _subjects(model: str) -> list[Subject]:
    """``BUNDLE[:VARIANT][@BACKEND]``; a path that exists as it stands (C:\\models) is a path."""
    from distilface.benchmarking import find_subjects

    backend = None
    if not Path(model).exists() and "@" in model:
        model, _, backend = model.rpartition("@")
    path, separator, variant = model.rpartition(":")
    if separator and not Path(model).exists() and Path(path).is_dir():
        return find_subjects(path, variant, backend)
    return find_subjects(model, backend=backend)
