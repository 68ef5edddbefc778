"""`distilface train`: from a configuration to a checkpoint folder, resumable, written in one piece."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
from distilface.training.batches import BatchPlan, MicroBatches
from distilface.training.config import LoopConfig, TrainConfig
from distilface.training.distributed import barrier
from distilface.training.examples import TokenRows, load_examples
from distilface.training.precision import resolve_device, resolve_precision
from distilface.training.progress import ProgressBar, TensorBoard
from distilface.training.trainer import ContrastiveTrainer, find_checkpoint

logger = logging.getLogger(__name__)

CONFIG_FILE = "train_config.yaml"
LOG_FILE = "train_log.json"
_RUN_FILE = "run.json"
_SAVE_EVERY = 500


@dataclass(frozen=True)
class TrainResult:
    """What a run did.

    Attributes:
        out: the checkpoint folder.
        steps: optimizer steps taken, over all resumptions.
        selected_step: the step whose weights were kept: the best on dev, or the last.
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


def train(config: TrainConfig, out: Path, resume: bool = False, overwrite: bool = False,
          progress: bool = True) -> TrainResult:
    """Train an encoder contrastively and write it to ``out``.

    Work in progress lies in ``<out>.work`` beside it: checkpoints, kept after an interruption for ``resume``, removed
    after success. ``out`` holds what `SentenceEncoder.save` writes, the resolved configuration (train_config.yaml) and
    the history (train_log.json). Under torchrun or accelerate launch, every process calls this.

    Args:
        resume: go on from the newest checkpoint of an interrupted run with the same configuration, data and number of
            processes; the losses that follow are those of the uninterrupted run.
        overwrite: replace an existing ``out``, and drop an interrupted run's work.
        progress: show a progress bar on stderr.

    Raises:
        UserError: on data, a model or a setting that can't be used; nothing is written.
        GateError: when the loss or the weights become NaN or infinite; the last good checkpoint stays in the work
            folder.
    """
    out = check_output(out, overwrite)
    work = out.with_name(f"{out.name}.work")
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    checkpoint = _enter(work, processes, resume, overwrite)
    stored = json.loads((work / _RUN_FILE).read_text(encoding="utf-8")) if checkpoint else {}
    if stored and config.train.precision == "auto":  # a second measurement could choose otherwise
        precision = stored["config"]["train"]["precision"]
    else:
        precision = resolve_precision(config.train)

    transformers.set_seed(config.train.seed)
    encoder = SentenceEncoder.load(config.model.name, config.model.pooling, config.model.max_seq_length,
                                   config.model.head, revision=config.model.revision)
    if config.train.max_length > encoder.max_seq_length:
        raise UserError(f"train.max_length {config.train.max_length} is over the {encoder.max_seq_length} tokens of "
                        f"{config.model.name!r}; lower it")
    if any(source.kind == "sentences" for source in config.data):
        _require_dropout(encoder, config.model.name)
    dev = load_scored(config.eval.sts) if config.eval.sts is not None else None
    if dev is None:
        logger.info("eval.sts is not set: no checkpoint selection, the weights of the last step are kept")
    rows = TokenRows(encoder.tokenizer.with_limit(config.train.max_length))
    sources = [load_examples(source, rows) for source in config.data]
    plan = BatchPlan(sources, rows.lengths, config.train.batch_size, seed=config.train.seed,
                     window=config.train.window, keep_last=config.train.last_batch == "keep", processes=processes)
    steps = _steps(config.train, plan.batches_per_epoch)
    resolved = _resolved(config, encoder, precision)
    run = {"config": resolved.model_dump(mode="json"), "processes": processes, "steps": steps,
           "data": [{"path": source.name, "kind": source.kind, "examples": len(source), "sha256": source.sha256}
                    for source in sources]}
    if stored:
        _same_run(stored, run)

    arguments = _arguments(resolved, work, steps, evaluates=dev is not None, resuming=checkpoint is not None)
    if arguments.world_size != processes:
        raise UserError(f"WORLD_SIZE says {processes} processes, accelerate found {arguments.world_size}; start them "
                        "with torchrun --nproc-per-node N, or with accelerate launch on GPUs")
    # A single process would otherwise split its batches over all visible GPUs, and with them the negatives.
    if arguments.n_gpu > 1:
        logger.warning("using one of %d GPUs; start with torchrun to use them all", arguments.n_gpu)
        arguments._n_gpu = 1
    batches = MicroBatches(plan, rows, steps * config.train.gradient_accumulation, arguments.process_index)
    trainer = ContrastiveTrainer(encoder, arguments, batches, config.loss,
                                 None if dev is None else (lambda model: dev_score(model, dev)),
                                 work / "best", config.eval.patience)
    first = trainer.is_world_process_zero()
    barrier()  # no process may take this run's work folder for that of an earlier one
    if first:
        work.mkdir(parents=True, exist_ok=True)
        with atomic_file(work / _RUN_FILE) as file:
            write_json(file, run)
    barrier()
    result = _run(trainer, out, work, config.train, checkpoint, progress and first, first)
    barrier()
    if first:
        _write(out, work, overwrite, resolved, run, trainer, result)
    barrier()
    return result


def _enter(work: Path, processes: int, resume: bool, overwrite: bool) -> Path | None:
    """Clear or find the work of an earlier run; the checkpoint to go on from, if any."""
    if resume:
        if not (work / _RUN_FILE).is_file():
            raise UserError(f"nothing to resume: {str(work)!r} does not exist; run without --resume")
        stored = json.loads((work / _RUN_FILE).read_text(encoding="utf-8"))
        _same_run({"processes": stored["processes"]}, {"processes": processes})
        return find_checkpoint(work, processes)
    if work.exists():
        if not overwrite:
            raise UserError(f"{str(work)!r} holds an interrupted run; pass --resume to go on, "
                            "or --overwrite to start over")
        if int(os.environ.get("RANK", "0")) == 0:
            shutil.rmtree(work)
    return None


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
        logger.warning("interrupted at step %d; the work so far is in %s: --resume goes on from its newest checkpoint",
                       trainer.state.global_step, work)
        raise
    finally:
        if bar is not None:
            bar.close()
    seconds = max(time.perf_counter() - trainer.started - trainer.overhead, 1e-9)
    steps = trainer.state.global_step
    seen = sum(len(trainer.batches.planned(index).columns) for index in range(
        before * loop.gradient_accumulation, steps * loop.gradient_accumulation))
    best = trainer.best_dev
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


def _write(out: Path, work: Path, overwrite: bool, config: TrainConfig, run: Mapping[str, Any],
           trainer: ContrastiveTrainer, result: TrainResult) -> None:
    with atomic_directory(out, overwrite) as folder:
        if result.dev:
            shutil.copytree(work / "best", folder, dirs_exist_ok=True)
        else:
            trainer.encoder.save(folder)
        if (work / "tensorboard").is_dir():
            shutil.copytree(work / "tensorboard", folder / "tensorboard")
        (folder / CONFIG_FILE).write_text(dump_config(config), encoding="utf-8", newline="\n")
        write_json(folder / LOG_FILE, {
            "steps": result.steps, "selected_step": result.selected_step,
            "selected_by": "dev Spearman" if result.dev else "last step, because there is no dev set",
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


def _arguments(config: TrainConfig, work: Path, steps: int, evaluates: bool, resuming: bool) -> Any:
    loop = config.train
    device = resolve_device(loop.device)
    warmup = loop.warmup_steps if loop.warmup_steps is not None else math.ceil((loop.warmup_ratio or 0) * steps)
    save_every = loop.save_every or (config.eval.every_steps if evaluates else _SAVE_EVERY)
    return transformers.TrainingArguments(
        output_dir=str(work), max_steps=steps, per_device_train_batch_size=loop.batch_size,
        gradient_accumulation_steps=loop.gradient_accumulation, learning_rate=loop.learning_rate,
        weight_decay=loop.weight_decay, max_grad_norm=loop.max_grad_norm, warmup_steps=warmup,
        lr_scheduler_type="constant_with_warmup" if loop.schedule == "constant" else loop.schedule,
        bf16=loop.precision == "bf16", fp16=loop.precision == "fp16", use_cpu=device == "cpu", seed=loop.seed,
        optim="adamw_torch_fused", logging_strategy="steps", logging_steps=loop.log_every, logging_nan_inf_filter=False,
        save_strategy="steps", save_steps=save_every, save_total_limit=2,
        eval_strategy="steps" if evaluates else "no", eval_steps=config.eval.every_steps if evaluates else None,
        eval_on_start=evaluates and not resuming, report_to="none", disable_tqdm=True, remove_unused_columns=False,
        ddp_backend="gloo" if device == "cpu" and int(os.environ.get("WORLD_SIZE", "1")) > 1 else None,
        # mean_second_last never reads the last layer, and DDP would wait for its gradients.
        ddp_find_unused_parameters=config.model.pooling in ("mean_second_last", "max_second_last"),
    )


def _steps(loop: LoopConfig, batches_per_epoch: int) -> int:
    if loop.max_steps is not None:
        return loop.max_steps
    batches = batches_per_epoch * (loop.epochs if loop.epochs is not None else 1.0)
    return max(1, round(batches / loop.gradient_accumulation))


def _resolved(config: TrainConfig, encoder: SentenceEncoder, precision: str) -> TrainConfig:
    """The configuration with what was left to the model and the machine filled in."""
    model = config.model.model_copy(update={"pooling": encoder.pooling, "head": encoder.head_mode,
                                            "max_seq_length": encoder.max_seq_length})
    loop = config.train.model_copy(update={"precision": precision})
    return config.model_copy(update={"model": model, "train": loop})


def _same_run(stored: Mapping[str, Any], run: Mapping[str, Any]) -> None:
    """Refuse to resume another run: its schedule, order of examples or negatives would differ."""
    for key, before, now in _differences(json.loads(json.dumps(run)), stored):
        hint = "start as many processes as before" if key == "processes" else "set it back or start over (--overwrite)"
        raise UserError(f"can't resume: {key} was {before!r} in the interrupted run and is {now!r} now; {hint}")


def _differences(now: Any, before: Any, prefix: str = "") -> Sequence[tuple[str, Any, Any]]:
    if isinstance(now, dict) and isinstance(before, dict):
        keys = sorted(now.keys() | before.keys())
        return [found for key in keys for found in _differences(now.get(key), before.get(key), f"{prefix}{key}.")]
    if isinstance(now, list) and isinstance(before, list) and len(now) == len(before):
        return [found for index, pair in enumerate(zip(now, before, strict=True))
                for found in _differences(*pair, f"{prefix}{index}.")]
    return [] if now == before else [(prefix.rstrip(".").removeprefix("config."), before, now)]


def _require_dropout(encoder: SentenceEncoder, name: str) -> None:
    """Unsupervised SimCSE contrasts two dropout passes: without dropout both are the same vector."""
    if not any(isinstance(module, nn.Dropout) and module.p > 0 for module in encoder.modules()):
        raise UserError(f"{name!r} has no dropout, so both views of a sentence would be the same vector; kind "
                        "sentences needs a model whose config.json sets dropout (0.1 is usual)")
