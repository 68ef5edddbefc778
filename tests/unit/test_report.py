"""What a report says: the file to ship, what changed, which rules are broken, and a page that needs nobody else."""

from __future__ import annotations

import builtins
import html.parser
import re
from pathlib import Path
from typing import Any

import pytest

from distilface.benchmarking import summary
from distilface.benchmarking.results import BenchReport, Throughput
from distilface.errors import GateError, UserError
from distilface.machine import Disturbance
from distilface.report import compare, enforce, evaluate_rules, parse_rule, ship, text, write_report
from distilface.report.markdown import to_markdown
from distilface.report.page import to_html
from tests.synthetic_report import report, subject

STATIC = subject("minilm:int8-static", "int8-static", 2.0, 22_600_000, 0.06, 0.9962)
DYNAMIC = subject("minilm:int8-dynamic", "int8-dynamic", 2.4, 23_000_000, 0.61, 0.9948)


def test_a_gain_far_below_one_is_no_zero() -> None:
    assert [text.times(gain) for gain in (3.949, 1.0, 0.1, 0.0567, 0.00127)] == [
        "3.95×", "1.00×", "0.10×", "0.057×", "0.0013×"]


@pytest.mark.parametrize(("value", "expected"), [
    (0, "0"), (0.0712, "0.0712"), (0.66, "0.660"), (9.5, "9.50"), (9.996, "10.0"), (71.23, "71.2"), (999.6, "1,000"),
    (7123.4, "7,123"), (0.00001234, "0.0000123"), (-2.5, "-2.50"),
])
def test_three_significant_digits(value: float, expected: str) -> None:
    assert text.significant(value) == expected


def test_a_cosine_below_one_never_reads_as_one() -> None:
    assert text.cosine(0.99996) == "0.9999"
    assert text.cosine(1.0) == "1.0000"
    assert text.cosine(0.9962) == "0.9962"


def test_ship_takes_the_best_of_those_that_keep_their_quality() -> None:
    verdict = ship(report(subject(), STATIC, DYNAMIC))  # dynamic is faster, and 0.61 points worse
    assert verdict.name == "minilm:int8-static"
    assert "4.00× smaller (22.6 MB)" in verdict.reason and "2.00× as fast" in verdict.reason
    assert "Spearman −0.06 points" in verdict.reason
    assert "−0.61" in verdict.others["minilm:int8-dynamic"]
    assert ship(report(subject(), STATIC, DYNAMIC), max_drop=0.7).name == "minilm:int8-dynamic"


def test_ship_goes_by_cosine_where_no_sts_was_measured() -> None:
    fp32 = subject(sts=False)
    close = subject("minilm:int8-static", "int8-static", 1.5, 22_900_000, cosine=0.9901, sts=False)
    far = subject("minilm:int8-dynamic", "int8-dynamic", 3.0, 22_900_000, cosine=0.9899, sts=False)
    verdict = ship(report(fp32, close, far))
    assert verdict.name == "minilm:int8-static"
    assert "0.9901" in verdict.reason and "0.9899" in verdict.others["minilm:int8-dynamic"]


def test_ship_lets_no_small_lead_decide_over_dependence_on_batch_mates() -> None:
    # Merit of static 4.0 * 2.0 = 8.0; dynamic 3.93 * 2.2 = 8.6 is within a tenth, 3.93 * 2.4 = 9.4 is not.
    for speed, expected in ((2.2, "minilm:int8-static"), (2.4, "minilm:int8-dynamic")):
        dynamic = subject("minilm:int8-dynamic", "int8-dynamic", speed, 23_000_000, 0.1, 0.9948, dependence=0.985)
        assert ship(report(subject(), STATIC, dynamic)).name == expected


def test_ship_keeps_fp32_when_nothing_else_holds() -> None:
    verdict = ship(report(subject(), DYNAMIC))
    assert verdict.name == "minilm:fp32"
    assert "no compressed subject" in verdict.reason


def test_ship_judges_no_quality_that_was_not_measured() -> None:
    verdict = ship(report(subject(sts=False), subject("other:int8-static", "int8-static", 4.0, 9_000_000, sts=False)))
    assert verdict.name == "minilm:fp32"
    assert "quality not measured" in verdict.others["other:int8-static"]


def test_ship_offers_bundles_only() -> None:
    fast = subject("ckpt", "float32", 9.0, 1_000_000, 0.0, backend="torch", variant=None)
    verdict = ship(report(subject(), fast))
    assert verdict.name == "minilm:fp32"
    assert "export it first" in verdict.others["ckpt"]


def test_ship_warns_of_a_disturbed_run() -> None:
    noisy = Disturbance(load_before=3, load_after=3, other_busy=0.4, steal=0, warnings=("busy",))
    assert any("disturbed" in caution for caution in ship(report(disturbance=noisy)).cautions)


@pytest.mark.parametrize(("rule", "broken"), [
    ("drop>0.3", ["minilm:int8-dynamic"]),
    ("drop>0.05", ["minilm:int8-static", "minilm:int8-dynamic"]),
    ("drop>=0.61", ["minilm:int8-dynamic"]),
    ("drop>0.7", []),
    ("size>25MB", []),
    ("size > 22.8 MB", ["minilm:int8-dynamic"]),
    ("size>22800kB", ["minilm:int8-dynamic"]),
    ("size[minilm:fp32]>25MB", ["minilm:fp32"]),
    ("size[fp32]>25MB", ["minilm:fp32"]),
    ("p50<1ms", ["minilm:int8-dynamic"]),
    ("p50>0.001s", ["minilm:int8-static"]),
    ("p50@128>8ms", ["minilm:int8-static"]),
    ("cosine<0.995", ["minilm:int8-dynamic"]),
    ("throughput<2500", ["minilm:int8-static"]),
])
def test_absolute_rules(rule: str, broken: list[str]) -> None:
    found = evaluate_rules([rule], report(subject(), STATIC, DYNAMIC))
    assert [item.subject for item in found] == broken


@pytest.mark.parametrize(("rule", "old_speed", "broken"), [
    # p50 of static was 2.0 times as fast; from 2.5 the time rises by 25 %.
    ("p50>+10%", 2.5, True), ("p50>+30%", 2.5, False), ("p50>+10%", 2.0, False), ("p50<-10%", 1.5, True),
    ("throughput<-10%", 2.5, True), ("throughput<-25%", 2.5, False), ("size>+0.1MB", 2.0, False),
    ("p50@128>+10%", 2.5, True),
])
def test_rules_against_an_older_report(rule: str, old_speed: float, broken: bool) -> None:
    old = report(subject(), subject("minilm:int8-static", "int8-static", old_speed, 22_600_000, 0.06, 0.9962))
    found = evaluate_rules([rule], report(subject(), STATIC), old)
    assert [item.subject for item in found] == (["minilm:int8-static"] if broken else [])


def test_drop_also_counts_what_was_lost_since_the_older_report() -> None:
    old = report(subject("minilm:int8-static", "int8-static", 2.0, 22_600_000, -0.5, baseline=""), baseline="x")
    now = report(subject(), STATIC)
    old = old.model_copy(update={"baseline": "minilm:int8-static"})
    assert evaluate_rules(["drop>0.3"], now) == []
    (broken,) = evaluate_rules(["drop>0.3"], now, old)
    assert str(broken) == "drop>0.3: minilm:int8-static has 0.560 points"


def test_broken_rules_fail_with_a_list() -> None:
    with pytest.raises(GateError, match=r"2 of 3 rules broken: drop>0\.3: minilm:int8-dynamic has 0\.610 points; "
                                        r"size\[fp32\]>25MB: minilm:fp32 has 90\.4 MB"):
        enforce(["drop>0.3", "size[fp32]>25MB", "p50>5ms"], report(subject(), STATIC, DYNAMIC))
    enforce(["drop>1"], report())


@pytest.mark.parametrize(("rule", "message"), [
    ("speed>3", "unknown metric 'speed'; allowed: size, zip"),
    ("p50", "is not a rule"), ("p50>>3", "is not a rule"), ("", "is not a rule"), ("p50>fast", "is not a rule"),
    ("p50>10%", "write its sign"), ("p50>3MB", "unit 'MB' does not fit p50; allowed: us, ms, s"),
    ("size@14>3MB", "size has no length"), ("drop>3%", "write its sign"),
])
def test_rules_that_are_none(rule: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        parse_rule(rule)


@pytest.mark.parametrize(("rule", "message"), [
    ("p50>+10%", "give one: --compare OLD.json"), ("size[nobody]>3MB", "no single subject 'nobody'"),
    ("p50@77>3ms", "needs that length"),
])
def test_rules_that_cannot_be_checked(rule: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        evaluate_rules([rule], report())


def test_a_drop_without_sts_cannot_be_checked() -> None:
    bare = report(subject(sts=False), subject("minilm:int8-static", "int8-static", cosine=0.99, sts=False))
    with pytest.raises(UserError, match="needs --sts FOLDER"):
        evaluate_rules(["drop>0.3"], bare)


def test_comparison_on_one_machine_compares_times() -> None:
    old = report(subject(), subject("minilm:int8-static", "int8-static", 1.6, 25_000_000, 0.36))
    found = compare(old, report(subject(), STATIC, DYNAMIC))
    assert found.same_machine
    rows = {(c.subject, c.metric, c.tokens): c for c in found.changes}
    assert rows["minilm:int8-static", "p50", 14].relative == pytest.approx(1.6 / 2 - 1, abs=1e-4)
    assert rows["minilm:int8-static", "size", None].relative == pytest.approx(22.6 / 25 - 1)
    spearman = rows["minilm:int8-static", "spearman", None]
    assert spearman.new - spearman.old == pytest.approx(0.30) and spearman.better
    assert rows["minilm:fp32", "size", None].better is None
    assert any("only in the new report: minilm:int8-dynamic" in note for note in found.notes)


def test_comparison_across_machines_goes_by_the_ratio_to_the_baseline() -> None:
    # Everything three times slower there: the ratios are what they were.
    old = report(subject(speed=1 / 3), subject("minilm:int8-static", "int8-static", 2 / 3, 22_600_000, 0.06))
    now = report(subject(), STATIC)
    old = old.model_copy(update={"machine": old.machine.model_copy(update={"cpu": "slow"})})
    found = compare(old, now)
    assert not found.same_machine and any("different machines" in note for note in found.notes)
    change = next(c for c in found.changes if (c.subject, c.metric, c.tokens) == ("minilm:int8-static", "p50", 14))
    assert change.normalised and change.relative == pytest.approx(0, abs=1e-4)
    assert evaluate_rules(["p50>+10%"], now, old) == []


class Page(html.parser.HTMLParser):
    """What the page is made of."""

    VOID = ("meta", "br", "wbr", "path", "use", "rect")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id" and value]

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page() -> str:
    pytest.importorskip("matplotlib")
    old = report(subject(), created="2026-01-02T00:00:00+00:00")
    return to_html(report(), compare(old, report()))


def test_page_asks_nobody_for_anything(page: str) -> None:
    outside = set(re.findall(r"https?://[^\s\"'<>)]+", page))
    assert outside <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not re.search(r"(src|href)=\"(?!#)", page) and "@import" not in page and "url(//" not in page
    assert "<script" not in page


def test_page_is_well_formed_and_accessible(page: str) -> None:
    found = Page(page)
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    images = [attributes for tag, attributes in found.tags if tag == "svg"]
    assert len(images) == 6
    for attributes in images:
        assert attributes["role"] == "img"
        assert set((attributes["aria-labelledby"] or "").split()) <= set(found.ids)
    assert all(attributes.get("scope") in ("row", "col") for tag, attributes in found.tags if tag == "th")
    referenced = set(re.findall(r"(?:url\(#|xlink:href=\"#)([^)\"]+)", page))
    assert referenced <= set(found.ids)


def test_page_takes_its_colours_from_the_theme(page: str) -> None:
    assert "#010203" not in page and "#040506" not in page
    assert "currentColor" in page and "prefers-color-scheme: dark" in page


def test_page_says_what_to_ship_and_what_made_it(page: str) -> None:
    assert "<h2>Ship <code>minilm:int8-dynamic</code></h2>" in page
    assert "distilface bench minilm --sts senteval --out report" in page
    assert "Change since 2026-01-02" in page


HOSTILE = "<script>alert('x')</script>&|`*"


def hostile_report() -> BenchReport:
    return report(subject(HOSTILE, baseline=HOSTILE), command=f"distilface bench {HOSTILE}", notes=(HOSTILE,))


def test_names_are_escaped_in_the_page() -> None:
    found = to_html(hostile_report())
    assert "<script" not in found
    assert "&lt;script&gt;" in found
    assert Page(found).open == []


def test_names_stay_in_their_cell_in_markdown() -> None:
    markdown = to_markdown(hostile_report())
    tables = [line for line in markdown.splitlines() if line.startswith("|")]
    assert all("<script" not in line for line in tables)
    rows = [line for line in tables if "script" in line]
    header = next(line for line in tables if line.startswith("| subject | size"))
    unescaped = re.compile(r"(?<!\\)\|")
    assert len(unescaped.findall(rows[0])) == len(unescaped.findall(header))


def test_throughput_by_batch_size_and_by_threads_is_drawn() -> None:
    def rows(factor: float) -> tuple[Throughput, ...]:
        return tuple(summary.throughput(batch, 100, [100 / (rate * factor)], threads) for batch, threads, rate in (
            (256, None, 800), (1024, None, 700), (256, 1, 400), (1024, 1, 500)))

    made = report(subject(throughput=rows(1)), subject("minilm:int8-static", "int8-static", throughput=rows(2)))
    page = to_html(made)
    assert "minilm:fp32 256: 800, 1024: 700; minilm:int8-static 256: 1,600, 1024: 1,400." in page
    # The report's own number of threads is 2; of each, the faster batch size.
    assert "minilm:fp32 1: 500, 2: 800; minilm:int8-static 1: 1,000, 2: 1,600." in page
    assert "Throughput by" not in to_html(report())


def test_page_without_matplotlib_says_how_to_get_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    found = to_html(report())
    assert "<svg" not in found
    assert "pip install &#x27;distilface[bench]&#x27;" in found


def test_subjects_without_any_quality_still_make_a_page() -> None:
    bare = report(subject(sts=False, size_bytes=None, peak_rss_bytes=None, size_gain=None, rss_gain=None,
                          batch_dependence=None), sts_source=None)
    assert "–" in to_html(bare)
    assert "| minilm:fp32 (float32, baseline) | – (–) |" in to_markdown(bare)


def test_write_report_writes_three_files_and_refuses_a_full_folder(tmp_path: Path) -> None:
    page = write_report(report(), tmp_path / "out")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert sorted(file.name for file in page.parent.iterdir()) == ["report.html", "report.json", "report.md"]
    assert BenchReport.read(tmp_path / "out") == report()
    with pytest.raises(UserError, match="not empty"):
        write_report(report(), tmp_path / "out")
    write_report(report(), tmp_path / "out", overwrite=True)
