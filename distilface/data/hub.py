"""Data sets of the Hugging Face Hub, through ``datasets``."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from distilface.data.source import DataSource
from distilface.errors import UserError, require


def load_hub(source: DataSource) -> Any:
    """The `datasets.Dataset` that ``source`` names, from the cache or the network.

    Raises:
        UserError: if it can't be fetched, or has no such configuration or split.
    """
    datasets = require("datasets", "train", f"reading the Hub data set {source.path!r}")
    split = source.split or "train"
    try:
        with fail_fast_offline():
            return datasets.load_dataset(source.path, source.config, data_files=source.data_files, split=split)
    except ConnectionError:
        raise UserError(f"{source.path!r} is neither a file here nor a data set that can be fetched from the Hub "
                        "(no connection, and it is not in the cache): check the spelling, or download it on a machine "
                        "with a network and pass the local file") from None
    except Exception as error:  # datasets raises bare ValueErrors, its own and fsspec's types here
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        asked = ", ".join(f"{name}={getattr(source, name)}" for name in source.hub_fields) or f"split={split}"
        raise UserError(f"{source.path!r} is not a file here, and the Hub data set of that name can't be read with "
                        f"{asked}: {reason}") from None


@contextmanager
def fail_fast_offline() -> Iterator[None]:
    """Inside, a Hub whose host name doesn't resolve is treated as offline mode.

    Without it huggingface_hub retries for 20 seconds, a line each, before it looks into the cache.
    """
    constants = require("huggingface_hub.constants", "train", "reading from the Hub")
    before = constants.HF_HUB_OFFLINE
    if not before and not urllib.request.getproxies():  # a proxy resolves names itself
        try:
            socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, 443)
        except OSError:
            constants.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before  # type: ignore[attr-defined]
