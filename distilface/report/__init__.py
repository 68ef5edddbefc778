"""What a benchmark report says to people: JSON, Markdown, one HTML page, a comparison with an older run, CI rules."""

from distilface.report.compare import Comparison, compare
from distilface.report.gates import enforce, evaluate_rules, parse_rule
from distilface.report.verdict import Verdict, ship
from distilface.report.write import write_report

__all__ = ["Comparison", "Verdict", "compare", "enforce", "evaluate_rules", "parse_rule", "ship", "write_report"]
