"""Rules that make a benchmark a CI gate: ``drop>0.3``, ``size>25MB``, ``p50>+10%``, ``p99@128[int8-static]>8ms``.

A rule names what must not be. ``METRIC[@TOKENS][SUBJECT] OP VALUE[UNIT]``; a value with a sign is a change against the
older report, in percent or in the metric's unit; without one it is absolute.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from distilface.benchmarking.results import BenchReport, SubjectResult
from distilface.errors import GateError, UserError
from distilface.report.compare import change_of
from distilface.report.metrics import METRICS, Metric
from distilface.report.text import significant

_RULE = re.compile(r"(?P<metric>[a-z_0-9]+)(?:@(?P<tokens>\d+))?(?:\[(?P<subject>[^\]]+)\])?\s*(?P<op><=|>=|<|>)\s*"
                   r"(?P<sign>[+-]?)(?P<value>\d+(?:\.\d+)?|\.\d+)\s*(?P<unit>%|[A-Za-z/]*)")
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_UNITS: dict[str, dict[str, float]] = {
    "MB": {"": 1, "B": 1e-6, "kB": 1e-3, "KB": 1e-3, "MB": 1, "GB": 1e3, "MiB": 1.048576},
    "ms": {"": 1, "us": 1e-3, "ms": 1, "s": 1e3},
    "/s": {"": 1, "/s": 1},
    "points": {"": 1, "points": 1},
    "cosine": {"": 1},
}
EXAMPLES = "'drop>0.3', 'size>25MB', 'p50>+10%'"


@dataclass(frozen=True)
class Rule:
    """A parsed rule; ``limit`` is in the metric's unit, or a fraction when ``percent``."""

    text: str
    metric: Metric
    tokens: int | None
    subject: str | None
    op: str
    limit: float
    against_old: bool
    percent: bool


@dataclass(frozen=True)
class Broken:
    """A rule that a subject breaks, with the value found, as text."""

    rule: Rule
    subject: str
    found: str

    def __str__(self) -> str:
        return f"{self.rule.text}: {self.subject} has {self.found}"


def parse_rule(text: str) -> Rule:
    """Parse one rule; `UserError` says what is wrong with it and what is allowed."""
    match = _RULE.fullmatch(text.strip())
    if match is None:
        raise UserError(f"--fail-on {text!r} is not a rule; write METRIC[@TOKENS][[SUBJECT]] then > or < then a value, "
                        f"for example {EXAMPLES}")
    metric = METRICS.get(match["metric"])
    if metric is None:
        raise UserError(f"--fail-on {text!r}: unknown metric {match['metric']!r}; allowed: {', '.join(METRICS)}")
    if match["tokens"] and not metric.takes_tokens:
        raise UserError(f"--fail-on {text!r}: {metric.name} has no length; drop @{match['tokens']}")
    percent = match["unit"] == "%"
    if percent and not match["sign"]:
        raise UserError(f"--fail-on {text!r}: a percentage is a change against an older report; write its sign "
                        f"({metric.name}{match['op']}+{match['value']}%)")
    units = _UNITS[metric.unit]
    if not percent and match["unit"] not in units:
        raise UserError(f"--fail-on {text!r}: unit {match['unit']!r} does not fit {metric.name}; allowed: "
                        f"{', '.join(unit for unit in units if unit) or 'none'}, or a signed %")
    scale = 0.01 if percent else units[match["unit"]]
    value = float(match["value"]) * scale * (-1 if match["sign"] == "-" else 1)
    return Rule(text.strip(), metric, int(match["tokens"]) if match["tokens"] else None, match["subject"], match["op"],
                value, bool(match["sign"]), percent)


def check_old(rule: Rule, old: object) -> None:
    """Refuse a change where there is nothing older."""
    if rule.against_old and old is None:
        raise UserError(f"--fail-on {rule.text!r} is a change against an older report; give one: --compare OLD.json")


def evaluate_rules(rules: Sequence[str], report: BenchReport, old: BenchReport | None = None) -> list[Broken]:
    """The rules that are broken, in order.

    An absolute rule looks at every subject but the baseline (at it too when it is alone or named); a change against
    ``old`` at every subject both reports have. ``drop`` counts what was lost to the baseline and, given ``old``, what
    was lost since then: the larger.

    Raises:
        UserError: a rule that can't be parsed, names no subject, or asks for what was not measured.
    """
    return [broken for rule in map(parse_rule, rules) for broken in _evaluate(rule, report, old)]


def enforce(rules: Sequence[str], report: BenchReport, old: BenchReport | None = None) -> None:
    """Raise `GateError` listing the broken rules; return when all hold."""
    broken = evaluate_rules(rules, report, old)
    if broken:
        raise GateError(f"{len({item.rule.text for item in broken})} of {len(rules)} rules broken: "
                        f"{'; '.join(map(str, broken))}")


def _evaluate(rule: Rule, report: BenchReport, old: BenchReport | None) -> list[Broken]:
    check_old(rule, old)
    subjects = _subjects(rule, report)
    values = {subject.name: _value(rule, subject, report, old) for subject in subjects}
    measured = {name: value for name, value in values.items() if value is not None}
    if not measured:
        needs = rule.metric.needs or "it in both reports"
        raise UserError(f"--fail-on {rule.text!r} can't be checked: {rule.metric.name} was not measured for "
                        f"{', '.join(values) or 'any subject'}; it needs {needs}")
    return [Broken(rule, name, _show(rule, value)) for name, value in measured.items()
            if _OPERATORS[rule.op](value, rule.limit)]


def _subjects(rule: Rule, report: BenchReport) -> list[SubjectResult]:
    if rule.subject is not None:
        try:
            return [report.subject(rule.subject)]
        except KeyError as error:
            raise UserError(f"--fail-on {rule.text!r}: {error.args[0]}") from None
    others = [subject for subject in report.subjects if not subject.is_baseline]
    return list(report.subjects) if rule.against_old or not others else others


def _value(rule: Rule, subject: SubjectResult, report: BenchReport, old: BenchReport | None) -> float | None:
    if rule.metric.name == "drop" and not rule.against_old:
        lost = [rule.metric.value(report, subject, None), _lost_since(subject.name, report, old)]
        return max((value for value in lost if value is not None), default=None)
    if not rule.against_old:
        return rule.metric.value(report, subject, rule.tokens)
    assert old is not None
    if subject.name not in {other.name for other in old.subjects}:
        return None
    change = change_of(rule.metric, rule.tokens, subject.name, old, report)
    if change is None or (change.normalised and not rule.percent):
        return None
    return change.relative if rule.percent else change.new - change.old


def _lost_since(name: str, report: BenchReport, old: BenchReport | None) -> float | None:
    if old is None or name not in {other.name for other in old.subjects}:
        return None
    change = change_of(METRICS["spearman"], None, name, old, report)
    return None if change is None else change.old - change.new


def _show(rule: Rule, value: float) -> str:
    if rule.percent:
        return f"{value:+.1%}"
    sign = "+" if rule.against_old and value > 0 else ""
    number = f"{value:.4f}" if rule.metric.unit == "cosine" else significant(value)
    unit = {"MB": " MB", "ms": " ms", "/s": "/s", "points": " points", "cosine": ""}[rule.metric.unit]
    return f"{sign}{number}{unit}"
