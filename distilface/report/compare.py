"""What changed since an older report."""

from __future__ import annotations

from distilface.benchmarking.results import BenchReport
from distilface.config import StrictModel
from distilface.report.metrics import METRICS, Metric
from distilface.report.text import significant


class Change(StrictModel):
    """One number of one subject, then and now.

    ``relative`` is new / old - 1. ``normalised``: both sides were divided by their own baseline first, because the
    reports come from different machines.
    """

    subject: str
    metric: str
    tokens: int | None
    unit: str
    old: float
    new: float
    relative: float | None
    better: bool | None
    normalised: bool = False


class Comparison(StrictModel):
    """An old and a new report side by side."""

    old_created: str
    new_created: str
    same_machine: bool
    changes: tuple[Change, ...]
    notes: tuple[str, ...]


def compare(old: BenchReport, new: BenchReport) -> Comparison:
    """Every number that both reports hold for subjects of the same name."""
    shared = [result.name for result in new.subjects if result.name in {other.name for other in old.subjects}]
    changes = []
    for name in shared:
        for metric in METRICS.values():
            if metric.name == "drop":  # the change of spearman says it
                continue
            lengths = [None] if not metric.takes_tokens else [old.short_tokens, old.long_tokens]
            found = [change_of(metric, tokens, name, old, new) for tokens in dict.fromkeys(lengths)]
            changes += [change for change in found if change is not None]
    return Comparison(old_created=old.created, new_created=new.created, same_machine=same_machine(old, new),
                      changes=tuple(changes), notes=_notes(old, new, shared))


def same_machine(old: BenchReport, new: BenchReport) -> bool:
    """Whether times of the two can be compared: same processor, cores, threads and target."""
    return ((old.machine.cpu, old.machine.gpu, old.machine.cores_usable, old.threads, old.target)
            == (new.machine.cpu, new.machine.gpu, new.machine.cores_usable, new.threads, new.target))


def change_of(metric: Metric, tokens: int | None, name: str, old: BenchReport, new: BenchReport) -> Change | None:
    """The change of one number; None where a report lacks it.

    Times from different machines are divided by the time of the baseline in their own report first.
    """
    sides = [metric.value(report, report.subject(name), tokens) for report in (old, new)]
    before, after = sides
    if before is None or after is None:
        return None
    normalised = metric.is_time and not same_machine(old, new)
    if normalised:
        bases = [metric.value(report, report.baseline_result, tokens) for report in (old, new)]
        if not bases[0] or not bases[1] or old.baseline != new.baseline:
            return None
        before, after = before / bases[0], after / bases[1]
    relative = after / before - 1 if before else None
    better = None if after == before else (after < before) == metric.smaller_is_better
    return Change(subject=name, metric=metric.name, tokens=tokens, unit="× baseline" if normalised else metric.unit,
                  old=before, new=after, relative=relative, better=better, normalised=normalised)


def change_text(change: Change) -> tuple[str, str, str, str]:
    """Label, old, new and change of one row, for tables."""
    label = METRICS[change.metric].label + (f", {change.tokens} tokens" if change.tokens is not None else "")
    exact = change.unit in ("points", "cosine")
    old, new = ((f"{value:.4f}" if change.unit == "cosine" else f"{value:.2f}") if exact else significant(value)
                for value in (change.old, change.new))
    if exact:
        delta = f"{change.new - change.old:+.{4 if change.unit == 'cosine' else 2}f}"
    else:
        delta = "" if change.relative is None else f"{change.relative:+.1%}"
    return f"{label} ({change.unit})", old, new, delta.replace("-", "−")


def _notes(old: BenchReport, new: BenchReport, shared: list[str]) -> tuple[str, ...]:
    notes = []
    if not same_machine(old, new):
        notes.append("the reports come from different machines or settings: times are compared as multiples of each "
                     "report's own baseline")
    for report, where in ((old, "old"), (new, "new")):
        only = [result.name for result in report.subjects if result.name not in shared]
        if only:
            notes.append(f"only in the {where} report: {', '.join(only)}")
    if old.sts_source != new.sts_source:
        notes.append(f"STS sources differ ({old.sts_source} then, {new.sts_source} now)")
    if (old.text_source, old.text_count) != (new.text_source, new.text_count):
        notes.append("throughput texts differ: throughput and cosines are not comparable")
    return tuple(notes)
