"""Our configuration as transformers' `TrainingArguments`."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import torch
import transformers

from distilface.training.config import EvalConfig, LoopConfig
from distilface.training.precision import resolve_device

_SAVE_EVERY = 500


def training_arguments(loop: LoopConfig, evaluation: EvalConfig, pooling: str | None, work: Path, steps: int,
                       evaluates: bool, resuming: bool) -> Any:
    """The arguments of one run; ``loop.precision`` is no longer ``auto``."""
    device = resolve_device(loop.device)
    warmup = loop.warmup_steps if loop.warmup_steps is not None else math.ceil((loop.warmup_ratio or 0) * steps)
    save_every = loop.save_every or (evaluation.every_steps if evaluates else _SAVE_EVERY)
    arguments = transformers.TrainingArguments(
        output_dir=str(work), max_steps=steps, per_device_train_batch_size=loop.batch_size,
        gradient_accumulation_steps=loop.gradient_accumulation, learning_rate=loop.learning_rate,
        weight_decay=loop.weight_decay, max_grad_norm=loop.max_grad_norm, warmup_steps=warmup,
        lr_scheduler_type="constant_with_warmup" if loop.schedule == "constant" else loop.schedule,
        bf16=loop.precision == "bf16", fp16=loop.precision == "fp16", use_cpu=device == "cpu", seed=loop.seed,
        optim="adamw_torch_fused", logging_strategy="steps", logging_steps=loop.log_every, logging_nan_inf_filter=False,
        save_strategy="steps", save_steps=save_every, save_total_limit=2,
        eval_strategy="steps" if evaluates else "no", eval_steps=evaluation.every_steps if evaluates else None,
        eval_on_start=evaluates and not resuming, report_to="none", disable_tqdm=True, remove_unused_columns=False,
        ddp_backend="gloo" if device == "cpu" and int(os.environ.get("WORLD_SIZE", "1")) > 1 else None,
        # mean_second_last never reads the last layer, and DDP would wait for its gradients.
        ddp_find_unused_parameters=pooling in ("mean_second_last", "max_second_last"),
    )
    if arguments.device.type == "cpu":  # several processes' is called cpu:0, where torch.load can't put anything
        arguments.__dict__["_setup_devices"] = torch.device("cpu")
    return arguments


def count_steps(loop: LoopConfig, batches_per_epoch: int) -> int:
    """Optimizer steps of a run."""
    if loop.max_steps is not None:
        return loop.max_steps
    batches = batches_per_epoch * (loop.epochs if loop.epochs is not None else 1.0)
    return max(1, round(batches / loop.gradient_accumulation))
