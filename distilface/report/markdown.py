"""The report as Markdown: the verdict, the tables, the notes, the machine, the command."""

from __future__ import annotations

from distilface.benchmarking.results import BenchReport
from distilface.report import tables
from distilface.report.compare import Comparison, change_text
from distilface.report.verdict import ship


def to_markdown(report: BenchReport, comparison: Comparison | None = None) -> str:
    """The whole report, one Markdown document."""
    verdict = ship(report)
    title = f"**Ship {_escape(verdict.name)}**" if verdict.name else "**Nothing to ship yet**"
    parts = ["# distilface bench", f"{title}: {_escape(verdict.reason)}."]
    parts += [f"- Mind: {_escape(caution)}" for caution in verdict.cautions]
    parts += [f"- Not {_escape(name)}: {_escape(why)}" for name, why in verdict.others.items()]
    parts.append(f"Gains (×) are over {_escape(report.baseline)}, measured side by side in the same run; above 1 is "
                 "better. Absolute values belong to the machine named below.")
    warnings = [*report.disturbance.warnings, *report.notes]
    parts += [f"> **Warning:** {_escape(warning)}" for warning in warnings]
    found = (tables.summary_table(report), tables.latency_table(report), tables.throughput_table(report),
             tables.startup_table(report), tables.sts_table(report), tables.retrieval_table(report),
             tables.roofline_table(report))
    parts += [_table(table) for table in found if table is not None]
    notes = [f"- {_escape(result.name)}: {_escape(note)}" for result in report.subjects for note in result.notes]
    if notes:
        parts += ["## Notes", "\n".join(notes)]
    if comparison is not None:
        parts.append(comparison_markdown(comparison))
    machine = "\n".join(f"| {_escape(label)} | {_escape(value)} |" for label, value in tables.machine_rows(report))
    parts += ["## Machine and run", f"| fact | value |\n|---|---|\n{machine}", "Made by:",
              f"```\n{report.command}\n```"]
    return _joined(parts)


def comparison_markdown(comparison: Comparison) -> str:
    """The change since an older report as a Markdown section."""
    lines = [f"## Change since {comparison.old_created}", ""]
    lines += [f"- {_escape(note)}" for note in comparison.notes]
    lines += ["", "| subject | number | then | now | change |", "|---|---|---|---|---|"]
    for change in comparison.changes:
        cells = (change.subject, *change_text(change))
        lines.append("| " + " | ".join(map(_escape, cells)) + " |")
    return "\n".join(lines)


def _table(table: tables.Table) -> str:
    lines = [f"## {table.title}", "", "| " + " | ".join(map(_escape, table.header)) + " |",
             "|" + "---|" * len(table.header)]
    for row in table.rows:
        cells = [_escape(cell.main + (f" ({cell.detail})".replace("\n", "; ") if cell.detail else "")) for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _escape(value: str | None) -> str:
    """Text that stays text inside a table cell."""
    escaped = (value or "").replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
    return escaped.replace("<", "&lt;").replace("*", "\\*").replace("`", "\\`")


def _joined(parts: list[str]) -> str:
    """Blank lines between blocks, none inside a list."""
    text = ""
    for before, part in zip(["", *parts], parts, strict=False):
        text += ("\n" if before.startswith("- ") and part.startswith("- ") else "\n\n" if before else "") + part
    return text + "\n"
