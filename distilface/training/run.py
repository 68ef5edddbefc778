"""`distilface train`: from a configuration to a checkpoint folder, resumable, written in one piece."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

import distilface
from distilface.artifact import atomic_directory, atomic_file, check_output
from distilface.config import dump_config
from distilface.encoder import SentenceEncoder
from distilface.errors import UserError
from distilface.evaluation import dev_score, load_scored
from distilface.tokenizer import write_json
from distilface.training.arguments import count_steps, training_arguments
from distilface.training.batches import BatchPlan, MicroBatches
from distilface.training.config import LoopConfig, ModelConfig, RunConfig, TrainConfig
from distilface.training.distributed import barrier
from distilface.training.objective import ContrastiveObjective, Objective
from distilface.training.precision import resolve_precision
from distilface.training.progress import ProgressBar, TensorBoard
from distilface.training.resume import RUN_FILE, check_same_run, enter
from distilface.training.token_cache import load_data
from distilface.training.trainer import ContrastiveTrainer, OnEvaluation, find_checkpoint

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainResult:
    """What a run did.

    Attributes:
        out: the checkpoint folder.
        steps: optimizer steps taken, over all resumptions.
        selected_step: the step whose weights were kept: the best on dev, or the last; see ``eval.keep``.
        dev: step and dev Spearman in points of every evaluation; step 0 is the model before training.
        losses: step and mean loss since the entry before.
        seconds: time in training steps of this call, without evaluations and saving.
        examples_per_second: examples (of one, two or three texts) over all processes.
    """

    out: Path
    steps: int
    selected_step: int
    dev: tuple[tuple[int, float], ...]
    losses: tuple[tuple[int, float], ...]
    seconds: float
    examples_per_second: float

    @property
    def dev_start(self) -> float | None:
        """Dev Spearman before training."""
        return next((score for step, score in self.dev if step == 0), None)

    @property
    def dev_selected(self) -> float | None:
        """Dev Spearman of the weights that were kept."""
        return next((score for step, score in self.dev if step == self.selected_step), None)


@dataclass(frozen=True)
class Task:
    """What a verb brings to a run.

    Attributes:
        name: of its configuration file and its history, ``<name>_config.yaml`` and ``<name>_log.json``.
        section: the section of the configuration that describes the encoder, a `ModelConfig`.
        load: the encoder to start from.
        objective: from the encoder and the text of every row of `TokenRows` (None without ``keep_texts``) to the loss.
        views: see `BatchPlan`.
        keep_texts: see `TokenRows`.
        identity: more that must be the same for a run to be resumed.
        trainer: a `ContrastiveTrainer`, or what makes one from the same arguments.
        on_evaluation: see `OnEvaluation`.
    """

    name: str
    section: str
    load: Callable[[], SentenceEncoder]
    objective: Callable[[SentenceEncoder, list[str] | None], Objective]
    views: int = 2
    keep_texts: bool = False
    identity: Mapping[str, Any] = field(default_factory=dict)
    trainer: Callable[..., ContrastiveTrainer] = ContrastiveTrainer
    on_evaluation: OnEvaluation | None = None


def train(config: TrainConfig, out: Path, resume: bool = False, overwrite: bool = False,
          progress: bool = True, on_evaluation: OnEvaluation | None = None) -> TrainResult:
    """Train an encoder contrastively and write it to ``out``.

    Work in progress lies in ``<out>.work`` beside it: checkpoints, kept after an interruption for ``resume``, removed
    after success. ``out`` holds what `SentenceEncoder.save` writes, the resolved configuration (train_config.yaml) and
    the history (train_log.json). Under torchrun or accelerate launch, every process calls this.

    Args:
        resume: go on from the newest checkpoint of an interrupted run with the same configuration, data and number of
            processes; the losses that follow are those of the uninterrupted run.
        overwrite: replace an existing ``out``, and drop an interrupted run's work.
        progress: show a progress bar on stderr.
        on_evaluation: called after each dev evaluation; what it raises ends the run.

    Raises:
        UserError: on data, a model or a setting that can't be used; nothing is written.
        GateError: when the loss or the weights become NaN or infinite; the last good checkpoint stays in the work
            folder.
    """
    return fit(config, Task("train", "model", partial(load_encoder, config.model),
                            lambda encoder, texts: ContrastiveObjective(config.loss), on_evaluation=on_evaluation),
               out, resume, overwrite, progress)


def load_encoder(model: ModelConfig) -> SentenceEncoder:
    """The encoder that a configuration describes, its dropout set."""
    encoder = SentenceEncoder.load(model.name, model.pooling, model.max_seq_length, model.head,
                                   revision=model.revision, pooling_options=model.pooling_options, new_pooler=True)
    if model.dropout is not None:
        for module in encoder.modules():
            if isinstance(module, nn.Dropout):
                module.p = model.dropout
            elif hasattr(module, "dropout_prob"):  # transformers 4 keeps that of its SDPA attention as a number
                module.dropout_prob = model.dropout
    return encoder


def fit(config: RunConfig, task: Task, out: Path, resume: bool, overwrite: bool, progress: bool) -> TrainResult:
    """Run ``task``; see `train` for the arguments and errors."""
    sources = [getattr(config, task.section).name, *(source.path for source in config.data)]
    out = check_output(out, overwrite, sources)
    work = out.with_name(f"{out.name}.work")
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    checkpoint = enter(work, processes, resume, overwrite)
    stored = json.loads((work / RUN_FILE).read_text(encoding="utf-8")) if checkpoint else {}
    if stored and config.train.precision == "auto":  # a second measurement could choose otherwise
        precision = stored["config"]["train"]["precision"]
    else:
        precision = resolve_precision(config.train)

    transformers.set_seed(config.train.seed)
    model: ModelConfig = getattr(config, task.section)
    encoder = task.load()
    _check(config, task, model, encoder)
    dev = load_scored(config.eval.sts) if config.eval.sts is not None else None
    if dev is None:
        logger.info("eval.sts is not set: no checkpoint selection, the weights of the last step are kept")
    rows, sources = load_data(config.data, encoder.tokenizer.with_limit(config.train.max_length), task.keep_texts,
                              config.train.token_cache)
    plan = BatchPlan(sources, rows.lengths, config.train.batch_size, seed=config.train.seed,
                     window=config.train.window, keep_last=config.train.last_batch == "keep", processes=processes,
                     views=task.views)
    steps = count_steps(config.train, plan.batches_per_epoch)
    resolved = config.model_copy(update={
        task.section: _resolved(model, encoder), "train": config.train.model_copy(update={"precision": precision})})
    run = {"config": resolved.model_dump(mode="json"), "processes": processes, "steps": steps,
           "data": [{"path": source.name, "kind": source.kind, "examples": len(source), "sha256": source.sha256}
                    for source in sources], **task.identity}
    if stored:
        check_same_run(stored, run)

    arguments = training_arguments(resolved.train, config.eval, encoder.pooling, work, steps,
                                   evaluates=dev is not None, resuming=checkpoint is not None)
    if arguments.world_size != processes:
        raise UserError(f"WORLD_SIZE says {processes} processes, accelerate found {arguments.world_size}; start them "
                        "with torchrun --nproc-per-node N, or with accelerate launch on GPUs")
    # A single process would otherwise split its batches over all visible GPUs, and with them the negatives.
    if arguments.n_gpu > 1:
        logger.warning("using one of %d GPUs; start with torchrun to use them all", arguments.n_gpu)
        arguments._n_gpu = 1
    objective = task.objective(encoder, rows.texts)
    batches = MicroBatches(plan, rows, steps * config.train.gradient_accumulation, arguments.process_index,
                           objective.inputs)
    trainer = task.trainer(encoder, arguments, batches, objective,
                           None if dev is None else (lambda model: dev_score(model, dev)),
                           work / "best" if config.eval.keep == "best" else None, config.eval.patience,
                           config.train.chunk_tokens, config.train.gradient_caching)
    trainer.on_evaluation = task.on_evaluation
    first = trainer.is_world_process_zero()
    barrier()  # no process may take this run's work folder for that of an earlier one
    if first:
        work.mkdir(parents=True, exist_ok=True)
        with atomic_file(work / RUN_FILE) as file:
            write_json(file, run)
    barrier()
    result = _run(trainer, out, work, config.train, checkpoint, progress and first, first)
    barrier()
    if first:
        _write(out, work, overwrite, task.name, resolved, run, trainer, result)
    barrier()
    return result


def _check(config: RunConfig, task: Task, model: ModelConfig, encoder: SentenceEncoder) -> None:
    """Refuse what only the loaded encoder shows to be impossible."""
    if config.train.max_length > encoder.max_seq_length:
        raise UserError(f"train.max_length {config.train.max_length} is over the {encoder.max_seq_length} tokens of "
                        f"{model.name!r}; lower it")
    width = encoder.pooler.dim
    too_wide = [dim for dim in config.loss.matryoshka if dim > width]
    if too_wide:
        raise UserError(f"loss.matryoshka names {too_wide[0]} dimensions; the vectors of {model.name!r} have {width}")
    uses_angle = config.loss.scored == "angle" and any(source.kind == "scored" for source in config.data)
    odd = [dim for dim in config.loss.matryoshka or (width,) if dim % 2]
    if uses_angle and odd:
        raise UserError(f"loss.scored angle pairs up dimensions, but vectors of {odd[0]} dimensions are asked for; use "
                        "even numbers or cosent")
    if task.views > 1 and any(source.kind == "sentences" for source in config.data):
        _require_dropout(encoder, model.name)


def _run(trainer: ContrastiveTrainer, out: Path, work: Path, loop: LoopConfig, checkpoint: Path | None, show: bool,
         first: bool) -> TrainResult:
    bar = ProgressBar() if show else None
    if bar is not None:
        trainer.add_callback(bar)
    if first and loop.tensorboard is not False:
        board = TensorBoard.create(work / "tensorboard", loop.tensorboard)
        if board is not None:
            trainer.add_callback(board)
    before = 0 if checkpoint is None else int(checkpoint.name.rpartition("-")[2])
    try:
        with _quiet():
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except KeyboardInterrupt:
        try:
            kept = f"--resume goes on from {find_checkpoint(work, trainer.args.world_size)}"
        except UserError:
            kept = "no checkpoint was complete yet, so there is nothing to resume"
        logger.warning("interrupted at step %d: %s", trainer.state.global_step, kept)
        raise
    finally:
        if bar is not None:
            bar.close()
    seconds = max(time.perf_counter() - trainer.started - trainer.overhead, 1e-9)
    steps = trainer.state.global_step
    seen = sum(len(trainer.batches.planned(index).columns) for index in range(
        before * loop.gradient_accumulation, steps * loop.gradient_accumulation))
    best = trainer.best_dev if trainer.best is not None else None
    losses = [(entry["step"], entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    return TrainResult(out, steps, best[0] if best else steps, tuple(trainer.dev_history), tuple(losses), seconds,
                       seen / seconds)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' bars and notes for its own users off the terminal; the run reports for itself."""
    messages = transformers.utils.logging
    verbosity = messages.get_verbosity()
    messages.set_verbosity_error()
    messages.disable_progress_bar()
    try:
        yield
    finally:
        messages.set_verbosity(verbosity)
        messages.enable_progress_bar()


def _write(out: Path, work: Path, overwrite: bool, name: str, config: RunConfig, run: Mapping[str, Any],
           trainer: ContrastiveTrainer, result: TrainResult) -> None:
    with atomic_directory(out, overwrite) as folder:
        if result.dev and trainer.best is not None:
            shutil.copytree(trainer.best, folder, dirs_exist_ok=True)
        else:
            trainer.encoder.save(folder)
        if (work / "tensorboard").is_dir():
            shutil.copytree(work / "tensorboard", folder / "tensorboard")
        (folder / f"{name}_config.yaml").write_text(dump_config(config), encoding="utf-8", newline="\n")
        write_json(folder / f"{name}_log.json", {
            "steps": result.steps, "selected_step": result.selected_step,
            "selected_by": _selected_by(config, result),
            "seed": config.train.seed, "processes": run["processes"], "data": run["data"],
            "seconds": round(result.seconds, 3), "examples_per_second": round(result.examples_per_second, 2),
            "dev": [{"step": step, "spearman": score} for step, score in result.dev],
            "losses": [{"step": step, "loss": loss} for step, loss in result.losses],
            "versions": {"distilface": distilface.__version__, "torch": torch.__version__,
                         "transformers": transformers.__version__},
        })
    start, kept = result.dev_start, result.dev_selected
    if start is not None and kept is not None and kept < start:
        logger.warning("dev Spearman fell from %.2f to %.2f: this training did not help on the dev set", start, kept)
    shutil.rmtree(work)


def _selected_by(config: RunConfig, result: TrainResult) -> str:
    if not result.dev:
        return "last step, because there is no dev set"
    return "dev Spearman" if config.eval.keep == "best" else "last step, as asked"


def _resolved(model: ModelConfig, encoder: SentenceEncoder) -> ModelConfig:
    """The description of the encoder with what was left to its files filled in."""
    return model.model_copy(update={
        "pooling": encoder.pooling, "head": encoder.head_mode, "pooling_options": encoder.pooler.options or None,
        "max_seq_length": encoder.max_seq_length})


def _require_dropout(encoder: SentenceEncoder, name: str) -> None:
    """Unsupervised SimCSE contrasts two dropout passes: without dropout both are the same vector."""
    if not any(isinstance(module, nn.Dropout) and module.p > 0 for module in encoder.modules()):
        raise UserError(f"{name!r} has no dropout, so both views of a sentence would be the same vector; kind "
                        "sentences needs a model whose config.json sets dropout (0.1 is usual)")
