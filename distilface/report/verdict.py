"""Which file to ship, and why: the line an engineer reads first."""

from __future__ import annotations

from pydantic import Field

from distilface.benchmarking.results import BenchReport, SubjectResult
from distilface.benchmarking.subjects import BUNDLE_BACKENDS
from distilface.config import StrictModel
from distilface.report.text import cosine, megabytes, signed, times

MAX_DROP = 0.5
MIN_COSINE = 0.99
NEAR = 0.9


class Verdict(StrictModel):
    """The subject to ship (None when nothing qualifies), the reason, what to mind, and why not the others."""

    name: str | None
    reason: str
    cautions: tuple[str, ...] = ()
    others: dict[str, str] = Field(default_factory=dict)


def ship(report: BenchReport, max_drop: float = MAX_DROP, min_cosine: float = MIN_COSINE) -> Verdict:
    """Among the subjects whose quality holds, the one with the largest product of size gain and batch-1 speed gain.

    A lead of less than a tenth does not decide: there a batch-invariant subject, then the better quality, wins.
    Quality holds within ``max_drop`` points of Spearman of the baseline; where no STS was measured, at a mean cosine to
    fp32 of at least ``min_cosine``. Only bundles can be shipped; without any, everything is a candidate.
    """
    deployable = [r for r in report.subjects if r.backend in BUNDLE_BACKENDS] or list(report.subjects)
    judged = {result.name: _quality(report, result, max_drop, min_cosine) for result in deployable}
    passing = [result for result in deployable if judged[result.name][0]]
    others = {result.name: judged[result.name][1] for result in deployable if not judged[result.name][0]}
    others |= {r.name: "a checkpoint, not a bundle: export it first" for r in report.subjects if r not in deployable}
    if not passing:
        return Verdict(name=None, reason="no subject keeps its quality, or it was not measured (give --sts, or bench "
                                         "the fp32 variant too)", others=others)
    most = max(_merit(report, result) for result in passing)
    near = [result for result in passing if _merit(report, result) >= NEAR * most]
    best = max(near, key=lambda result: (_invariant(result), _fidelity(result), _merit(report, result)))
    for result in passing:
        if result.is_baseline and result is not best:
            others[result.name] = "the baseline: nothing is gained over it"
        elif result is not best:
            others[result.name] = (f"{judged[result.name][1]}; but {times(result.size_gain)} size and "
                                   f"{times(_speed(report, result))} speed against {times(best.size_gain)} and "
                                   f"{times(_speed(report, best))}")
    return Verdict(name=best.name, reason=_reason(report, best, judged[best.name][1]), cautions=_cautions(report, best),
                   others=others)


def _quality(report: BenchReport, result: SubjectResult, max_drop: float, min_cosine: float) -> tuple[bool, str]:
    base = report.baseline_result
    if result.is_baseline:
        return base.kind == "float32" or base.cosine is None or base.cosine.mean >= min_cosine, "the baseline itself"
    if result.sts is not None and result.sts.change is not None:
        return (result.sts.change >= -max_drop,
                f"Spearman {signed(result.sts.change)} points ({result.sts.average_name}; limit −{max_drop:g})")
    if result.cosine is None:
        return False, "quality not measured: give --sts FOLDER"
    measured = {item.name for item in report.subjects}
    if result.cosine.reference != base.name and result.cosine.reference in measured:
        return False, f"compared with {result.cosine.reference} only; give --sts FOLDER to judge across models"
    return (result.cosine.mean >= min_cosine,
            f"mean cosine {cosine(result.cosine.mean)} to fp32 (limit {min_cosine:g})")


def _speed(report: BenchReport, result: SubjectResult) -> float:
    gain = result.latency_at(report.short_tokens).gain
    return 1.0 if gain is None else gain.median


def _merit(report: BenchReport, result: SubjectResult) -> float:
    return (result.size_gain or 1.0) * _speed(report, result)


def _invariant(result: SubjectResult) -> bool:
    return result.batch_dependence is None or result.batch_dependence >= 0.999999


def _fidelity(result: SubjectResult) -> tuple[float, float]:
    change = 0.0 if result.sts is None or result.sts.change is None else result.sts.change
    return change, 1.0 if result.cosine is None else result.cosine.mean


def _reason(report: BenchReport, best: SubjectResult, quality: str) -> str:
    if best.is_baseline:
        return "no compressed subject keeps its quality and gains size or speed over the baseline"
    parts = []
    if best.size_gain is not None:
        parts.append(f"{times(best.size_gain)} smaller ({megabytes(best.size_bytes)})")
    parts.append(f"{times(_speed(report, best))} as fast at batch 1 ({report.short_tokens} tokens)")
    gain = best.best_throughput.gain
    if gain is not None:
        parts.append(f"{times(gain.median)} the sentences a second")
    return f"{', '.join(parts)}; {quality}"


def _cautions(report: BenchReport, best: SubjectResult) -> tuple[str, ...]:
    cautions = list(best.notes)
    if report.disturbance.warnings:
        cautions.append("another load disturbed this run; repeat it before deciding")
    return tuple(cautions)
