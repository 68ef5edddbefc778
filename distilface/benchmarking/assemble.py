"""From what the workers answered to the subjects' results, with gains over the baseline and the sentences to say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distilface.benchmarking import quality, summary
from distilface.benchmarking.config import BenchConfig
from distilface.benchmarking.results import Latency, Retrieval, SubjectResult, Throughput
from distilface.benchmarking.subjects import StaticFacts, Subject
from distilface.protocol import Vectors

INVARIANT = 0.999999
UNSTEADY = 1.5


@dataclass
class Samples:
    """Raw answers of one subject. Times in seconds; ``latency[tokens][round]`` is a list of calls.

    ``pair_cosines`` has an array for each STS set.
    ``throughput`` and ``joules`` have a value a round by batch policy and threads (None: the run's own).
    """

    facts: StaticFacts
    loads: list[dict[str, Any]] = field(default_factory=list)
    latency: dict[int, list[list[float]]] = field(default_factory=dict)
    throughput: dict[tuple[int | None, int | None], list[float]] = field(default_factory=dict)
    joules: dict[tuple[int | None, int | None], list[float]] = field(default_factory=dict)
    own_tokens: dict[str, float] | None = None
    peak_rss: int | None = None
    batch_dependence: float | None = None
    vectors: Vectors | None = None
    pair_cosines: list[NDArray[np.float64]] | None = None
    group_vectors: Vectors | None = None
    reference: str | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Plan:
    """What was measured, for all subjects alike."""

    subjects: tuple[Subject, ...]
    baseline: str
    short: int
    long: int
    lengths: tuple[int, ...]
    text_count: int
    sts_sets: Sequence[quality.StsData]
    groups: Sequence[Sequence[str]]
    group_texts: Sequence[str]
    config: BenchConfig


def assemble(plan: Plan, samples: dict[str, Samples],
             progress: Callable[[str, int, int], None]) -> tuple[tuple[SubjectResult, ...], tuple[str, ...]]:
    """Results in the order of the subjects, and notes on the whole run."""
    retrieval = _retrieval(plan, samples)
    plain: dict[str, SubjectResult] = {}
    for index, subject in enumerate(plan.subjects):
        progress("scoring", index, len(plan.subjects))
        plain[subject.name] = _result(plan, subject, samples).model_copy(
            update={"retrieval": retrieval.get(subject.name)})
    baseline = plain[plan.baseline]
    results = [_with_gains(result, baseline) for result in plain.values()]
    by_name = {result.name: result for result in results}
    final = [result.model_copy(update={"notes": (*result.notes, *_speed_notes(plan, result, by_name, samples),
                                                 *_unsteady(plan, result))}) for result in results]
    return tuple(final), _run_notes(plan, samples)


def _retrieval(plan: Plan, samples: dict[str, Samples]) -> dict[str, Retrieval]:
    """Of every subject, the baseline first: the others' changes are against it."""
    found: dict[str, Retrieval] = {}
    for name in dict.fromkeys([plan.baseline, *(subject.name for subject in plan.subjects)]):
        vectors = samples[name].group_vectors
        if vectors is not None:
            found[name] = quality.retrieval_result(vectors, plan.group_texts, plan.groups, found.get(plan.baseline))
    return found


def _result(plan: Plan, subject: Subject, samples: dict[str, Samples]) -> SubjectResult:
    mine = samples[subject.name]
    facts, load = mine.facts, mine.loads[-1]
    cosine = None
    if mine.reference is not None and mine.vectors is not None:
        theirs = samples[mine.reference].vectors
        cosine = None if theirs is None else quality.cosine_summary(mine.reference, mine.vectors, theirs)
    sts = None
    if mine.pair_cosines is not None:
        baseline = None if subject.name == plan.baseline else samples[plan.baseline].pair_cosines
        sts = quality.sts_result(subject.name, plan.sts_sets, mine.pair_cosines, baseline,
                                 plan.config.bootstrap, plan.config.seed)
    notes = [*facts.notes, *mine.notes]
    dependent = mine.batch_dependence is not None and mine.batch_dependence < INVARIANT
    if dependent and not facts.declared_dependent:
        notes.append(f"a vector depends on its batch-mates: cosine {mine.batch_dependence:.4f} at worst between a text "
                     "alone and beside long ones")
    if mine.peak_rss is None:
        notes.append("peak memory is not measured "
                     f"{'in a browser' if plan.config.target == 'web' else 'on this platform'}")
    return SubjectResult(
        name=subject.name, model=subject.model, variant=subject.variant, backend=subject.backend, kind=subject.kind,
        file=facts.file, is_baseline=subject.name == plan.baseline, size_bytes=facts.size_bytes,
        zip_bytes=facts.zip_bytes, parameters=facts.parameters, integer_matmuls=facts.integer_matmuls,
        weight_only_matmuls=facts.weight_only_matmuls, float_matmuls=facts.float_matmuls, dim=load["dim"],
        max_seq_length=load["max_seq_length"],
        import_ms=summary.spread([1000 * one["import_s"] for one in mine.loads]),
        load_ms=summary.spread([1000 * one["load_s"] for one in mine.loads]),
        first_vector_ms=summary.spread([1000 * one["first_vector_s"] for one in mine.loads]),
        peak_rss_bytes=mine.peak_rss,
        latency=tuple(summary.latency(tokens, (mine.own_tokens or {}).get(str(tokens)), mine.latency[tokens])
                      for tokens in plan.lengths),
        throughput=tuple(summary.throughput(policy, plan.text_count, seconds, threads,
                                            mine.joules.get((policy, threads), ()))
                         for (policy, threads), seconds in mine.throughput.items()),
        batch_dependence=mine.batch_dependence, cosine=cosine, sts=sts, notes=tuple(notes),
    )


def _with_gains(result: SubjectResult, baseline: SubjectResult) -> SubjectResult:
    def timed(row: Latency) -> Latency:
        other = baseline.latency_at(row.tokens).round_p50
        return row.model_copy(update={"gain": summary.gain(row.round_p50, other, smaller_is_better=True)})

    def rated(row: Throughput) -> Throughput:
        other = next(theirs for theirs in baseline.throughput
                     if (theirs.batch_tokens, theirs.threads) == (row.batch_tokens, row.threads))
        return row.model_copy(update={"gain": summary.gain(row.rounds, other.rounds, smaller_is_better=False)})

    return result.model_copy(update={
        "latency": tuple(map(timed, result.latency)), "throughput": tuple(map(rated, result.throughput)),
        "size_gain": summary.ratio(baseline.size_bytes, result.size_bytes),
        "zip_gain": summary.ratio(baseline.zip_bytes, result.zip_bytes),
        "load_gain": summary.ratio(baseline.load_ms.median, result.load_ms.median),
        "rss_gain": summary.ratio(baseline.peak_rss_bytes, result.peak_rss_bytes),
    })


_SMALLER = {"weight-only": "weight-only", "float16": "half precision"}


def _speed_notes(plan: Plan, result: SubjectResult, results: dict[str, SubjectResult],
                 samples: dict[str, Samples]) -> list[str]:
    """Say so when a smaller graph is not faster than the fp32 graph it was made from."""
    what = "INT8" if result.kind.startswith("int8") else _SMALLER.get(result.kind)
    if what is None:
        return []
    reference = results.get(samples[result.name].reference or "", results[plan.baseline])
    if reference.kind != "float32":
        return []
    gains = {
        f"{tokens} tokens at batch 1": summary.gain(result.latency_at(tokens).round_p50,
                                                    reference.latency_at(tokens).round_p50, True).median
        for tokens in dict.fromkeys((plan.short, plan.long))
    }
    gains["throughput"] = summary.gain(result.best_throughput.rounds, reference.best_throughput.rounds, False).median
    slow = [f"{name} {value:.2f}x" for name, value in gains.items() if value <= 1]
    if not slow:
        return []
    whole = len(slow) == len(gains)
    return [f"{what} is not faster than fp32 on this {plan.config.target.upper()}"
            f"{'' if whole else ' in every respect'}: {', '.join(slow)}"]


def _unsteady(plan: Plan, result: SubjectResult) -> list[str]:
    """Say so when the rounds disagree about a gain."""
    gains = {f"at batch 1, {plan.short} tokens": result.latency_at(plan.short).gain,
             "in throughput": result.best_throughput.gain}
    return [f"unsteady: the gain {name} ranged from {gain.low:.3g}x to {gain.high:.3g}x over the rounds"
            for name, gain in gains.items() if gain is not None and gain.high > UNSTEADY * gain.low]


def _run_notes(plan: Plan, samples: dict[str, Samples]) -> tuple[str, ...]:
    notes = []
    if next(subject for subject in plan.subjects if subject.name == plan.baseline).kind != "float32":
        notes.append(f"no float32 subject was measured: gains are against {plan.baseline}")
    limits = {item.loads[-1]["max_seq_length"] for item in samples.values() if item.loads} - {None}
    if len(limits) > 1:
        notes.append(f"length limits differ ({', '.join(map(str, sorted(limits)))}): latency is measured up to "
                     f"{min(limits)} tokens")
    return tuple(notes)
