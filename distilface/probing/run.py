"""`distilface probe`: a grid of cells in a folder that can be killed and gone on with, then table, plots, ranking."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import distilface
from distilface.artifact import atomic_directory, atomic_file, check_output
from distilface.config import dump_config
from distilface.errors import GateError, UserError
from distilface.loading import resolve_model
from distilface.probing.config import ProbeConfig
from distilface.probing.grid import Cell, CellStore, plan
from distilface.probing.plots import draw
from distilface.probing.ranking import RankedLayer, rank
from distilface.probing.reinit import layers_in
from distilface.probing.results import Summary, summarise, tidy, write_tables
from distilface.probing.tasks import ProbeTask, build_task, digest_model
from distilface.tokenizer import write_json
from distilface.training.precision import resolve_precision
from distilface.training.resume import check_same_run
from distilface.training.run import load_encoder

logger = logging.getLogger(__name__)

GRID_FILE = "probe.json"
RANKING_FILE = "ranking.json"
Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class ProbeResult:
    """A finished grid.

    Attributes:
        out: its folder.
        cells: settings times sizes times seeds.
        run: runs of this call; the others were done before, or come to the same.
        summaries: every setting over its seeds.
        ranking: layers from most to least worth keeping, see `distilface.probing.ranking`.
    """

    out: Path
    cells: int
    run: int
    summaries: tuple[Summary, ...]
    ranking: tuple[RankedLayer, ...]


def probe(config: ProbeConfig, out: str | Path, overwrite: bool = False,
          progress: Report | None = None) -> ProbeResult:
    """Run a grid into ``out``, or what is left of it.

    ``out`` holds probe.json and probe_config.yaml (what the grid is), cells/ (one file for each finished cell), and in
    the end results.csv (and results.parquet where pyarrow is installed), scores and ranking as PNG and SVG, and
    ranking.json, which `distilface shrink --ranking` reads.

    Args:
        overwrite: drop what an earlier grid left in ``out``.
        progress: called with a stage, the number of finished cells and that of all.

    Raises:
        UserError: for a model, data or setting that can't be used, or a folder that holds another grid; names the key.
        GateError: when a cell's training breaks; finished cells stay.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("probe runs in one process; start it without torchrun, and another probe beside it if there is "
                        "room")
    say = progress or (lambda stage, done, total: None)
    out = Path(out)
    say("reading", 0, 1)
    encoder = load_encoder(config.model)
    layers = len(layers_in(encoder.backbone))
    cells = plan(config, layers)
    pooling = encoder.pooling
    known = _known_grid(out, overwrite)
    if config.train.precision == "auto":  # a second measurement could choose otherwise
        precision = known["config"]["train"]["precision"] if known else resolve_precision(config.train)
        config = config.model_copy(update={"train": config.train.model_copy(update={"precision": precision})})
    else:
        resolve_precision(config.train)
    if known is None:
        check_output(out, overwrite, _sources(config))
    task = build_task(config, encoder)
    del encoder
    contents = {"model": digest_model(resolve_model(config.model.name, config.model.revision)), **task.contents}
    grid = {"config": config.model_dump(mode="json"), "contents": contents}
    if known is not None:
        check_same_run({key: known[key] for key in grid}, grid)
    else:
        _start(out, overwrite, grid)
    (out / "probe_config.yaml").write_text(dump_config(config), encoding="utf-8", newline="\n")
    stored, ran = _run_cells(config, cells, CellStore(out / "cells"), task, out / "work", say)
    rows = tidy(config, zip(cells, stored, strict=True))
    summaries, ranked = summarise(config, rows), rank(config, rows, layers, pooling)
    say("table and plots", 0, 1)
    with atomic_directory(out / "work") as folder:
        write_tables(folder, rows)
        draw(config, summaries, ranked, folder)
        write_json(folder / RANKING_FILE, [asdict(item) for item in ranked])
        for file in folder.iterdir():
            file.replace(out / file.name)
    (out / "work").rmdir()
    return ProbeResult(out, len(cells), ran, tuple(summaries), tuple(ranked))


def _run_cells(config: ProbeConfig, cells: list[Cell], store: CellStore, task: ProbeTask, work: Path,
               say: Report) -> tuple[list[dict[str, Any]], int]:
    """What every cell holds, and how many had to be run."""
    found = {cell.key: values for cell in cells if (values := store.get(cell)) is not None}
    todo = {cell.key: cell for cell in cells if cell.key not in found}
    done, total = len(found), len(found) + len(todo)
    say(config.probe, done, total)
    try:
        for key, cell in todo.items():
            shutil.rmtree(work, ignore_errors=True)
            started = time.perf_counter()
            scores = task.run(cell, work / key)
            found[key] = store.put(cell, scores, time.perf_counter() - started)
            done += 1
            say(config.probe, done, total)
    except KeyboardInterrupt:
        logger.warning("interrupted: %d of %d cells are done and kept; the same command goes on", done, total)
        raise
    except GateError as error:
        raise GateError(f"cell {cell.variant} {cell.position}, size {cell.size}, seed {cell.seed}: {error}; {done} of "
                        f"{total} cells are done and kept") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return [found[cell.key] for cell in cells], len(todo)


def _known_grid(out: Path, overwrite: bool) -> dict[str, Any] | None:
    """The grid that ``out`` holds and that may go on, if any."""
    file = out / GRID_FILE
    if overwrite or not file.is_file():
        return None
    try:
        known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        known["config"]["train"]["precision"], known["contents"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{str(file)!r} is damaged; pass --overwrite to start the grid over") from None
    return known


def _start(out: Path, overwrite: bool, grid: Mapping[str, Any]) -> None:
    if overwrite and out.exists():
        shutil.rmtree(out)  # check_output has seen that it is ours
    with atomic_file(out / GRID_FILE) as file:
        write_json(file, {"created_by": f"distilface {distilface.__version__}", **grid})


def _sources(config: ProbeConfig) -> list[str]:
    labels = [config.labels.train.path, config.labels.dev.path] if config.labels else []
    sts = [config.eval.sts.path] if config.eval.sts else []
    return [config.model.name, *(source.path for source in config.data), *labels, *sts]
