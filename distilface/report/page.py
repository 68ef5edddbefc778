"""The report as one self-contained HTML page: no script, no request, light and dark by the reader's setting."""

from __future__ import annotations

from html import escape

from distilface.benchmarking.results import BenchReport
from distilface.errors import INSTALL
from distilface.report import tables
from distilface.report.compare import Comparison, change_text
from distilface.report.plots import Plot, make_plots
from distilface.report.style import CSS
from distilface.report.verdict import Verdict, ship


def to_html(report: BenchReport, comparison: Comparison | None = None) -> str:
    """The whole page. Without matplotlib it has no plots and says how to get them."""
    verdict = ship(report)
    summary, latency = tables.summary_table(report), tables.latency_table(report)
    parts = [
        _header(report), _verdict(verdict), _warnings([*report.disturbance.warnings, *report.notes]),
        _table(summary, f"× is the gain over <strong>{escape(report.baseline)}</strong>, measured side by side in this "
                        "run; above 1 is better. Beneath: the absolute value, and the gain's range over rounds."),
        _plots(report), _table(latency, "All rounds together. Each subject in its own process, taking turns."),
        _table(tables.throughput_table(report), "Gain and rate: median, and the range over the rounds."),
        _table(tables.startup_table(report), "In a fresh process, with the file in the page cache: median and range."),
    ]
    sts = tables.sts_table(report)
    if sts is not None:
        parts.append(_table(sts, "Subsets of a year concatenated, average ranks for ties; the interval is a paired "
                                 "bootstrap."))
    retrieval = tables.retrieval_table(report)
    if retrieval is not None:
        parts.append(_table(retrieval, "Nearest by cosine among the texts of all groups, the text itself left out."))
    roofline = tables.roofline_table(report)
    if roofline is not None:
        parts.append(_table(roofline, "The products the model needs for these sentences, padding not counted, against "
                                      "the fastest product of that precision measured on this processor."))
    parts += [_notes(report), _comparison(comparison), _machine(report)]
    return (f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<meta name="color-scheme" content="light dark">\n'
            f"<title>distilface bench: {escape(verdict.name or report.baseline)}</title>\n"
            f"<style>{CSS}</style>\n</head>\n<body>\n<main>\n{''.join(parts)}</main>\n</body>\n</html>\n")


def _header(report: BenchReport) -> str:
    facts = report.machine
    count = len(report.subjects)
    line = (f"{count} subject{'s' if count > 1 else ''} on {facts.cpu or 'an unnamed processor'}, {report.threads} "
            f"thread{'s' if report.threads > 1 else ''}, target {report.target}, {report.created[:10]}")
    return f"<header><h1>distilface bench</h1><p>{escape(line)}</p></header>\n"


def _verdict(verdict: Verdict) -> str:
    head = f"Ship <code>{escape(verdict.name)}</code>" if verdict.name else "Nothing to ship yet"
    cautions = "".join(f"<li>{escape(item)}</li>" for item in verdict.cautions)
    others = "".join(f"<li><code>{escape(name)}</code>: {escape(why)}</li>" for name, why in verdict.others.items())
    return (f'<section class="verdict" aria-label="Recommendation"><h2>{head}</h2><p>{escape(verdict.reason)}.</p>'
            + (f'<ul class="cautions">{cautions}</ul>' if cautions else "")
            + (f"<details><summary>Why not the others</summary><ul>{others}</ul></details>" if others else "")
            + "</section>\n")


def _warnings(warnings: list[str]) -> str:
    return "".join(f'<p class="warning" role="note">{escape(text)}</p>\n' for text in warnings)


def _plots(report: BenchReport) -> str:
    try:
        plots = make_plots(report)
    except ModuleNotFoundError:
        command = escape(INSTALL.format(extra="bench"))
        return f'<p class="warning" role="note">No plots: matplotlib is missing. <code>{command}</code></p>\n'
    return f'<section class="plots" aria-label="Plots">{"".join(map(_figure, plots))}</section>\n' if plots else ""


def _figure(plot: Plot) -> str:
    return (f'<figure><figcaption>{escape(plot.title)}</figcaption><div class="scroll" tabindex="0">{plot.svg}</div>'
            "</figure>\n")


def _table(table: tables.Table, explanation: str) -> str:
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in table.header)
    rows = "".join(f'<tr><th scope="row">{_cell(row[0])}</th>{"".join(f"<td>{_cell(cell)}</td>" for cell in row[1:])}'
                   "</tr>" for row in table.rows)
    return (f'<section><h2>{escape(table.title)}</h2><p class="about">{explanation}</p>'
            f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}"><table>'
            f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>\n")


def _cell(cell: tables.Cell) -> str:
    return escape(cell.main).replace(":", ":<wbr>") + (f"<small>{escape(cell.detail)}</small>" if cell.detail else "")


def _notes(report: BenchReport) -> str:
    items = "".join(f"<li><code>{escape(result.name)}</code>: {escape(note)}</li>"
                    for result in report.subjects for note in result.notes)
    return f"<section><h2>Notes</h2><ul>{items}</ul></section>\n" if items else ""


def _comparison(comparison: Comparison | None) -> str:
    if comparison is None:
        return ""
    rows = tuple((tables.Cell(change.subject), *map(tables.Cell, change_text(change))) for change in comparison.changes)
    table = tables.Table(f"Change since {comparison.old_created[:10]}", ("subject", "number", "then", "now", "change"),
                         rows)
    return _warnings(list(comparison.notes)) + _table(table, "Negative is less: better for sizes and times, worse for "
                                                             "throughput and quality.")


def _machine(report: BenchReport) -> str:
    rows = "".join(f'<tr><th scope="row">{escape(label)}</th><td>{escape(value)}</td></tr>'
                   for label, value in tables.machine_rows(report))
    return (f'<section><h2>Machine and run</h2><div class="scroll" tabindex="0"><table class="facts"><tbody>{rows}'
            f'</tbody></table></div><p class="about">Every number on this page was made by</p>'
            f"<pre tabindex=\"0\">{escape(report.command)}</pre></section>\n")
