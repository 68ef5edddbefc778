"""`bench`: start one process a subject, let them take turns, and put the answers together."""

from __future__ import annotations

import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from distilface import __version__
from distilface.benchmarking import quality
from distilface.benchmarking.assemble import Plan, Samples, assemble
from distilface.benchmarking.client import Worker
from distilface.benchmarking.config import BenchConfig
from distilface.benchmarking.energy import EnergyMeter
from distilface.benchmarking.results import BenchReport, SubjectResult
from distilface.benchmarking.roofline import measure_peaks, roofline, work_of
from distilface.benchmarking.subjects import BUNDLE_BACKENDS, Subject, check_target, static_facts, with_unique_names
from distilface.benchmarking.texts import RealTexts, length_grid, real_texts, texts_of_length, token_counter
from distilface.errors import GateError
from distilface.machine import LoadWatch, machine_facts
from distilface.protocol import Vectors

Progress = Callable[[str, int, int], None]

WARMUP_CALLS = 3
FIRST_TEXT = "switch off the lamp in the hall"
"""Short in every vocabulary; what the first-vector time encodes."""


def bench(subjects: Sequence[Subject], config: BenchConfig | None = None, progress: Progress | None = None,
          command: str | None = None) -> BenchReport:
    """Measure ``subjects`` side by side.

    Each runs in a process of its own; the processes stay alive and take turns, so that a disturbance hits all alike,
    and only one works at a time. The baseline of all gains is the first float32 subject, else the first.

    Args:
        subjects: from `find_subjects`, or built by hand for a factory.
        progress: called with (stage, done, total).
        command: recorded in the report; default, how this process was started.

    Raises:
        UserError: nothing to measure, a target that is not here, too few texts, unreadable data.
        GateError: Spearman undefined, or vectors that are not finite; before anything is timed.
        WorkerError: a measuring process died; carries its last line.
    """
    config = config or BenchConfig()
    subjects = with_unique_names(subjects)
    check_target(subjects, config.target, config.npm_folder)
    run = _Run(subjects, config, progress or _silent, command or _command_line())
    with ExitStack() as stack:
        return run.measure(stack)


@dataclass
class _Run:
    subjects: Sequence[Subject]
    config: BenchConfig
    progress: Progress
    command: str
    workers: dict[str, Worker] = field(default_factory=dict)
    samples: dict[str, Samples] = field(default_factory=dict)
    meter: EnergyMeter = field(default_factory=EnergyMeter)

    def measure(self, stack: ExitStack) -> BenchReport:
        started = time.perf_counter()
        config = self.config
        sets = quality.load_sts_data(config.sts) if config.sts is not None else []
        sentences = quality.distinct_sentences(sets)
        groups = quality.load_groups(config.groups, config.last_groups) if config.groups is not None else []
        grouped = list(dict.fromkeys(text for group in groups for text in group))
        texts = real_texts(config, sentences)
        machine = machine_facts(gpu=config.target == "cuda")
        threads = config.threads or (1 if config.target == "web" else machine.cores_usable)
        baseline = next((s for s in self.subjects if s.kind == "float32"), self.subjects[0])
        self.progress("reading files", 0, 1)
        with ThreadPoolExecutor(machine.cores_usable) as pool:
            facts = list(pool.map(static_facts, self.subjects))  # mostly zlib, which releases the interpreter lock
        self.samples = {one.name: Samples(found) for one, found in zip(self.subjects, facts, strict=True)}
        watch = LoadWatch()
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="distilface-bench-")))
        self._vectors(folder, threads, texts, sets, sentences, grouped)
        peaks = self._peaks(threads)
        with ExitStack() as processes:
            self._start(processes, threads)
            short, long, lengths = self._grid()
            count = token_counter(baseline.folder)
            grid = {str(n): texts_of_length(n, texts.sentences, count, seed=config.seed) for n in lengths}
            self._take_turns(grid, texts)
            for subject in self.subjects:
                worker, samples = self.workers[subject.name], self.samples[subject.name]
                samples.peak_rss = worker.ask("memory")["peak_rss"]
                samples.own_tokens = worker.ask("tokens", texts=grid)["means"]
        self._sweep_threads(texts, threads)
        disturbance = watch.finish()
        plan = Plan(
            subjects=tuple(self.subjects), baseline=baseline.name, short=short, long=long, lengths=lengths,
            text_count=len(texts.sentences), sts_sets=sets, groups=groups, group_texts=grouped, config=config,
        )
        results, notes = assemble(plan, self.samples, self.progress)
        if peaks:
            results = self._rooflines(results, count(texts.sentences), peaks)
        return BenchReport(
            distilface_version=__version__, created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            command=self.command, target=config.target, threads=threads, rounds=config.rounds,
            seconds=round(time.perf_counter() - started, 1), text_source=texts.source, text_count=len(texts.sentences),
            mean_tokens=float(np.mean(count(texts.sentences))),
            sts_source=str(config.sts) if config.sts is not None else None,
            groups_source=str(config.groups) if config.groups is not None else None, short_tokens=short,
            long_tokens=long, baseline=baseline.name, machine=machine, disturbance=disturbance, subjects=results,
            notes=notes, peaks=peaks,
        )

    def _peaks(self, threads: int) -> dict[str, float]:
        if not self.config.roofline:
            return {}
        self.progress("measuring peaks", 0, 1)
        return measure_peaks(threads)

    def _rooflines(self, results: tuple[SubjectResult, ...], lengths: Sequence[int],
                   peaks: dict[str, float]) -> tuple[SubjectResult, ...]:
        """Of what runs a graph of a bundle that still has its float32 graph to count."""
        from distilface.artifact import Bundle

        found, limit = [], self.config.max_seq_length
        for subject, result in zip(self.subjects, results, strict=True):
            bundle = Bundle.open(subject.folder) if subject.folder and subject.backend in BUNDLE_BACKENDS else None
            if bundle is None or "fp32" not in bundle.variant_names:
                found.append(result)
                continue
            manifest = bundle.manifest
            work = work_of(bundle.graph("fp32"), manifest.num_layers, manifest.hidden_size)
            longest = min(manifest.max_seq_length, limit or manifest.max_seq_length)
            best = result.best_throughput.sentences_per_second.median
            found.append(result.model_copy(update={"roofline": roofline(
                result.kind, work, [min(length, longest) for length in lengths], len(lengths) / best, peaks)}))
        return tuple(found)

    def _start(self, processes: ExitStack, threads: int) -> None:
        """Start every subject ``load_repeats`` times, in turn; the last process of each stays."""
        repeats = self.config.load_repeats
        for repeat in range(repeats):
            for index, subject in enumerate(self.subjects):
                self.progress("loading", repeat * len(self.subjects) + index, repeats * len(self.subjects))
                if repeat == repeats - 1:
                    worker = processes.enter_context(Worker(subject, threads))
                    self.workers[subject.name] = worker
                    self.samples[subject.name].loads.append(self._load(worker, threads))
                else:
                    with Worker(subject, threads) as worker:
                        self.samples[subject.name].loads.append(self._load(worker, threads))

    def _load(self, worker: Worker, threads: int, target: str | None = None) -> dict[str, Any]:
        return worker.ask("load", subject=worker.subject.model_dump(mode="json"), threads=threads,
                          target=target or self.config.target, max_seq_length=self.config.max_seq_length,
                          first_text=FIRST_TEXT, npm_folder=str(self.config.npm_folder or "."))

    def _grid(self) -> tuple[int, int, tuple[int, ...]]:
        """Lengths that every subject takes uncut."""
        limits = [self.samples[subject.name].loads[-1]["max_seq_length"] for subject in self.subjects]
        known = [limit for limit in limits if limit is not None]
        return length_grid(self.config.lengths, min(known, default=max(self.config.lengths, default=128)))

    def _take_turns(self, grid: dict[str, list[str]], texts: RealTexts) -> None:
        """The rounds: at each length, then at each batch policy, one subject after the other (A B A B ...).

        Who begins moves on each round. The turns are short, so that both sides of a ratio are measured within a second
        or so of each other.
        """
        config = self.config
        policies: tuple[int | None, ...] = config.batch_tokens or (None,)
        steps = config.rounds * (len(grid) + len(policies))
        done = 0
        for turn in range(config.rounds):
            first = turn % len(self.subjects)
            order = [*self.subjects[first:], *self.subjects[:first]]
            for length, items in grid.items():
                self.progress("latency", done, steps)
                for subject in order:
                    time.sleep(config.settle_seconds)
                    answer = self.workers[subject.name].ask(
                        "latency", texts=items, samples=config.latency_samples, turn_seconds=config.turn_seconds,
                        warmup=WARMUP_CALLS)
                    self.samples[subject.name].latency.setdefault(int(length), []).append(answer["seconds"])
                done += 1
            for policy in policies:
                self.progress("throughput", done, steps)
                for subject in order:
                    self._throughput(self.workers[subject.name], texts, policy, None, turn)
                done += 1

    def _throughput(self, worker: Worker, texts: RealTexts, policy: int | None, threads: int | None, turn: int) -> None:
        time.sleep(self.config.settle_seconds)
        warm = texts.sentences if turn == 0 else texts.sentences[: max(1, len(texts.sentences) // 10)]
        worker.ask("throughput", texts=warm, batch_tokens=policy)
        self.meter.start()
        answer = worker.ask("throughput", texts=texts.sentences, batch_tokens=policy)
        samples, joules = self.samples[worker.subject.name], self.meter.joules()
        samples.throughput.setdefault((policy, threads), []).append(answer["seconds"])
        if joules is not None:
            samples.joules.setdefault((policy, threads), []).append(joules)

    def _sweep_threads(self, texts: RealTexts, own: int) -> None:
        """Throughput with other numbers of threads, each in fresh processes that take turns."""
        counts = [threads for threads in dict.fromkeys(self.config.thread_sweep) if threads != own]
        for index, threads in enumerate(counts):
            self.progress("thread sweep", index, len(counts))
            with ExitStack() as processes:
                workers = [processes.enter_context(Worker(subject, threads)) for subject in self.subjects]
                for worker in workers:
                    self._load(worker, threads)
                for turn in range(self.config.rounds):
                    for worker in workers:
                        self._throughput(worker, texts, None, threads, turn)

    def _vectors(self, folder: Path, threads: int, texts: RealTexts, sets: Sequence[quality.StsData],
                 sentences: Sequence[str], grouped: Sequence[str]) -> None:
        """What is not a time, before anything is timed and in processes of its own: a broken file fails here.

        The few texts of all subjects come first, then the many sentences of the STS sets. This also brings every file
        into the page cache, so that loading is timed from there.
        """
        with ExitStack() as processes:
            workers = {subject.name: processes.enter_context(Worker(subject, threads)) for subject in self.subjects}
            for index, (name, worker) in enumerate(workers.items()):
                self.progress("vectors", index, 2 * len(workers))
                self._load(worker, threads)
                self.samples[name].vectors = _encode(worker, folder / "vectors.npy", texts.sentences)
                self.samples[name].batch_dependence = worker.ask("batch_dependence")["cosine"]
            for index, (name, worker) in enumerate(workers.items()):
                self.progress("vectors", len(workers) + index, 2 * len(workers))
                if sentences:
                    vectors = _encode(worker, folder / "vectors.npy", sentences)
                    cosines = quality.pair_cosines(vectors, sentences, sets)
                    quality.check_defined(name, sets, cosines)
                    self.samples[name].pair_cosines = cosines
                if grouped:
                    self.samples[name].group_vectors = _encode(worker, folder / "vectors.npy", grouped)
        self._references(texts, threads)

    def _references(self, texts: RealTexts, threads: int) -> None:
        """Vectors of the fp32 variant of each measured bundle, from a process of its own where it is no subject.

        A browser's vectors are compared with those of fp32 outside of it.
        """
        web = self.config.target == "web"
        ours_last = [] if web else sorted(self.subjects, key=lambda subject: subject.backend == "onnxruntime")
        fp32 = {subject.folder: subject for subject in ours_last if subject.variant == "fp32"}
        for subject in self.subjects:
            if subject.backend == "factory":
                self.samples[subject.name].reference = subject.reference
                continue
            if subject.variant is None or subject.folder is None or fp32.get(subject.folder) is subject:
                continue
            if subject.folder not in fp32:
                reference = _fp32_of(subject, " outside the browser" if web else "")
                if reference is None:
                    continue
                with tempfile.TemporaryDirectory(prefix="distilface-bench-") as folder, \
                        Worker(reference, threads) as worker:
                    self._load(worker, threads, "cpu" if web else None)
                    vectors = _encode(worker, Path(folder) / "vectors.npy", texts.sentences)
                fp32[subject.folder] = reference
                self.samples[reference.name] = Samples(static_facts(subject), vectors=vectors)
            self.samples[subject.name].reference = fp32[subject.folder].name


def _encode(worker: Worker, file: Path, texts: Sequence[str]) -> Vectors:
    worker.ask("encode", texts=list(texts), out=str(file))
    vectors: Vectors = np.load(file, allow_pickle=False)
    if not np.isfinite(vectors).all():
        raise GateError(f"{worker.subject.name}: vectors hold NaN or infinity; the model is broken, export it again")
    return vectors


def _fp32_of(subject: Subject, mark: str) -> Subject | None:
    from distilface.artifact import Bundle

    if subject.folder is None or subject.backend not in BUNDLE_BACKENDS:
        return None
    if "fp32" not in Bundle.open(subject.folder).variant_names:
        return None
    name = f"{subject.name.rsplit(':', 1)[0]}:fp32{mark}"
    return subject.model_copy(update={"variant": "fp32", "kind": "float32", "name": name, "backend": "onnxruntime"})


def _command_line() -> str:
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def _silent(stage: str, done: int, total: int) -> None:
    """No progress wanted."""
