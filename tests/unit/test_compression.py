"""`compress`: budgets, the choice among points, predicted sizes, and what the search looks at."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from distilface.compression.budget import Budget, parse_latency, parse_size
from distilface.compression.points import Point, best, binding, front, nearest
from distilface.compression.search import Search
from distilface.compression.space import COVERAGES, Base, Candidate, GraphParts
from distilface.compression.students import depths
from distilface.compression.summary import page
from distilface.errors import GateError, UserError

MB = 1_000_000


@pytest.mark.parametrize(("text", "expected"), [
    ("12MB", 12_000_000), ("11.5MiB", 12_058_624), ("900kB", 900_000), ("0.5 mb", 500_000), ("4096", 4096)])
def test_sizes(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize(("text", "expected"), [("1ms", 1.0), ("800us", 0.8), ("0.02s", 20.0), ("3", 3.0)])
def test_latencies(text: str, expected: float) -> None:
    assert parse_latency(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "MB", "12 parsecs", "-3MB", "1e3MB", "12MBs"])
def test_a_size_that_is_none(text: str) -> None:
    with pytest.raises(UserError, match=r"--max-size got .* for example 12MB"):
        parse_size(text)


@pytest.mark.parametrize(("values", "message"), [
    ({}, "no budget"), ({"size": 0}, "--max-size is 0"), ({"drop": -0.1}, "--max-drop is -0.1"),
    ({"drop": float("nan")}, "--max-drop is nan"), ({"latency": 0.0}, "--max-latency is 0"),
    ({"size": 1, "prefer": "beauty"}, "quality, size, latency")])
def test_budgets_that_mean_nothing(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Budget(**values)


@pytest.mark.parametrize(("values", "expected"), [
    ({"drop": 0.5}, "size"), ({"size": 1}, "quality"), ({"size": 1, "drop": 0.5}, "quality"),
    ({"latency": 1.0}, "quality"), ({"size": 1, "prefer": "latency"}, "latency")])
def test_what_is_best_follows_from_the_limits(values: dict[str, Any], expected: str) -> None:
    assert Budget(**values).preference == expected


def _point(slug: str, size: int, dev: float, latency: float = 1.0) -> Point:
    return Point(slug, "base", slug, "w4", size * MB, size * MB, 100, 6, dev, 90 - dev, 0.0, 0.0, latency, True, 0, 36,
                 (f"make {slug}",))


POINTS = [_point("big", 90, 90.0, 3.0), _point("middle", 23, 89.9), _point("wasteful", 24, 89.8),
          _point("small", 13, 89.7), _point("tiny", 6, 88.0, 0.5)]


def test_the_front_is_what_nothing_beats_in_size_and_quality() -> None:
    assert [point.slug for point in front(POINTS)] == ["tiny", "small", "middle", "big"]


@pytest.mark.parametrize(("budget", "expected"), [
    (Budget(size=25 * MB), "middle"), (Budget(drop=0.5), "small"), (Budget(size=12 * MB, drop=3), "tiny"),
    (Budget(size=100 * MB, prefer="latency"), "tiny"), (Budget(size=100 * MB, prefer="size"), "tiny"),
    (Budget(size=12 * MB, drop=0.5), None), (Budget(latency=0.1), None)])
def test_the_best_within_a_budget(budget: Budget, expected: str | None) -> None:
    found = best(POINTS, budget)
    assert (None if found is None else found.slug) == expected


@pytest.mark.parametrize(("budget", "limits", "near"), [
    # 13 MB is 1/12 too large and loses 0.3; 6 MB fits and loses 2, which is 3 times 0.5 over it.
    (Budget(size=12 * MB, drop=0.5), "size or drop", "small"),
    # Everything but the tiny one is too slow by 2/3, and the tiny one loses twice what it may: over by 1.
    (Budget(drop=1.0, latency=0.6), "drop or latency", "middle"),
    (Budget(size=1 * MB, drop=0.0, latency=0.1), "no single limit alone", "tiny")])
def test_what_stands_in_the_way(budget: Budget, limits: str, near: str) -> None:
    assert binding(POINTS, budget) == limits
    found = nearest(POINTS, budget)
    assert found is not None
    assert found.slug == near


def test_points_come_back_as_they_were(tmp_path: Path) -> None:
    POINTS[0].write(tmp_path / "a.json")
    assert Point.read(tmp_path / "a.json") == POINTS[0]
    (tmp_path / "a.json").write_text('{"slug": ')
    with pytest.raises(UserError, match="damaged"):
        Point.read(tmp_path / "a.json")


def test_a_graph_is_taken_apart(tiny_bundle: Path) -> None:
    from distilface.artifact import Bundle

    bundle = Bundle.open(tiny_bundle)
    parts = GraphParts.of(bundle.graph("fp32"), 2)
    assert (parts.width, parts.layers) == (32, 2)
    assert parts.body == 2 * (4 * 32 * 32 + 2 * 32 * 128)
    whole, smaller = (parts.predicted("w8", "int8", rows) for rows in (parts.rows, parts.rows - 100))
    assert whole - smaller == 100 * (32 + 4)
    assert parts.predicted("w4", "int4", 132) - parts.predicted("w4", "int4", 32) == 100 * (16 + 2)


def test_depths() -> None:
    assert depths(6) == [4, 3, 2, 1]
    assert depths(12) == [8, 6, 4, 2]
    assert depths(2) == [1]
    assert depths(1) == []


PARTS = GraphParts(rows=30_000, width=384, tables=0, table_rows=0, body=10_000_000, outputs=20_000, layers=6, rest=0)
ROWS = {coverage: round(30_000 * (1 - (100 - coverage) / 12)) for coverage in COVERAGES}


@dataclass
class _Model:
    """A world in which losses and sizes follow rules: what the search should find is known."""

    loss_a_point: float
    """Points lost for each percent of tokens that are not covered."""
    losses: dict[str, float]
    asked: list[str]

    def measure(self, candidate: Candidate, say: Any) -> Point:
        self.asked.append(candidate.slug)
        base = candidate.base
        loss = self.loss_a_point * (100 - base.coverage)
        if candidate.mode is None:
            size, variant = 90 * MB, "fp32"
        else:
            if candidate.mode == "dynamic":
                raise GateError("no")
            loss += self.losses[candidate.mode] * (0.25 if candidate.mixed else 1)
            loss += {"int4": 0.1, "pq": 0.8}.get(candidate.tables, 0)
            size, variant = PARTS.predicted(candidate.mode, candidate.tables, ROWS[base.coverage]), candidate.mode
        return Point(candidate.slug, base.slug, candidate.words, variant, size, size, ROWS[base.coverage], 6,
                     90 - loss, loss, loss, loss, 1.0, True, 0, 36, ())


def _search(budget: Budget, exhaustive: bool = False, modes: tuple[str, ...] = ("static", "w8", "dynamic", "w4"),
            **losses: float) -> tuple[Search, _Model]:
    model = _Model(0.4, {"static": 0.02, "w8": 0.01, "w4": 0.2} | losses, [])
    search = Search(model, budget, ROWS, PARTS, modes, exhaustive, lambda step: None)  # type: ignore[arg-type]
    search.run(None)
    return search, model


def test_the_largest_vocabulary_that_fits_is_taken() -> None:
    search, model = _search(Budget(size=12 * MB, drop=1.0))
    assert search.best is not None
    limit = next(coverage for coverage in COVERAGES if PARTS.predicted("w4", "int4", ROWS[coverage]) <= 12 * MB)
    assert search.best.slug == Candidate(Base(limit), "w4", "int4").slug
    assert not [slug for slug in model.asked if "tokens-100_w8" in slug]  # 22 MB: never made
    assert any("would have" in reason for _, reason in search.skipped)


def test_without_a_size_limit_the_smallest_within_the_loss_is_found() -> None:
    """0.4 x (100 - coverage) + 0.3 <= 0.95 holds from 98.375 % on: 98.5 % is the smallest such step."""
    search, model = _search(Budget(drop=0.95))
    assert search.best is not None
    assert search.best.slug == Candidate(Base(98.5), "w4", "int4").slug
    assert len(model.asked) < 16
    everything, _ = _search(Budget(drop=0.95), exhaustive=True)
    assert everything.best == search.best


def test_static_int8_that_loses_too_much_keeps_nodes_in_float() -> None:
    search, _ = _search(Budget(size=23 * MB, drop=0.3), modes=("static",), static=0.8)
    assert search.best is not None
    assert search.best.words.endswith("mixed precision")
    assert search.best.slug.endswith("mixed-0.3")


def test_nothing_fits_and_the_nearest_is_measured() -> None:
    """Within 8 MB everything loses too much; the smallest that keeps the loss is looked for beyond the limit."""
    search, _ = _search(Budget(size=8 * MB, drop=0.5), modes=("w4",))
    assert search.best is None
    near = nearest(search.points, search.budget)
    assert near is not None
    assert set(near.breaks(search.budget)) == {"size"}
    assert "size" in binding(search.points, search.budget)


def test_a_candidate_that_can_not_be_made_is_passed_over() -> None:
    search, _ = _search(Budget(size=24 * MB, drop=1))
    assert ("INT8 dynamic, INT8 table", "no") in search.skipped
    assert search.best is not None


def test_the_page_names_the_commands_and_the_choice() -> None:
    text = page(Budget(size=25 * MB, drop=0.5), 90.0, POINTS, front(POINTS), POINTS[1], [("x", "too large")])
    assert "at most 25 MB, at most 0.5 points lost; best is most quality" in text
    assert "**Best: middle**" in text
    assert text.count("make small") == 1
    assert "- x: too large" in text
    assert "Nothing keeps the budget" in page(Budget(size=1), 90.0, POINTS, [], None, [])


def test_a_point_without_the_front() -> None:
    twin = replace(POINTS[0], slug="twin")
    assert len(front([*POINTS, twin])) == 4
