"""The tables of a report as rows of text, shared by Markdown and HTML."""

from __future__ import annotations

from dataclasses import dataclass

from distilface.benchmarking.results import BenchReport, Gain, Sitting, SubjectResult
from distilface.report import text


@dataclass(frozen=True)
class Cell:
    """What is published (a ratio, where there is one) and, beside it, the absolute value or the spread."""

    main: str
    detail: str = ""


@dataclass(frozen=True)
class Table:
    """Header, rows; the first column names the row."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def summary_table(report: BenchReport) -> Table:
    """One row a subject: the gain over the baseline, the absolute value beside it."""
    scored = next((result.sts for result in report.subjects if result.sts is not None), None)
    has_cosine = any(result.cosine for result in report.subjects)
    header = ["subject", "size", f"batch 1, {report.short_tokens} tokens"]
    if report.long_tokens != report.short_tokens:
        header.append(f"batch 1, {report.long_tokens} tokens")
    header += ["sentences/s", "peak memory", "load"]
    if scored is not None:
        header.append(f"Spearman ({scored.average_name})")
    if has_cosine:
        header.append("cosine to fp32")
    header.append("batch-invariant")
    return Table("Side by side", tuple(header),
                 tuple(_summary_row(report, result, scored is not None, has_cosine) for result in report.subjects))


def _summary_row(report: BenchReport, result: SubjectResult, scored: bool, has_cosine: bool) -> tuple[Cell, ...]:
    row = [Cell(result.name, result.kind + (", baseline" if result.is_baseline else "")),
           Cell(text.times(result.size_gain), text.megabytes(result.size_bytes))]
    for tokens in dict.fromkeys((report.short_tokens, report.long_tokens)):
        latency = result.latency_at(tokens)
        row.append(_gained(latency.gain, text.milliseconds(latency.p50), result.is_baseline))
    best = result.best_throughput
    row += [_gained(best.gain, text.rate(best.sentences_per_second.median), result.is_baseline),
            Cell(text.times(result.rss_gain), text.megabytes(result.peak_rss_bytes)),
            Cell(text.times(result.load_gain), text.milliseconds(result.load_ms.median))]
    if scored:
        sts = result.sts
        row.append(Cell(text.points(sts.average), text.signed(sts.change) if sts.change is not None else "")
                   if sts else Cell(text.NONE))
    if has_cosine:
        found = result.cosine
        row.append(Cell(text.cosine(found.mean), f"lowest {text.cosine(found.minimum)}") if found else Cell(text.NONE))
    row.append(_invariance(result.batch_dependence))
    return tuple(row)


def _gained(gain: Gain | None, absolute: str, is_baseline: bool) -> Cell:
    if gain is None:
        return Cell(text.NONE, absolute)
    span = "" if is_baseline else f"\n{text.factor(gain.low)} to {text.times(gain.high)}"
    return Cell(text.times(gain.median), f"{absolute}{span}")


def _invariance(worst: float | None) -> Cell:
    if worst is None:
        return Cell(text.NONE)
    return Cell("yes") if worst >= 0.999999 else Cell("no", f"cosine {text.cosine(worst)}")


def latency_table(report: BenchReport) -> Table:
    """p50, p90 and p99 of each subject at every length."""
    lengths = [row.tokens for row in report.subjects[0].latency]
    rows = []
    for result in report.subjects:
        cells = [Cell(result.name)]
        for tokens in lengths:
            row = result.latency_at(tokens)
            cells.append(Cell(text.significant(row.p50), f"{text.significant(row.p90)} / {text.significant(row.p99)}"))
        rows.append(tuple(cells))
    return Table("Latency of one text, ms: p50, beneath it p90 / p99",
                 ("subject", *(f"{n} tokens" for n in lengths)), tuple(rows))


def startup_table(report: BenchReport) -> Table:
    """What a fresh process costs: imports, load, first vector, and the sizes."""
    header = ("subject", "import", "load", "first vector", "graph file", "zipped", "parameters", "MatMuls on integers")
    return Table("Start-up and size", header, tuple((
        Cell(result.name), _spread(result.import_ms.median, result.import_ms.low, result.import_ms.high),
        _spread(result.load_ms.median, result.load_ms.low, result.load_ms.high),
        _spread(result.first_vector_ms.median, result.first_vector_ms.low, result.first_vector_ms.high),
        Cell(text.megabytes(result.size_bytes), result.file or ""), Cell(text.megabytes(result.zip_bytes)),
        Cell(text.count(result.parameters)), _matmuls(result),
    ) for result in report.subjects))


def throughput_table(report: BenchReport) -> Table:
    """Sentences a second by batch policy and threads: gain, median and range over the rounds; energy where measured."""
    energy = any(row.joules is not None for result in report.subjects for row in result.throughput)
    rows = []
    for result in report.subjects:
        for row in result.throughput:
            policy = "default" if row.batch_tokens is None else f"{row.batch_tokens} tokens"
            rates = row.sentences_per_second
            gained = f"{text.times(row.gain.low)} to {text.times(row.gain.high)}" if row.gain else ""
            cells = (Cell(result.name), Cell(policy), Cell(str(row.threads or report.threads)),
                     Cell(text.times(row.gain.median if row.gain else None), gained),
                     Cell(text.significant(rates.median),
                          f"{text.significant(rates.low)} to {text.significant(rates.high)}"))
            spent = Cell(text.NONE) if row.joules is None else Cell(
                text.significant(row.joules.median),
                f"{text.significant(row.joules.low)} to {text.significant(row.joules.high)}")
            rows.append((*cells, spent) if energy else cells)
    header = ("subject", "batch policy", "threads", "gain", "sentences/s")
    return Table("Throughput on real text", (*header, "J for 1,000") if energy else header, tuple(rows))


def retrieval_table(report: BenchReport) -> Table | None:
    """Recall at 1 and 10 with the change against the baseline; None where it was not measured."""
    found = [(result.name, result.retrieval) for result in report.subjects if result.retrieval is not None]
    if not found:
        return None
    rows = tuple((Cell(name), *(Cell(text.points(recall), "" if change is None else text.signed(change))
                                for recall, change in ((item.recall1, item.change1), (item.recall10, item.change10))))
                 for name, item in found)
    return Table(f"Retrieval: a text finds another of its group, {found[0][1].groups:,} groups",
                 ("subject", "recall@1", "recall@10"), rows)


def sts_table(report: BenchReport) -> Table | None:
    """Spearman of each set with the change against the baseline and its interval; None where none was measured."""
    scored = [(result, result.sts) for result in report.subjects if result.sts is not None]
    if not scored:
        return None
    sets = [score.name for score in scored[0][1].sets]
    rows = []
    for result, sts in scored:
        cells = [Cell(result.name)]
        for score in sts.sets:
            interval = ""
            if score.change_low is not None:
                interval = f"\n[{text.signed(score.change_low)}, {text.signed(score.change_high)}]"
            cells.append(Cell(text.points(score.spearman),
                              "" if score.change is None else f"{text.signed(score.change)}{interval}"))
        if len(sets) > 1:
            cells.append(Cell(text.points(sts.average), "" if sts.change is None else text.signed(sts.change)))
        rows.append(tuple(cells))
    average = (scored[0][1].average_name,) if len(sets) > 1 else ()
    return Table("STS: Spearman × 100, change against the baseline [95 % interval]",
                 ("subject", *map(text.set_name, sets), *average), tuple(rows))


def roofline_table(report: BenchReport) -> Table | None:
    """What each bundle reaches of the processor's arithmetic; None where it was not measured."""
    found = [(result.name, result.roofline) for result in report.subjects if result.roofline is not None]
    if not found:
        return None
    peaks = ", ".join(f"{name} {text.significant(peak)}" for name, peak in report.peaks.items())
    rows = tuple((Cell(name), Cell(item.precision), Cell(text.significant(item.needed)),
                  Cell(text.significant(item.reached)), Cell(text.significant(item.peak)), Cell(f"{item.fraction:.0%}"))
                 for name, item in found)
    return Table(f"Roofline: 10⁹ multiply-adds a second; large products reach {peaks}",
                 ("subject", "products", "needed for 1,000", "reached", "limit", "fraction"), rows)


def machine_rows(report: BenchReport) -> list[tuple[str, str]]:
    """Facts of the machine and the run as label and value."""
    facts, seen = report.machine, report.disturbance
    sets = "unknown" if facts.instruction_sets is None else ", ".join(facts.instruction_sets) or "none of note"
    rows = [
        ("processor", f"{facts.cpu or 'unknown'} ({facts.architecture})"), ("instruction sets", sets),
        ("cores we may use", f"{facts.cores_usable} of {facts.cores_present or '?'}; threads used: {report.threads}"),
        ("governor", facts.governor or "not readable"),
        ("memory", "unknown" if facts.memory_bytes is None else f"{facts.memory_bytes / 2**30:.1f} GiB"),
        ("GPU", (facts.gpu or "unknown") if report.target == "cuda" else
         "not measured here (distilface bench --target cuda on a machine with an NVIDIA GPU)"), ("system", facts.os),
        ("Python", facts.python), ("libraries", ", ".join(f"{k} {v}" for k, v in facts.libraries.items())),
        ("load average", f"{_or_unknown(seen.load_before)} before, {_or_unknown(seen.load_after)} after"),
        ("used by others", "unknown" if seen.other_busy is None else f"{seen.other_busy:.1%} of the processor"),
        ("target", report.target), ("rounds", f"{report.rounds}, taking turns; {report.seconds:.0f} s in all"),
        ("texts", f"{report.text_count:,} from {report.text_source}, {report.mean_tokens:.1f} tokens on average"),
    ]
    if len(report.sittings) > 1:
        rows += [(f"sitting {number}", _sitting(one)) for number, one in enumerate(report.sittings, 1)]
    if report.sts_source is not None:
        rows.append(("STS", report.sts_source))
    if report.groups_source is not None:
        rows.append(("groups", report.groups_source))
    return [*rows, ("measured", report.created), ("distilface", report.distilface_version)]


def _sitting(one: Sitting) -> str:
    begun = f"{one.started}, {one.steps} steps"
    if one.disturbance is None or one.seconds is None:
        return f"{begun}, load average {_or_unknown(one.machine.load_average)} before; killed"
    busy = "unknown" if one.disturbance.other_busy is None else f"{one.disturbance.other_busy:.1%}"
    return (f"{begun} in {one.seconds:.0f} s, load average {_or_unknown(one.disturbance.load_before)} before, "
            f"{_or_unknown(one.disturbance.load_after)} after; used by others: {busy}")


def _spread(median: float, low: float, high: float) -> Cell:
    return Cell(text.milliseconds(median), f"{text.significant(low)} to {text.significant(high)}")


def _matmuls(result: SubjectResult) -> Cell:
    if result.integer_matmuls is None:
        return Cell(text.NONE)
    total = result.integer_matmuls + (result.weight_only_matmuls or 0) + (result.float_matmuls or 0)
    return Cell(f"{result.integer_matmuls} of {total}", "weight-only" if result.weight_only_matmuls else "")


def _or_unknown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"
