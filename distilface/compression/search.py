"""The search: each precision walks down the vocabularies as long as there is hope, then students take over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from distilface.compression.budget import Budget
from distilface.compression.points import Point, best
from distilface.compression.space import RECIPES, TOLERANCE, Base, Candidate, GraphParts
from distilface.compression.students import Lessons, depths, kept_layers, teach
from distilface.compression.workshop import Workshop
from distilface.errors import DistilfaceError
from distilface.quantization.recipe import Mode, Tables

STUDENTS = 2
"""So many depths are taught, the deepest that fit, where quality is wanted; else all."""
STUDENT_COVERAGE = 98.0
"""Students are taught with no smaller vocabulary than this."""
HOPE = 0.2
"""A base that loses more than the limit and so many points in float32 is not quantized."""


@dataclass
class Search:
    """One search.

    Attributes:
        rows: words in the table, by coverage.
        exhaustive: pass over nothing but what is impossible.
        points: measured, in order; ``skipped``: what was passed over, and why.
    """

    workshop: Workshop
    budget: Budget
    rows: dict[float, int]
    parts: GraphParts
    modes: Sequence[str]
    exhaustive: bool
    say: Callable[[str], None]
    points: list[Point] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def run(self, minutes: float | None) -> None:
        """Measure everything worth it."""
        self._measured(Candidate(Base(), None))
        whole = [Base(coverage) for coverage in self.rows]
        for mode, tables in self._recipes():
            self._walk(whole, mode, tables)
        if minutes is not None:
            self._students(minutes)
        if self.best is None and self.budget.size is not None:
            self._climb(whole)

    @property
    def best(self) -> Point | None:
        """The answer so far."""
        return best(self.points, self.budget)

    def _recipes(self) -> list[tuple[Mode, Tables]]:
        """Good ones first; where size is what counts, small ones first, which rule out the larger."""
        recipes = [(mode, tables) for mode, tables in RECIPES if mode in self.modes]
        if self.budget.preference == "size":
            recipes.sort(key=self._whole_size)
        return recipes

    def _whole_size(self, recipe: tuple[Mode, Tables]) -> int:
        return self.parts.predicted(recipe[0], recipe[1], self.parts.rows)

    def _walk(self, bases: Sequence[Base], mode: Mode, tables: Tables) -> None:
        """Try one precision on bases from large vocabularies to small ones."""
        candidates = [Candidate(base, mode, tables) for base in bases]
        if not self.exhaustive:
            candidates = self._hopeful(candidates)
        if self.exhaustive or self.budget.preference != "size":
            for candidate in candidates:
                broken = self._broken(candidate)
                # Smaller vocabularies are no better and no faster; only what turned out too large leaves a question.
                if not self.exhaustive and broken != {"size"}:
                    return
        elif candidates and not self._broken(candidates[0]):
            low, high = 0, len(candidates)  # the smallest that passes lies in [low, high)
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if self._broken(candidates[middle]) else (middle, high)

    def _broken(self, candidate: Candidate) -> set[str]:
        """Measure a candidate; the limits that it breaks, with nodes left in float where that helps."""
        if candidate.base != Base() and not self._base_has_hope(candidate.base):
            self.skipped.append((candidate.words, "its float32 graph loses too much already"))
            return {"drop"}
        point = self._measured(candidate)
        if point is None:
            return {"failed"}
        broken = set(point.breaks(self.budget))
        return self._mixed(candidate) if broken == {"drop"} and candidate.mode == "static" else broken

    def _mixed(self, candidate: Candidate) -> set[str]:
        """Let the nodes that hurt most stay float; the limits that are broken even so."""
        assert self.budget.drop is not None
        base = self._measured(Candidate(candidate.base, None))
        allowed = round(self.budget.drop - (base.drop if base is not None else 0.0), 2)
        if allowed <= 0:
            return {"drop"}
        point = self._measured(Candidate(candidate.base, candidate.mode, candidate.tables, allowed))
        return {"drop"} if point is None else set(point.breaks(self.budget))

    def _hopeful(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Those that may be small enough, by prediction."""
        limits = [("allowed", self.budget.size)]
        if self.budget.preference == "size" and self.best is not None:
            limits.append(("needed by one that passes", self.best.size))
        sizes = [(candidate, self._predicted(candidate)) for candidate in candidates]
        for words, limit in limits:
            small = [(candidate, size) for candidate, size in sizes if limit is None or size <= TOLERANCE * limit]
            if sizes and not small:
                candidate, size = sizes[-1]
                self.skipped.append((candidate.words, f"would have {size / 1e6:.1f} MB, more than {words}; with more "
                                                      "words, more still"))
            sizes = small
        return [candidate for candidate, _ in sizes]

    def _predicted(self, candidate: Candidate) -> int:
        assert candidate.mode is not None
        layers = candidate.base.layers
        return self.parts.predicted(candidate.mode, candidate.tables, self.rows[candidate.base.coverage],
                                    None if layers is None else len(layers))

    def _base_has_hope(self, base: Base) -> bool:
        point = self._measured(Candidate(base, None))
        return point is not None and (self.budget.drop is None or self.exhaustive
                                      or point.drop <= self.budget.drop + HOPE)

    def _students(self, minutes: float) -> None:
        bases = self._student_bases()
        if not bases:
            self.skipped.append(("fewer layers", "no depth would keep the size or the latency"))
            return
        lessons = Lessons.planned(self.workshop, bases, minutes, self.say)
        for base in bases:
            teach(self.workshop, base, lessons, self.say)
            if not self._base_has_hope(base):
                self.skipped.append((base.words, "its float32 graph loses too much already"))
                continue
            for mode, tables in self._recipes():
                self._walk([base], mode, tables)

    def _student_bases(self) -> list[Base]:
        """The depths that can fit, each with the largest vocabulary that its smallest precision has room for."""
        recipes = self._recipes()
        whole = min((point.latency for point in self.points if "fp32" not in point.variant), default=None)
        found: list[tuple[int, float]] = []
        for depth in depths(self.parts.layers):
            if self.budget.latency is not None and whole is not None and (
                    whole * depth / self.parts.layers > self.budget.latency):
                continue
            coverage = next((
                coverage for coverage, rows in self.rows.items() if coverage >= STUDENT_COVERAGE and (
                    self.budget.size is None or self.budget.size >= min(
                        self.parts.predicted(mode, tables, rows, depth) for mode, tables in recipes))), None)
            if coverage is not None:
                found.append((depth, coverage))
        if self.budget.preference == "quality":
            found = found[:STUDENTS]
        if not found:
            return []
        kept = kept_layers(self.workshop.model, [depth for depth, _ in found], self.workshop.dev, self.say)
        return [Base(coverage, kept[depth]) for depth, coverage in found]

    def _climb(self, bases: Sequence[Base]) -> None:
        """Nothing fits: the smallest precision that keeps the loss, and the smallest vocabulary with which it does."""
        for mode, tables in sorted(self._recipes(), key=self._whole_size):
            whole = self._measured(Candidate(Base(), mode, tables))
            if whole is None or "drop" in whole.breaks(self.budget):
                continue
            for base in reversed(bases):
                point = self._measured(Candidate(base, mode, tables)) if self._base_has_hope(base) else None
                if point is not None and "drop" not in point.breaks(self.budget):
                    return

    def _measured(self, candidate: Candidate) -> Point | None:
        known = next((point for point in self.points if point.slug == candidate.slug), None)
        if known is not None:
            return known
        try:
            point = self.workshop.measure(candidate, self.say)
        except DistilfaceError as error:
            self.skipped.append((candidate.words, str(error)))
            return None
        self.points.append(point)
        return point
