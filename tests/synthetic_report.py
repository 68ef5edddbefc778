"""A benchmark report with made-up numbers, for tests of everything that reads one."""

from __future__ import annotations

from typing import Any

from distilface.benchmarking import summary
from distilface.benchmarking.results import BenchReport, Cosine, Spread, StsResult, StsScore, SubjectResult
from distilface.machine import Disturbance, MachineFacts

LENGTHS = (8, 14, 16, 32, 64, 128, 256)
SETS = {"STS12": 72.37, "STS13": 80.60, "STS14": 75.59, "STS15": 85.39, "STS16": 78.99, "STSBenchmark": 82.03,
        "SICKRelatedness": 77.15}


def subject(name: str = "minilm:fp32", kind: str = "float32", speed: float = 1.0, size: int = 90_400_000,
            drop: float | None = None, cosine: float | None = None, dependence: float = 1.0, sts: bool = True,
            baseline: str = "minilm:fp32", **changes: Any) -> SubjectResult:
    """One subject: ``speed`` times as fast as 2.2 ms at 14 tokens; ``drop`` points lost on every set."""
    is_baseline = name == baseline
    latency, throughput = [], summary.throughput(None, 1000, [1000 / (1109 * speed * f) for f in (0.99, 1.0, 1.02)])
    plain = summary.throughput(None, 1000, [1000 / (1109 * f) for f in (0.99, 1.0, 1.02)])
    for tokens in LENGTHS:
        base = 0.6 + 0.115 * tokens
        rounds = [[base / 1000 * f * (1 + 0.01 * i) for i in range(10)] for f in (1.0, 1.05, 0.98)]
        ours = summary.latency(tokens, float(tokens), [[call / speed for call in one] for one in rounds])
        theirs = summary.latency(tokens, float(tokens), rounds)
        gained = summary.gain(ours.round_p50, theirs.round_p50, smaller_is_better=True)
        latency.append(ours.model_copy(update={"gain": gained}))
    lost = 0.0 if drop is None else drop
    scores = tuple(StsScore(
        name=label, pairs=1000, spearman=value - lost, pearson=value - lost + 1, change=None if is_baseline else -lost,
        change_low=None if is_baseline else -lost - 0.3, change_high=None if is_baseline else -lost + 0.25,
    ) for label, value in SETS.items())
    result = SubjectResult(
        name=name, model=name.split(":")[0], variant=name.split(":")[-1], backend="onnxruntime", kind=kind,
        file="onnx/model.onnx", is_baseline=is_baseline, size_bytes=size, zip_bytes=int(size * 0.92),
        parameters=22_713_216, integer_matmuls=0 if kind == "float32" else 36, weight_only_matmuls=0,
        float_matmuls=36 if kind == "float32" else 0, dim=384, max_seq_length=256,
        import_ms=Spread(median=92, low=90, high=99), load_ms=Spread(median=180 / speed, low=170 / speed,
                                                                     high=200 / speed),
        first_vector_ms=Spread(median=9.5 / speed, low=9 / speed, high=11 / speed),
        peak_rss_bytes=int(120e6 + 1.2 * size), latency=tuple(latency),
        throughput=(throughput.model_copy(update={
            "gain": summary.gain(throughput.rounds, plain.rounds, smaller_is_better=False)}),),
        batch_dependence=dependence,
        cosine=None if cosine is None else Cosine(reference=baseline, texts=1000, mean=cosine, p1=cosine - 0.01,
                                                  minimum=cosine - 0.03),
        sts=StsResult(sets=scores, average=78.87 - lost, average_name="avg7",
                      change=None if is_baseline else -lost) if sts else None,
        size_gain=90_400_000 / size, zip_gain=90_400_000 / size, load_gain=speed,
        rss_gain=(120e6 + 1.2 * 90.4e6) / (120e6 + 1.2 * size),
    )
    return result.model_copy(update=changes)


def report(*subjects: SubjectResult, **changes: Any) -> BenchReport:
    """A report of ``subjects``, by default fp32, static INT8 and dynamic INT8."""
    chosen = subjects or (
        subject(),
        subject("minilm:int8-static", "int8-static", 2.0, 22_900_000, 0.06, 0.9962),
        subject("minilm:int8-dynamic", "int8-dynamic", 2.4, 23_000_000, 0.11, 0.9948, dependence=0.9851,
                notes=("a vector depends on its batch-mates: cosine 0.9851 at worst between a text alone and beside "
                       "long ones",)),
    )
    machine = MachineFacts(
        cpu="Intel(R) Xeon(R) Processor", architecture="x86_64",
        instruction_sets=("avx2", "avx512f", "avx512_vnni", "avx512_bf16"), cores_usable=2, cores_present=2,
        governor=None, memory_bytes=25_276_510_208, os="Linux-6.1", python="3.11.7",
        libraries={"distilface": "0.1.0", "onnxruntime": "1.32.0", "numpy": "2.4.6"}, load_average=0.31)
    values: dict[str, Any] = {
        "distilface_version": "0.1.0", "created": "2026-03-04T05:06:07+00:00",
        "command": "distilface bench minilm --sts senteval --out report", "target": "cpu", "threads": 2, "rounds": 3,
        "seconds": 93.4, "text_source": "STS sentences", "text_count": 1000, "mean_tokens": 14.3,
        "sts_source": "senteval", "short_tokens": 14, "long_tokens": 128, "baseline": chosen[0].name,
        "machine": machine, "disturbance": Disturbance(load_before=0.31, load_after=1.6, other_busy=0.02, steal=0.001),
        "subjects": chosen,
    }
    return BenchReport(**{**values, **changes})
