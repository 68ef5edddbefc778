"""A report to disk: three files, whole or not at all."""

from __future__ import annotations

from pathlib import Path

from distilface.artifact import atomic_directory
from distilface.benchmarking.results import BenchReport
from distilface.report.compare import Comparison
from distilface.report.markdown import to_markdown
from distilface.report.page import to_html

JSON_FILE, MARKDOWN_FILE, HTML_FILE = "report.json", "report.md", "report.html"


def write_report(report: BenchReport, folder: str | Path, overwrite: bool = False,
                 comparison: Comparison | None = None) -> Path:
    """Write report.json, report.md and report.html; returns the path of the HTML page.

    Raises:
        UserError: the folder exists and is not empty, without ``overwrite``.
    """
    files = {JSON_FILE: report.to_json(), MARKDOWN_FILE: to_markdown(report, comparison),
             HTML_FILE: to_html(report, comparison)}
    with atomic_directory(folder, overwrite) as temporary:
        for name, content in files.items():
            (temporary / name).write_text(content, encoding="utf-8", newline="\n")
    return Path(folder) / HTML_FILE
