"""The verb: check, search, choose, prove, write."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from distilface import __version__
from distilface.artifact import atomic_directory, atomic_file, check_output, is_bundle
from distilface.compression.budget import Budget
from distilface.compression.points import Point, binding, front, nearest
from distilface.compression.search import Search
from distilface.compression.space import COVERAGES, MODES, Base
from distilface.compression.summary import write_summary
from distilface.compression.workshop import Workshop
from distilface.data import iter_texts
from distilface.errors import GateError, UserError
from distilface.evaluation import load_scored
from distilface.loading import hash_of, model_files, resolve_model, sha256_of
from distilface.tokenizer import check_texts, write_json
from distilface.verification import require_passed, verify

PLAN = "plan.json"
BEST = "best"


@dataclass(frozen=True)
class CompressResult:
    """What a search found.

    Attributes:
        out: the search's folder. ``bundle``: the best one, ready to ship, in it.
        best: the point it holds.
        reference: dev Spearman of the float32 model, in points.
        points: everything measured, in order; ``front``: those that no other beats in size and quality.
        skipped: what was passed over, and why.
    """

    out: Path
    bundle: Path
    best: Point
    reference: float
    points: tuple[Point, ...]
    front: tuple[Point, ...]
    skipped: tuple[tuple[str, str], ...]


def compress(model: str | Path, out: str | Path, budget: Budget, data: str | Path, calibration: str | Path,
             vocabulary: str | Path | None = None, modes: Sequence[str] = MODES, minutes: float | None = None,
             exhaustive: bool = False, overwrite: bool = False,
             progress: Callable[[str], None] | None = None) -> CompressResult:
    """Search precisions, vocabularies and depths for the best graph within ``budget``; dev pairs decide.

    The folder ``out`` keeps all that was made and measured: after a kill, or with another budget, the same call goes on
    from there. ``out/best`` is the answer.

    Args:
        model: checkpoint, sentence-transformers folder or Hub id.
        data: scored dev pairs: a SentEval folder (its STS-B dev set) or a file.
        calibration: text of the kind the model will see, a file. Sets ranges, and without ``vocabulary`` decides which
            words stay; students learn on it.
        vocabulary: another file of texts for the vocabulary.
        modes: what to try of ``static``, ``token``, ``dynamic``, ``w8`` and ``w4``.
        minutes: also drop layers and let the model teach what is left, so many minutes for all students together.
        exhaustive: measure also what can't be the answer, for a fuller Pareto front.
        progress: called with the name of each step.

    Raises:
        UserError: arguments that can't be used; a folder with another search.
        GateError: nothing keeps the budget; says which limit is in the way and the nearest point. Table and plot of
            what was measured are written all the same.
    """
    say = progress or (lambda step: None)
    _check(model, modes, minutes)
    checkpoint = resolve_model(model)
    dev, texts = load_scored(data), _texts(calibration)
    if vocabulary is not None:
        next(iter_texts(vocabulary), None)  # a file that can't be read is said before anything is made
    folder = _enter(Path(out), overwrite, [model, data, calibration, vocabulary], {
        "model": hash_of(checkpoint, model_files(checkpoint)), "calibration": sha256_of(Path(calibration)),
        "vocabulary": None if vocabulary is None else sha256_of(Path(vocabulary)),
        "dev": {"name": dev.name, "pairs": len(dev)}, "minutes": minutes})
    words = str(vocabulary or calibration)
    workshop = Workshop(str(model), str(calibration), words, texts, str(data), dev, folder)
    say("exporting the float32 model")
    workshop.bundle(Base(), say)
    search = Search(workshop, budget, _rows(workshop, words, say), workshop.parts(), tuple(modes), exhaustive, say)
    search.run(minutes)
    say("writing table and plot")
    best, reached = search.best, front(search.points)
    write_summary(folder, budget, workshop.reference, search.points, reached, best, search.skipped)
    if best is None:
        raise GateError(_nothing(search.points, budget, folder))
    say("verifying the best")
    made = workshop.made(best)
    require_passed(made, verify(made))
    with atomic_directory(folder / BEST, overwrite=True) as target:
        shutil.copytree(made, target, dirs_exist_ok=True)
    return CompressResult(folder, folder / BEST, best, workshop.reference, tuple(search.points), tuple(reached),
                          tuple(search.skipped))


def _check(model: str | Path, modes: Sequence[str], minutes: float | None) -> None:
    if is_bundle(model):
        raise UserError(f"{str(model)!r} is a bundle, whose graph can't be cut any more; give the checkpoint it was "
                        "exported from")
    for mode in modes:
        if mode not in MODES:
            raise UserError(f"unknown mode {mode!r}; allowed: {', '.join(MODES)}")
    if not modes:
        raise UserError(f"no mode to try; allowed: {', '.join(MODES)}")
    if minutes is not None and not minutes > 0:
        raise UserError(f"--minutes is {minutes}; allowed: above 0, the training time of all students together")


def _enter(out: Path, overwrite: bool, sources: Sequence[Any], plan: dict[str, Any]) -> Path:
    """A new search's folder, or that of the same search; the budget may differ."""
    file = out / PLAN
    plan = {"created_by": f"distilface {__version__}", **plan}
    if file.is_file() and not overwrite:
        stored = json.loads(file.read_text(encoding="utf-8"))
        for key, value in plan.items():
            if stored.get(key) != value:
                raise UserError(f"can't go on: {str(out)!r} holds a search with another {key} ({stored.get(key)!r}, "
                                f"now {value!r}); use another --out, or --overwrite to start anew")
        return out
    check_output(out, overwrite, sources)
    with atomic_directory(out, overwrite) as folder:
        (folder / "points").mkdir()
        (folder / "work").mkdir()
        with atomic_file(folder / PLAN) as temporary:
            write_json(temporary, plan)
    return out


def _texts(calibration: str | Path) -> list[str]:
    from distilface.quantization import MAX_READ_TEXTS

    return check_texts(list(islice(iter_texts(calibration), MAX_READ_TEXTS)))


def _rows(workshop: Workshop, corpus: str, say: Callable[[str], None]) -> dict[float, int]:
    """Words that stay for each coverage, from many to few."""
    from distilface.encoder import SentenceEncoder
    from distilface.shrinking.vocabulary import sizes_by_coverage

    say("counting the corpus's tokens")
    return sizes_by_coverage(SentenceEncoder.load(workshop.model), corpus, COVERAGES)


def _nothing(points: Sequence[Point], budget: Budget, folder: Path) -> str:
    near = nearest(points, budget)
    if near is None:
        return f"nothing could be made: see {folder / 'search.md'}"
    limits = {"size": lambda: f"{near.size / 1e6:.1f} MB", "drop": lambda: f"{near.drop:.2f} points lost",
              "latency": lambda: f"{near.latency:.2f} ms"}
    over = ", ".join(limits[name]() for name in near.breaks(budget))
    return (f"nothing keeps the budget; in the way: {binding(points, budget)}. Nearest: {near.words} "
            f"({near.size / 1e6:.1f} MB, {near.drop:.2f} points lost, {near.latency:.2f} ms), over by {over}. "
            f"Loosen that limit, or try --minutes; all points: {folder / 'search.md'}")
