"""`bench`: the stages of a run in order, and the report of what they found."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from distilface import __version__
from distilface.benchmarking import quality
from distilface.benchmarking.assemble import Plan, Samples, assemble
from distilface.benchmarking.config import BenchConfig
from distilface.benchmarking.kept import Kept, forget
from distilface.benchmarking.results import BenchReport
from distilface.benchmarking.roofline import measure_peaks, with_rooflines
from distilface.benchmarking.run import Progress, Run, plan_of
from distilface.benchmarking.subjects import Subject, check_target, static_facts, with_unique_names
from distilface.benchmarking.texts import real_texts, token_counter
from distilface.benchmarking.timing import measure_times
from distilface.benchmarking.vectors import collect_vectors
from distilface.errors import GateError, UserError
from distilface.machine import Disturbance, machine_facts


def bench(subjects: Sequence[Subject], config: BenchConfig | None = None, progress: Progress | None = None,
          command: str | None = None, keep: Path | None = None, anew: bool = False) -> BenchReport:
    """Measure ``subjects`` side by side.

    Each runs in a process of its own; the processes stay alive and take turns, so that a disturbance hits all alike,
    and only one works at a time. The baseline of all gains is the first float32 subject, else the first.

    Args:
        subjects: from `find_subjects`, or built by hand for a factory.
        progress: called with (stage, done, total).
        command: recorded in the report; default, how this process was started.
        keep: a folder for what was measured: after an interruption the same call goes on from there. It stays until
            `kept.forget`, so that a report is written first.
        anew: drop what a run with other settings, models or texts kept there, instead of refusing it.

    Raises:
        UserError: nothing to measure, a target that is not here, too few texts, unreadable data, another run in
            ``keep``.
        GateError: Spearman undefined, or vectors that are not finite; before anything is timed.
        WorkerError: a measuring process died; carries its last line.
    """
    config = config or BenchConfig()
    subjects = with_unique_names(subjects)
    check_target(subjects, config.target, config.npm_folder)
    with ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="distilface-bench-")))
        return _measure(subjects, config, progress or _silent, command or _command_line(), folder, anew)


def _measure(subjects: Sequence[Subject], config: BenchConfig, progress: Progress, command: str, folder: Path,
             anew: bool) -> BenchReport:
    sets = quality.load_sts_data(config.sts) if config.sts is not None else []
    sentences = quality.distinct_sentences(sets)
    groups = quality.load_groups(config.groups, config.last_groups) if config.groups is not None else []
    grouped = list(dict.fromkeys(text for group in groups for text in group))
    texts = real_texts(config, sentences)
    machine = machine_facts(gpu=config.target == "cuda")
    threads = config.threads or (1 if config.target == "web" else machine.cores_usable)
    baseline = next((s for s in subjects if s.kind == "float32"), subjects[0])
    progress("reading files", 0, 1)
    with ThreadPoolExecutor(machine.cores_usable) as pool:
        facts = list(pool.map(static_facts, subjects))  # mostly zlib, which releases the interpreter lock
    kept = Kept(folder, plan_of(subjects, config, threads, texts, sets, groups, machine), anew)
    samples = {one.name: Samples(found) for one, found in zip(subjects, facts, strict=True)}
    run = Run(subjects, config, threads, texts, kept, samples, progress)
    count = token_counter(baseline.folder)
    peaks: dict[str, float] = {}
    try:
        with kept.sitting(machine):
            collect_vectors(run, sets, sentences, grouped)
            if config.roofline:
                progress("measuring peaks", 0, 1)
                peaks = kept.step("peaks", lambda: measure_peaks(threads))
            grid = measure_times(run, count)
    except (UserError, GateError):
        if not kept.timed:  # a model or text that can't be measured: there is nothing to go on with
            forget(folder)
        raise
    plan = Plan(
        subjects=tuple(subjects), baseline=baseline.name, short=grid.short, long=grid.long, lengths=grid.lengths,
        text_count=len(texts.sentences), sts_sets=sets, groups=groups, group_texts=grouped, config=config,
    )
    results, notes = assemble(plan, samples, progress)
    lengths = count(texts.sentences)
    if peaks:
        results = with_rooflines(subjects, results, lengths, peaks, config.max_seq_length)
    sittings = kept.sittings()
    unknown = Disturbance(load_before=None, load_after=None, other_busy=None, steal=None)
    return BenchReport(
        distilface_version=__version__, created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=command, target=config.target, threads=threads, rounds=config.rounds,
        seconds=round(sum(one.seconds or 0 for one in sittings), 1), text_source=texts.source,
        text_count=len(texts.sentences), mean_tokens=float(np.mean(lengths)),
        sts_source=str(config.sts) if config.sts is not None else None,
        groups_source=str(config.groups) if config.groups is not None else None, short_tokens=grid.short,
        long_tokens=grid.long, baseline=baseline.name, machine=sittings[-1].machine,
        disturbance=sittings[-1].disturbance or unknown, subjects=results, notes=(*notes, *kept.notes()), peaks=peaks,
        sittings=sittings,
    )


def _command_line() -> str:
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])


def _silent(stage: str, done: int, total: int) -> None:
    """No progress wanted."""
