"""The transformers `Trainer`, taught what differs here: in-batch negatives, dev Spearman, checkpoints that load."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from distilface.artifact import atomic_directory
from distilface.encoder import SentenceEncoder
from distilface.errors import GateError, UserError
from distilface.training.batches import MicroBatches
from distilface.training.distributed import from_first
from distilface.training.forward import PooledEncoder, gather_columns
from distilface.training.objective import Objective

logger = logging.getLogger(__name__)

DEV_KEY = "eval_spearman"
_HEAD_FILE = "train_only_head.safetensors"
_PROJECTION_FILE = "projection.safetensors"
_STATE_FILE = "trainer_state.json"

OnEvaluation = Callable[[int, int, float], None]
"""Called after each dev evaluation with step, steps in all and Spearman in points; what it raises ends the run."""


class ContrastiveTrainer(Trainer):
    """Trains a `SentenceEncoder` on `MicroBatches`.

    The whole run is one pass of the loader, so position and random state of a checkpoint say all there is to resume.
    A checkpoint is a folder that `SentenceEncoder.load` reads, plus optimizer, schedule and random state.

    Args:
        objective: the loss.
        dev_score: Spearman of an encoder on dev pairs, in points; None to evaluate nothing.
        best: where the weights of the best dev score go; None to keep those of the last step.
        patience: evaluations without a new best after which training stops.
        chunk_tokens, caching: see `PooledEncoder`.
    """

    def __init__(self, encoder: SentenceEncoder, arguments: TrainingArguments, batches: MicroBatches,
                 objective: Objective, dev_score: Callable[[SentenceEncoder], float] | None = None,
                 best: Path | None = None, patience: int | None = None, chunk_tokens: int | None = None,
                 caching: bool = False) -> None:
        super().__init__(model=PooledEncoder(encoder, objective.projection, chunk_tokens, caching), args=arguments,
                         train_dataset=batches, eval_dataset=[] if dev_score else None)
        self.model_accepts_loss_kwargs = False
        self.control: Any
        self.encoder = encoder
        self.batches = batches
        self.objective = objective
        self.dev_score = dev_score
        self.best = best
        self.patience = patience
        self.on_evaluation: OnEvaluation | None = None
        self.started = time.perf_counter()
        self.overhead = 0.0
        self.remove_callback(PrinterCallback)
        self.remove_callback(ProgressCallback)
        self.add_callback(_RunCallback(self))

    @property
    def dev_history(self) -> list[tuple[int, float]]:
        """Step and dev Spearman in points of every evaluation so far; step 0 is the start."""
        return [(entry["step"], entry[DEV_KEY]) for entry in self.state.log_history if DEV_KEY in entry]

    @property
    def best_dev(self) -> tuple[int, float] | None:
        """Step and score of the best evaluation after step 0, the earliest of equals."""
        return max((entry for entry in self.dev_history if entry[0] > 0), key=lambda entry: entry[1], default=None)

    def get_train_dataloader(self) -> DataLoader[dict[str, Any]]:
        # The generator keeps the loader from drawing its worker seed out of the stream that dropout uses.
        return DataLoader(self.batches, batch_size=1, shuffle=False, collate_fn=_only, generator=torch.Generator())

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False,
                     num_items_in_batch: Any = None) -> Any:
        vectors = model(inputs["input_ids"], inputs["attention_mask"])
        local = inputs["sizes"][self.args.process_index]
        loss: Tensor = self.objective(gather_columns(vectors, inputs["sizes"], local), inputs)
        if not math.isfinite(loss.item()):
            raise GateError(self._why_not_finite(loss.item(), vectors))
        return (loss, vectors) if return_outputs else loss

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Dev Spearman by process 0, told to all; a new best is written out."""
        assert self.dev_score is not None
        start = time.perf_counter()
        before, step = self.best_dev, self.state.global_step
        score = from_first(self.dev_score(self.encoder) if self.is_world_process_zero() else None)
        if step and (before is None or score > before[1]) and self.best is not None and self.is_world_process_zero():
            with atomic_directory(self.best, overwrite=True) as folder:
                self.encoder.save(folder)
        metrics = {DEV_KEY: score}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        since_best = [entry for entry in self.dev_history if self.best_dev and entry[0] > self.best_dev[0]]
        if self.patience is not None and len(since_best) >= self.patience:
            logger.info("no better dev Spearman in %d evaluations: stopping at step %d", self.patience, step)
            self.control.should_training_stop = True
        if self.on_evaluation is not None:
            self.on_evaluation(step, self.state.max_steps, score)
        self.overhead += time.perf_counter() - start
        return metrics

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        start = time.perf_counter()
        if not _all_finite(self.encoder):
            raise GateError(f"the weights are no finite numbers after step {self.state.global_step}; "
                            + self._advice("the step that made them"))
        super()._save_checkpoint(*args, **kwargs)
        self.overhead += time.perf_counter() - start

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        folder = Path(output_dir or str(self.args.output_dir))
        folder.mkdir(parents=True, exist_ok=True)
        self.encoder.save(folder)
        if self.encoder.head is not None:
            save_file(self.encoder.head.state_dict(), str(folder / _HEAD_FILE))
        if self.objective.projection is not None:
            save_file(self.objective.projection.state_dict(), str(folder / _PROJECTION_FILE))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        folder = Path(resume_from_checkpoint)
        stored = SentenceEncoder.load(folder, head="none")
        self.encoder.backbone.load_state_dict(stored.backbone.state_dict())
        self.encoder.pooler.load_state_dict(stored.pooler.state_dict())
        if self.encoder.head is not None:
            self.encoder.head.load_state_dict(load_file(str(folder / _HEAD_FILE)))
        if self.objective.projection is not None:
            self.objective.projection.load_state_dict(load_file(str(folder / _PROJECTION_FILE)))

    def _why_not_finite(self, loss: float, vectors: Tensor) -> str:
        if not _all_finite(self.encoder):
            cause = self._advice("the weights are no finite numbers, so an earlier step")
        elif not bool(torch.isfinite(vectors).all()):
            cause = f"the forward pass overflowed in {self.args_precision}; use train.precision=bf16 or fp32"
        else:
            cause = (f"the vectors are finite; loss.temperature {self.objective.config.temperature} is too small for "
                     "their cosines")
        kept = get_last_checkpoint(str(self.args.output_dir)) if Path(str(self.args.output_dir)).is_dir() else None
        where = f"the last good checkpoint is {kept}" if kept else "no checkpoint had been written yet"
        return f"loss is {loss} at step {self.state.global_step + 1}: {cause}; {where}"

    @property
    def args_precision(self) -> str:
        """The format the forward pass computes in."""
        return "fp16" if self.args.fp16 else "bf16" if self.args.bf16 else "fp32"

    def _advice(self, what: str) -> str:
        return (f"{what} was too large: lower train.learning_rate {self.args.learning_rate:g}, "
                f"warm up longer, or lower train.max_grad_norm {self.args.max_grad_norm:g}")


class _RunCallback(TrainerCallback):
    """Different dropout in every process, the clock, and an evaluation of the last step whatever the rhythm."""

    def __init__(self, trainer: ContrastiveTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer.started = time.perf_counter()
        torch.manual_seed(args.seed + args.process_index)  # before a checkpoint's random state is restored

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step >= state.max_steps and self._trainer.dev_score is not None:
            control.should_evaluate = True


def find_checkpoint(work: Path, processes: int) -> Path:
    """The newest complete checkpoint in a work folder.

    Raises:
        UserError: if there is none.
    """
    found = sorted(work.glob("checkpoint-*"), key=lambda folder: int(folder.name.rpartition("-")[2]), reverse=True)
    randoms = ["rng_state.pth"] if processes == 1 else [f"rng_state_{index}.pth" for index in range(processes)]
    for folder in found:
        if all((folder / name).is_file() for name in (*randoms, "optimizer.pt", "scheduler.pt")):
            try:
                json.loads((folder / _STATE_FILE).read_text(encoding="utf-8"))  # written last
            except (OSError, ValueError):
                logger.warning("%s is incomplete; going back to the one before", folder)
            else:
                return folder
    raise UserError(f"nothing to resume: {str(work)!r} holds no complete checkpoint; run without --resume "
                    "(and with --overwrite)")


def _only(items: list[dict[str, Any]]) -> dict[str, Any]:
    return items[0]


def _all_finite(module: nn.Module) -> bool:
    return all(bool(torch.isfinite(parameter).all()) for parameter in module.parameters())
