"""The shards of a folder on a Ray cluster. Ray Data owns the work: who does what, and again after a loss.

A shard is written whole under a name that the plan gives it, so one that is made twice is there once.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from distilface.encoding.folder import ShardEncoder
from distilface.errors import DistilfaceError, GateError, UserError, require
from distilface.loading import sha256_of
from distilface.runtime import Encoder
from distilface.shards import Shard, ShardSet

Batch = dict[str, Any]


class ShardActor:
    """One encoder in one process of the cluster, called with a batch of shard numbers.

    What the user can mend comes back as an answer, because Ray would try again and then bury it in its own traceback.
    """

    def __init__(self, bundle: str, options: dict[str, Any], folder: str, paths: Sequence[str],
                 batch_tokens: int) -> None:
        self._made_from = bundle, options, folder, paths, batch_tokens
        self._worker: ShardEncoder | None = None

    def __call__(self, batch: Batch) -> Batch:
        """Make the shards: ``rows`` of each, or ``error`` and the ``exit_code`` of its kind."""
        rows, error, code = 0, "", 0
        try:
            worker = self._worker = self._worker or self._open()
            shards = worker.shards.plan.shards
            rows = sum(worker.encode(shards[int(number)]).rows for number in batch["shard"])
        except DistilfaceError as problem:
            error, code = str(problem), problem.exit_code
        except OSError as problem:
            error, code = f"{problem.strerror or problem} ({problem.filename})", UserError.exit_code
        return {"rows": [rows], "error": [error], "exit_code": [code]}

    def _open(self) -> ShardEncoder:
        bundle, options, folder, paths, batch_tokens = self._made_from
        encoder, shards = Encoder.load(bundle, **options), ShardSet.open(folder)
        if sha256_of(encoder.graph) != shards.plan.settings.graph_sha256:
            raise UserError(f"the bundle {bundle!r} of this machine is another than the one the run began with; all "
                            "machines must see the same files")
        return ShardEncoder(encoder, shards, [Path(path) for path in paths], batch_tokens)


def encode_on_ray(encoder: Encoder, shards: ShardSet, missing: Sequence[Shard], paths: Sequence[Path],
                  batch_tokens: int, actors: int | None, done: Callable[[int], None]) -> None:
    """Make ``missing`` on the cluster of RAY_ADDRESS, or on one started on this machine when there is none.

    Raises:
        UserError, GateError: what an actor met. A worker that was lost is made good by Ray.
    """
    if encoder.folder is None:
        raise UserError("engine 'ray' opens the bundle again on each machine; make the encoder with Encoder.load")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports to its makers unless told not to
    ray: Any = require("ray", "ray", "engine 'ray'")
    data: Any = require("ray.data", "ray", "engine 'ray'")
    started = not ray.is_initialized()
    if started:
        ray.init(logging_level="ERROR", log_to_driver=False)
    data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    settings = shards.plan.settings
    options = {"variant": settings.variant, "threads": encoder.threads, "provider": encoder.provider,
               "special_tokens": settings.special_tokens, "max_seq_length": settings.max_seq_length,
               "backend": encoder.backend}
    processors = int(ray.cluster_resources().get("CPU", 1))
    count = min(len(missing), actors or max(1, processors // encoder.threads))
    numbers = {shard.name: number for number, shard in enumerate(shards.plan.shards)}
    try:
        todo = data.from_items([{"shard": numbers[shard.name]} for shard in missing], override_num_blocks=len(missing))
        results = todo.map_batches(
            ShardActor, batch_size=1, num_cpus=encoder.threads, compute=data.ActorPoolStrategy(size=count),
            # Small on purpose: what is large lies in a store that a lost machine takes with it.
            fn_constructor_args=(str(encoder.folder.resolve()), options, str(shards.folder.resolve()),
                                 [str(path.resolve()) for path in paths], batch_tokens))
        for row in results.iter_rows():
            if row["error"]:
                raise (UserError if row["exit_code"] == UserError.exit_code else GateError)(row["error"])
            done(int(row["rows"]))
    except ray.exceptions.RayError as error:
        raise GateError(f"Ray gave up: {str(error).strip().splitlines()[-1]}") from None
    finally:
        if started:
            ray.shutdown()
