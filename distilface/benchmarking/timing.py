"""The timed part of a run: loading, and rounds in which the subjects take turns."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from distilface.benchmarking.crew import Crew
from distilface.benchmarking.energy import EnergyMeter
from distilface.benchmarking.run import Run
from distilface.benchmarking.subjects import Subject
from distilface.benchmarking.texts import CountTokens, length_grid, texts_of_length

WARMUP_CALLS = 3
Answers = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Grid:
    """The token counts of the latency rounds; ``short`` and ``long`` are the two that summaries show."""

    short: int
    long: int
    lengths: tuple[int, ...]


def measure_times(run: Run, count: CountTokens) -> Grid:
    """All times of all subjects, into ``run.samples``."""
    with Crew(run.subjects, run.config, run.threads) as crew:
        _loads(run, crew)
        grid = _grid(run)
        texts = {str(length): texts_of_length(length, run.texts.sentences, count, seed=run.config.seed)
                 for length in grid.lengths}
        _Rounds(run, crew).take(texts)
        tokens = run.kept.step("tokens", lambda: {
            subject.name: crew.ask(subject, "tokens", texts=texts)["means"] for subject in run.subjects})
    for name, means in tokens.items():
        run.samples[name].own_tokens = means
    counts = [threads for threads in dict.fromkeys(run.config.thread_sweep) if threads != run.threads]
    for index, threads in enumerate(counts):
        run.progress("thread sweep", index, len(counts))
        with Crew(run.subjects, run.config, threads) as crew:
            _Rounds(run, crew, threads).take({})
    return grid


def _loads(run: Run, crew: Crew) -> None:
    """Start every subject in fresh processes several times, in turn; the processes of the last time stay."""
    repeats = run.config.load_repeats
    for repeat in range(repeats):
        run.progress("loading", repeat, repeats)
        start = crew.start if repeat == repeats - 1 else partial(_start_and_end, run)
        for name, answer in run.kept.step(f"load-{repeat}", start).items():
            run.samples[name].loads.append(answer)


def _start_and_end(run: Run) -> Answers:
    answers: Answers = {}
    for subject in run.subjects:
        with Crew([subject], run.config, run.threads) as crew:
            answers |= crew.start()
    return answers


def _grid(run: Run) -> Grid:
    """Lengths that every subject takes uncut."""
    limits = [run.samples[subject.name].loads[-1]["max_seq_length"] for subject in run.subjects]
    known = [limit for limit in limits if limit is not None]
    return Grid(*length_grid(run.config.lengths, min(known, default=max(run.config.lengths, default=128))))


@dataclass
class _Rounds:
    """At each length, then at each batch policy, one subject after the other (A B A B ...).

    Who begins moves on each round. The turns are short, so that both sides of a ratio are measured within a second or
    so of each other; one turn of all subjects is one step, so that an interruption never falls between the sides.
    """

    run: Run
    crew: Crew
    threads: int | None = None
    meter: EnergyMeter = field(default_factory=EnergyMeter)
    warm: set[tuple[str, int | None]] = field(default_factory=set)

    def take(self, grid: dict[str, list[str]]) -> None:
        """All rounds; an empty grid measures throughput alone."""
        run = self.run
        policies: tuple[int | None, ...] = run.config.batch_tokens or (None,)
        steps = run.config.rounds * (len(grid) + len(policies))
        done = 0
        for turn in range(run.config.rounds):
            first = turn % len(run.subjects)
            order = [*run.subjects[first:], *run.subjects[:first]]
            for length, texts in grid.items():
                self._say("latency", done, steps)
                answers = run.kept.step(f"latency-{turn}-{length}", partial(self._latency, order, texts))
                for name, answer in answers.items():
                    run.samples[name].latency.setdefault(int(length), []).append(answer["seconds"])
                done += 1
            for policy in policies:
                self._say("throughput", done, steps)
                name = f"throughput-{turn}-{policy or 'default'}-{self.threads or run.threads}"
                self._add(policy, run.kept.step(name, partial(self._throughput, order, policy)))
                done += 1

    def _say(self, stage: str, done: int, steps: int) -> None:
        if self.threads is None:
            self.run.progress(stage, done, steps)

    def _latency(self, order: Sequence[Subject], texts: list[str]) -> Answers:
        config, answers = self.run.config, {}
        for subject in order:
            time.sleep(config.settle_seconds)
            answers[subject.name] = self.crew.ask(
                subject, "latency", texts=texts, samples=config.latency_samples, turn_seconds=config.turn_seconds,
                warmup=WARMUP_CALLS)
        return answers

    def _throughput(self, order: Sequence[Subject], policy: int | None) -> Answers:
        texts, answers = self.run.texts.sentences, {}
        for subject in order:
            time.sleep(self.run.config.settle_seconds)
            known = (subject.name, policy) in self.warm
            self.warm.add((subject.name, policy))
            self.crew.ask(subject, "throughput", texts=texts[: max(1, len(texts) // 10)] if known else texts,
                          batch_tokens=policy)
            self.meter.start()
            answer = self.crew.ask(subject, "throughput", texts=texts, batch_tokens=policy)
            answers[subject.name] = {**answer, "joules": self.meter.joules(), **self.crew.ask(subject, "memory")}
        return answers

    def _add(self, policy: int | None, answers: Answers) -> None:
        key = policy, self.threads
        for name, answer in answers.items():
            samples = self.run.samples[name]
            samples.throughput.setdefault(key, []).append(answer["seconds"])
            if answer["joules"] is not None:
                samples.joules.setdefault(key, []).append(answer["joules"])
            if self.threads is None and answer["peak_rss"] is not None:
                samples.peak_rss = max(samples.peak_rss or 0, answer["peak_rss"])
