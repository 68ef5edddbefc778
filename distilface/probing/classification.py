"""A linear classifier on the sentence vector, trained together with the encoder, as the paper fine-tunes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from distilface.batching import batches_by_length
from distilface.data import read_labelled
from distilface.encoder import SentenceEncoder
from distilface.errors import GateError, UserError
from distilface.evaluation import accuracy, matthews
from distilface.probing.config import LabelsConfig
from distilface.probing.rates import fast_parameters, scale_rates
from distilface.tokenizer import Tokenizer
from distilface.training.arguments import count_steps, training_arguments
from distilface.training.config import EvalConfig, LoopConfig

_NAMED = 5  # unknown labels spelled out in an error


@dataclass(frozen=True, eq=False)
class Labelled:
    """Tokenised texts and the number of each one's class, ``classes`` being ``[n]``."""

    rows: list[list[int]]
    classes: NDArray[np.int64]
    texts: tuple[tuple[str, str], ...]

    def __len__(self) -> int:
        return len(self.rows)


def load_labelled(labels: LabelsConfig, tokenizer: Tokenizer) -> tuple[Labelled, Labelled, list[str]]:
    """Training and dev texts, and the classes' names in order; a class is what the training file names.

    Raises:
        UserError: if a source can't be read, there is one class only, or a dev label is unknown.
    """
    train, dev = read_labelled(labels.train), read_labelled(labels.dev)
    names = sorted({row.label for row in train})
    if len(names) < 2:
        raise UserError(f"{labels.train.path!r} holds one label only, {names[0]!r}; a classifier needs at least 2")
    unknown = sorted({row.label for row in dev} - set(names))
    if unknown:
        more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
        known = ", ".join(map(repr, names[:_NAMED])) + (", ..." if len(names) > _NAMED else "")
        raise UserError(f"{labels.dev.path!r} holds labels that {labels.train.path!r} does not: "
                        f"{', '.join(map(repr, unknown[:_NAMED]))}{more}; known: {known}")
    numbers = {name: number for number, name in enumerate(names)}
    made = [Labelled(tokenizer.encode_batch([row.text for row in rows]),
                     np.array([numbers[row.label] for row in rows], dtype=np.int64),
                     tuple((row.text, row.label) for row in rows))
            for rows in (train, dev)]
    return made[0], made[1], names


def fine_tune(encoder: SentenceEncoder, train: Labelled, dev: Labelled, classes: int, loop: LoopConfig, work: Path,
              size: int | None = None, fast: Sequence[int] = (), factor: float = 1.0) -> dict[str, float]:
    """Train ``encoder`` and a new classifier on it, in place; accuracy and Matthews correlation on dev, in points.

    Args:
        loop: its seed draws the subset, the order of examples, the classifier and dropout.
        work: folder the trainer may write to.
        size: train on so many examples, drawn at random; those of a smaller size are among those of a larger.
        fast: layers that learn at ``factor`` times the learning rate.

    Raises:
        GateError: when the loss or an answer becomes NaN or infinite.
    """
    transformers.set_seed(loop.seed)
    chosen = np.random.default_rng(loop.seed).permutation(len(train))[:size]
    batches = _Batches(train, chosen, encoder.tokenizer, loop)
    steps = count_steps(loop, batches.per_epoch)
    batches.count = steps * loop.gradient_accumulation
    arguments = training_arguments(loop, EvalConfig(), encoder.pooling, work, steps, evaluates=False, resuming=False)
    arguments.save_strategy = transformers.trainer_utils.SaveStrategy.NO
    arguments._n_gpu = min(arguments.n_gpu, 1)
    classifier = Classifier(encoder, classes)
    trainer = _Trainer(model=classifier, args=arguments, train_dataset=batches)
    trainer.model_accepts_loss_kwargs = False
    trainer.fast, trainer.factor = fast_parameters(encoder, fast), factor
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    predicted = classifier.predict(dev.rows)
    return {"accuracy": 100 * accuracy(dev.classes, predicted), "matthews": 100 * matthews(dev.classes, predicted)}


class Classifier(nn.Module):
    """Sentence vector (through the head, not normalised), dropout as in the encoder, linear layer."""

    def __init__(self, encoder: SentenceEncoder, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        rates = [module.p for module in encoder.modules() if isinstance(module, nn.Dropout)]
        self.dropout = nn.Dropout(rates[0] if rates else 0.0)
        self.linear = nn.Linear(encoder.pooler.dim, classes)
        nn.init.normal_(self.linear.weight, std=0.02)
        nn.init.zeros_(self.linear.bias)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Logits, ``[b, classes]``."""
        return self.linear(self.dropout(self.encoder.pooled(input_ids, attention_mask)))  # type: ignore[no-any-return]

    def predict(self, rows: Sequence[Sequence[int]], batch_tokens: int = 8192) -> NDArray[np.int64]:
        """The most probable class of each row, ``[n]``; dropout off."""
        found = np.empty(len(rows), dtype=np.int64)
        device = self.linear.weight.device
        self.eval()
        with torch.inference_mode():
            for indices in batches_by_length([len(row) for row in rows], batch_tokens):
                feed = self.encoder.tokenizer.pad([rows[index] for index in indices])
                logits = self(**{name: torch.from_numpy(array).to(device) for name, array in feed.items()})
                if not bool(torch.isfinite(logits).all()):
                    raise GateError("the trained classifier answers with NaN or infinity; lower train.learning_rate")
                found[indices] = logits.argmax(dim=1).cpu().numpy()
        return found


class _Batches(Dataset[dict[str, Tensor]]):
    """The batches of a whole run, each epoch in an order of its own; ``count`` of them."""

    def __init__(self, examples: Labelled, chosen: NDArray[np.int64], tokenizer: Tokenizer, loop: LoopConfig) -> None:
        self.count = 0
        self._examples, self._chosen, self._tokenizer, self._loop = examples, chosen, tokenizer, loop
        whole = len(chosen) / loop.batch_size
        self.per_epoch = max(1, math.floor(whole) if loop.last_batch == "drop" else math.ceil(whole))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        epoch, batch = divmod(index, self.per_epoch)
        order = np.random.default_rng([self._loop.seed, epoch]).permutation(self._chosen)
        picks = order[batch * self._loop.batch_size : (batch + 1) * self._loop.batch_size]
        feed = self._tokenizer.pad([self._examples.rows[pick] for pick in picks])
        return {name: torch.from_numpy(array) for name, array in feed.items()} | {
            "classes": torch.from_numpy(self._examples.classes[picks])}


class _Trainer(transformers.Trainer):  # type: ignore[misc]
    """Cross-entropy over `_Batches`."""

    fast: Sequence[nn.Parameter] = ()
    factor = 1.0

    def get_train_dataloader(self) -> DataLoader[dict[str, Tensor]]:
        return DataLoader(self.train_dataset, batch_size=1, shuffle=False, collate_fn=lambda items: items[0],
                          generator=torch.Generator())

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        optimizer = super().create_optimizer(*args, **kwargs)
        scale_rates(optimizer, self.fast, self.factor)
        return optimizer

    def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], return_outputs: bool = False,
                     num_items_in_batch: Any = None) -> Any:
        logits = model(inputs["input_ids"], inputs["attention_mask"])
        loss = functional.cross_entropy(logits.float(), inputs["classes"])
        if not math.isfinite(loss.item()):
            raise GateError(f"loss is {loss.item()} at step {self.state.global_step + 1}; lower train.learning_rate "
                            f"{self.args.learning_rate:g} or reinit.learning_rate_factor {self.factor:g}")
        return (loss, logits) if return_outputs else loss
