"""What is not a time: the vectors behind every number of quality, taken before anything is timed."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from distilface.benchmarking import quality
from distilface.benchmarking.assemble import Samples
from distilface.benchmarking.crew import Crew
from distilface.benchmarking.run import Run
from distilface.benchmarking.subjects import BUNDLE_BACKENDS, Subject, static_facts
from distilface.errors import GateError


def collect_vectors(run: Run, sets: Sequence[quality.StsData], sentences: Sequence[str],
                    grouped: Sequence[str]) -> None:
    """Encode with every subject, in processes of their own: a broken file fails here, in seconds.

    The few texts of all subjects come first, then the many sentences of the STS sets. This also brings every file into
    the page cache, so that loading is timed from there.

    Raises:
        GateError: vectors that are not finite, or an undefined Spearman.
    """
    kept, texts = run.kept, run.texts.sentences
    with Crew(run.subjects, run.config, run.threads) as crew:
        for index, subject in enumerate(run.subjects):
            run.progress("vectors", index, 2 * len(run.subjects))
            samples = run.samples[subject.name]
            samples.vectors = kept.vectors(f"{index}-texts", partial(crew.encode, subject, texts))
            samples.batch_dependence = kept.step(f"batch-{index}", partial(_batch_dependence, crew, subject))
            if run.config.target == "cuda":
                samples.notes += kept.step(f"placement-{index}", partial(_placement, crew, subject))
        for index, subject in enumerate(run.subjects):
            run.progress("vectors", len(run.subjects) + index, 2 * len(run.subjects))
            samples = run.samples[subject.name]
            if sentences:
                cosines = kept.step(f"sts-{index}", partial(_pair_cosines, crew, subject, sets, sentences))
                samples.pair_cosines = [np.array(one) for one in cosines]
            if grouped:
                samples.group_vectors = kept.vectors(f"{index}-groups", partial(crew.encode, subject, grouped))
    _references(run)


def _batch_dependence(crew: Crew, subject: Subject) -> float:
    return float(crew.ask(subject, "batch_dependence")["cosine"])


def _placement(crew: Crew, subject: Subject) -> list[str]:
    return placement_notes(subject.name, crew.ask(subject, "placement")["placement"])


def placement_notes(name: str, found: dict[str, Any] | None) -> list[str]:
    """What to say of a graph on a GPU, part of which may run elsewhere.

    Raises:
        GateError: products run on the CPU: a number of it would be called the GPU's and be the processor's.
    """
    if found is None:
        return []
    if found["cpu_products"]:
        raise GateError(f"{name}: {found['cpu_products']} products of this graph have no GPU kernel and run on the "
                        "CPU; measure another variant there (fp32, fp16), or use --target cpu")
    nodes = ", ".join(f"{count} by {provider}" for provider, count in sorted(found["nodes"].items()))
    return [f"nodes of the graph run: {nodes}"]


def _pair_cosines(crew: Crew, subject: Subject, sets: Sequence[quality.StsData],
                  sentences: Sequence[str]) -> list[list[float]]:
    with tempfile.TemporaryDirectory(prefix="distilface-bench-") as folder:
        file = Path(folder) / "sts.npy"
        crew.encode(subject, sentences, file)
        cosines = quality.pair_cosines(np.load(file, allow_pickle=False), sentences, sets)
    quality.check_defined(subject.name, sets, cosines)
    return [one.tolist() for one in cosines]


def _references(run: Run) -> None:
    """Vectors of the fp32 variant of each measured bundle, from a process of its own where it is no subject.

    A browser's vectors are compared with those of fp32 outside of it.
    """
    web = run.config.target == "web"
    ours_last = [] if web else sorted(run.subjects, key=lambda subject: subject.backend == "onnxruntime")
    fp32 = {subject.folder: subject for subject in ours_last if subject.variant == "fp32"}
    for index, subject in enumerate(run.subjects):
        if subject.backend == "factory":
            run.samples[subject.name].reference = subject.reference
            continue
        if subject.variant is None or subject.folder is None or fp32.get(subject.folder) is subject:
            continue
        if subject.folder not in fp32:
            reference = _fp32_of(subject, " outside the browser" if web else "")
            if reference is None:
                continue
            with Crew([reference], run.config, run.threads, "cpu" if web else None) as crew:
                vectors = run.kept.vectors(f"{index}-reference",
                                           partial(crew.encode, reference, run.texts.sentences))
            fp32[subject.folder] = reference
            run.samples[reference.name] = Samples(static_facts(subject), vectors=vectors)
        run.samples[subject.name].reference = fp32[subject.folder].name


def _fp32_of(subject: Subject, mark: str) -> Subject | None:
    from distilface.artifact import Bundle

    if subject.folder is None or subject.backend not in BUNDLE_BACKENDS:
        return None
    if "fp32" not in Bundle.open(subject.folder).variant_names:
        return None
    name = f"{subject.name.rsplit(':', 1)[0]}:fp32{mark}"
    return subject.model_copy(update={"variant": "fp32", "kind": "float32", "name": name, "backend": "onnxruntime"})
