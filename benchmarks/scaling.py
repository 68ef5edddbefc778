"""How cost grows with the length of a text, batch, threads, layers, vocabulary, and the number of texts.

    python -m benchmarks.scaling

Length, batch and threads: all-MiniLM-L6-v2, fp32 and static INT8. Layers and vocabulary: random weights of its width,
which cost what trained ones do, and its own words, fewer (trimmed to the built-in commands) or more (rows that no text
needs). Number of texts: streamed from a file into one, each count in a process of its own, with that process's peak
memory. Models and steps stay in ``--out``: after an interruption the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.common import RESULTS, write_result
from distilface.artifact import atomic_file
from distilface.benchmarking import BenchConfig, BenchReport, Subject, bench, find_subjects
from distilface.benchmarking.kept import forget
from distilface.cpu import available_cpus
from distilface.encoder import SentenceEncoder
from distilface.exporter import export
from distilface.loading import MINILM
from distilface.quantization import quantize
from distilface.shrinking import shrink
from distilface.smarthome import utterances

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Sizes:
    """What is tried; ``words``: rows of the embedding table, beside the trimmed and the whole one."""

    layers: tuple[int, ...] = (1, 3, 6, 12)
    words: tuple[int, ...] = (60_000, 120_000, 250_000)
    texts: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    lengths: tuple[int, ...] = (8, 16, 32, 64, 128, 256)
    batches: tuple[int, ...] = (256, 512, 1024, 4096)
    width: int = 384
    rounds: int = 3
    timed: int = 400


TOY = Sizes(layers=(1, 2), words=(40_000,), texts=(50, 500), lengths=(8, 16), batches=(64, 256), width=24, rounds=1,
            timed=20)


def main(arguments: Sequence[str] | None = None) -> None:
    found = parser().parse_args(arguments)
    sizes, out = TOY if found.toy else Sizes(), found.out
    out.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        whole = random_model(out / "layers-1", sizes, 1) if found.toy else minilm(out / "minilm")
        layers = {layers: random_model(out / f"layers-{layers}", sizes, layers) for layers in sizes.layers}
        trimmed = trimmed_model(out, layers[sizes.layers[0]])
        words = [trimmed, layers[sizes.layers[0]],
                 *(random_model(out / f"words-{rows}", sizes, sizes.layers[0], rows) for rows in sizes.words)]
    rows = of_one_model(measured(out, "model", sizes, find_subjects(whole), sizes.lengths, sizes.batches, True))
    models = measured(out, "layers", sizes, [find_subjects(path)[0] for path in layers.values()])
    rows += of_models(models, "layers", list(layers))
    models = measured(out, "words", sizes, [find_subjects(path)[0] for path in words])
    rows += of_models(models, "vocabulary", [rows_of(path) for path in words])
    rows += [streamed(out, layers[sizes.layers[0]], count) for count in sizes.texts]
    print(write_result("scaling", {"width": sizes.width, "rows": rows}, found.results))
    for name in ("model", "layers", "words"):
        forget(out / f"measured-{name}")
    for count in sizes.texts:
        (out / f"texts-{count}.json").unlink()


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--out", type=Path, default=Path("runs/scaling"), help="models and unfinished measurements")
    found.add_argument("--toy", action="store_true", help="sizes for a try in a minute, whose numbers mean nothing")
    found.add_argument("--results", type=Path, default=RESULTS, help="folder of scaling.json")
    return found


def minilm(folder: Path) -> Path:
    """The bundle with fp32 and static INT8."""
    if not folder.is_dir():
        export(MINILM, folder)
        quantize(folder, "static", [item.text for item in utterances("train")])
    return folder


def random_model(folder: Path, sizes: Sizes, layers: int, rows: int | None = None) -> Path:
    """A bundle of DistilBERT architecture with random weights and all-MiniLM-L6-v2's words."""
    if not folder.is_dir():
        words = SentenceEncoder.load(MINILM).tokenizer.with_limit(256)
        config = transformers.DistilBertConfig(
            vocab_size=rows or words.backend.get_vocab_size(), dim=sizes.width, hidden_dim=4 * sizes.width,
            n_heads=12, n_layers=layers)
        checkpoint = folder.with_name(f"{folder.name}-checkpoint")
        transformers.DistilBertModel(config).save_pretrained(checkpoint)
        words.save(checkpoint, False)
        export(checkpoint, folder)
    return folder


def trimmed_model(out: Path, whole: Path) -> Path:
    """The same with the words of the built-in commands alone."""
    folder, corpus = out / "words-trimmed", out / "commands.txt"
    if not folder.is_dir():
        corpus.write_text("\n".join(item.text for item in utterances()), encoding="utf-8")
        checkpoint = out / "words-trimmed-checkpoint"
        shrink(whole.with_name(f"{whole.name}-checkpoint"), checkpoint, vocabulary=corpus, coverage=100, overwrite=True)
        export(checkpoint, folder)
    return folder


def rows_of(bundle: Path) -> int:
    """Rows of the embedding table."""
    return int(json.loads((bundle / "config.json").read_text(encoding="utf-8"))["vocab_size"])


def measured(out: Path, name: str, sizes: Sizes, subjects: list[Subject], lengths: tuple[int, ...] = (),
             batches: tuple[int, ...] = (), threads: bool = False) -> BenchReport:
    """One run in which the subjects take turns."""
    config = BenchConfig(
        lengths=lengths, batch_tokens=batches, rounds=sizes.rounds, latency_samples=15, turn_seconds=1.0,
        load_repeats=1, text_count=sizes.timed, thread_sweep=tuple(range(1, available_cpus())) if threads else ())
    return bench(subjects, config, said, keep=out / f"measured-{name}", anew=True)


def of_one_model(report: BenchReport) -> Rows:
    """Rows on length, batch and threads."""
    rows: Rows = []
    for result in report.subjects:
        common = {"model": result.variant}
        rows += [{"axis": "length", **common, "value": row.tokens, "p50_ms": row.p50} for row in result.latency]
        rates = {(row.batch_tokens or 0, row.threads or report.threads): row.sentences_per_second.median
                 for row in result.throughput}
        rows += [{"axis": "batch", **common, "value": batch, "sentences_per_second": rate}
                 for (batch, threads), rate in rates.items() if threads == report.threads]
        rows += [{"axis": "threads", **common, "value": threads, "sentences_per_second": max(
            rate for (_, used), rate in rates.items() if used == threads)}
                 for threads in sorted({threads for _, threads in rates})]
    return rows


def of_models(report: BenchReport, axis: str, values: Sequence[int]) -> Rows:
    """A row a model of a run in which the models differ."""
    return [{"axis": axis, "model": "random weights, fp32", "value": value,
             "p50_ms": result.latency_at(report.short_tokens).p50,
             "sentences_per_second": result.best_throughput.sentences_per_second.median,
             "megabytes": (result.size_bytes or 0) / 1e6, "peak_megabytes": (result.peak_rss_bytes or 0) / 1e6}
            for result, value in zip(report.subjects, values, strict=True)]


def streamed(out: Path, bundle: Path, count: int) -> dict[str, Any]:
    """The row of one count of texts."""
    kept, texts, vectors = out / f"texts-{count}.json", out / "texts.txt", out / "vectors.npy"
    if not kept.is_file():
        said("streaming", count, count)
        with texts.open("w", encoding="utf-8") as file:
            commands = cycle(item.text for item in utterances())
            file.writelines(f"{text} {index}\n" for index, text in enumerate(islice(commands, count)))
        command = [sys.executable, "-m", "benchmarks.streaming", str(bundle), str(texts), str(vectors)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        vectors.unlink()
        with atomic_file(kept) as temporary:
            temporary.write_text(done.stdout.splitlines()[-1], encoding="utf-8")
    found = json.loads(kept.read_text(encoding="utf-8"))
    return {"axis": "texts", "model": "random weights, fp32", "value": count,
            "sentences_per_second": count / found["seconds"], "peak_megabytes": (found["peak_rss"] or 0) / 1e6}


def said(stage: str, done: int, total: int) -> None:
    """Progress, one line a step."""
    print(f"{stage} {done}/{total}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
