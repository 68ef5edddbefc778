"""What `distilface bench` is told: where to measure, how often, on which texts."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from distilface.config import StrictModel

Target = Literal["cpu", "cuda", "web"]
SHORT_TOKENS = 14
LONG_TOKENS = 128
LENGTHS = (8, 16, 32, 64, 128, 256)


class BenchConfig(StrictModel):
    """Settings of one benchmark run.

    Attributes:
        target: ``cpu``, ``cuda`` or ``web`` (ONNX Runtime's WebAssembly in a headless Chromium); a target that is not
            there is an error, never replaced by another.
        threads: threads of every subject; default, the processors this process may use, and 1 in the browser, where
            more need headers that a plain static server doesn't send.
        npm_folder: of the target ``web``: the folder that holds node_modules; default, the current one.
        max_seq_length: a lower limit than the models' own.
        lengths: token counts of the batch-1 latency grid, cut to the models' limit; about 14 and 128 always belong.
        rounds: how often the subjects take turns (A B A B ...).
        latency_samples: timed calls a length, a round and a subject.
        turn_seconds: a length stops sampling in a round after this long (never below 5 samples).
        load_repeats: fresh processes started a subject, to time loading and the first vector.
        batch_tokens: throughput is measured at each of these padded-token budgets; empty, at the encoder's default.
        texts: file with one sentence a line (or any text source); default, the built-in smart-home commands, or the
            STS sentences when ``sts`` is given.
        text_count: how many sentences throughput and cosines use; default, up to 1,000 of those there are.
        sts: a SentEval folder, a file of scored pairs, or ``smarthome`` for the built-in graded pairs.
        groups: file of texts that mean the same, a row each: retrieval (recall at 1 and 10); ``last_groups``: only the
            last so many of its rows.
        thread_sweep: throughput is measured with each of these thread counts, too.
        roofline: measure the fastest products of this processor, and what fraction of that each bundle reaches.
        bootstrap: resamples behind the interval of each STS difference; 0 leaves the interval out.
        settle_seconds: pause before a turn, so that the other process's spinning threads have gone to sleep.
    """

    target: Target = "cpu"
    threads: int | None = Field(default=None, ge=1)
    npm_folder: Path | None = None
    max_seq_length: int | None = Field(default=None, ge=3)
    lengths: tuple[int, ...] = LENGTHS
    rounds: int = Field(default=7, ge=1)
    latency_samples: int = Field(default=30, ge=5)
    turn_seconds: float = Field(default=2.0, gt=0)
    load_repeats: int = Field(default=3, ge=1)
    batch_tokens: tuple[int, ...] = ()
    texts: Path | None = None
    text_count: int | None = Field(default=None, ge=2)
    sts: Path | None = None
    groups: Path | None = None
    last_groups: int | None = Field(default=None, ge=1)
    thread_sweep: tuple[int, ...] = ()
    roofline: bool = False
    bootstrap: int = Field(default=500, ge=0)
    settle_seconds: float = Field(default=0.05, ge=0)
    seed: int = 0

    @model_validator(mode="after")
    def _check_items(self) -> BenchConfig:
        if self.npm_folder is not None and self.target != "web":
            raise ValueError(f"npm_folder belongs to target web, and target is {self.target}")
        for name in ("lengths", "batch_tokens", "thread_sweep"):
            bad = [value for value in getattr(self, name) if value < 1]
            if bad:
                raise ValueError(f"{name} holds {bad[0]}; every item must be 1 or more")
        if any(length < 4 for length in self.lengths):
            raise ValueError(f"lengths holds {min(self.lengths)}; a text of fewer than 4 tokens has no room for words")
        if self.last_groups is not None and self.groups is None:
            raise ValueError(f"last_groups is {self.last_groups}, but groups is not set; give --groups FILE, too")
        if self.roofline and self.target != "cpu":
            raise ValueError(f"roofline measures the processor, and target is {self.target}; use --target cpu")
        return self
