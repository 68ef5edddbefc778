"""Dropping whole layers: which ones stay, and taking the others out.

Layers are numbered from 0, as in the names of a checkpoint's tensors. Source for dropping layers and fine-tuning what
is left: Sajjad et al., "On the effect of dropping layers of pre-trained transformer models" (2023); every other layer
is how DistilBERT was initialised (Sanh et al., 2019).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from distilface.errors import UserError
from distilface.shrinking.architecture import family_of, layers_of


def choose_layers(total: int, keep: Sequence[int] | None = None, count: int | None = None,
                  ranking: str | Path | None = None) -> tuple[int, ...]:
    """The layers to keep, ascending: those given, or ``count`` evenly spaced ones, or the ``count`` best of a ranking.

    Raises:
        UserError: for contradicting choices, no layer, a layer out of range or given twice.
    """
    if keep is not None:
        if count is not None or ranking is not None:
            raise UserError("keep_layers names the layers to keep; drop layers and ranking, or keep_layers")
        return _checked(keep, total, "keep_layers")
    if count is None:
        raise UserError("ranking orders the layers; say how many of them to keep with layers")
    if not 1 <= count <= total:
        raise UserError(f"layers={count} is out of range; the encoder has {total} layers, keep 1 to {total}")
    if ranking is None:
        return evenly_spaced(total, count)
    ranked = read_ranking(ranking)
    _checked(ranked, total, f"ranking {str(ranking)!r}")
    if len(ranked) < count:
        raise UserError(f"ranking {str(ranking)!r} names {len(ranked)} layers; layers={count} needs at least {count}")
    return tuple(sorted(ranked[:count]))


def evenly_spaced(total: int, count: int) -> tuple[int, ...]:
    """``count`` of ``total`` layers: cut them into ``count`` runs as equal as can be and keep the last of each run.

    So the last layer always stays: ``evenly_spaced(6, 3)`` is ``(1, 3, 5)``.
    """
    return tuple((index + 1) * total // count - 1 for index in range(count))


def read_ranking(file: str | Path) -> list[int]:
    """Layers from most to least important: a JSON list, or the column ``layer`` of a table (CSV, TSV, JSONL, Parquet).

    The JSON list holds numbers, or objects with the key ``layer``.
    """
    path = Path(file)
    if path.suffix.lower() == ".json":
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"ranking {str(file)!r} can't be read as JSON: {error}") from None
        cells = values if isinstance(values, list) else [values]
        return [_layer(cell.get("layer") if isinstance(cell, dict) else cell, str(file)) for cell in cells]
    from distilface.data.source import DataSource
    from distilface.data.tables import open_table

    table = open_table(DataSource(path=str(file), columns=("layer",)), 1)
    return [_layer(cell, table.where(number)) for number, (cell,) in table.rows]


def drop_layers(backbone: nn.Module, kept: Sequence[int]) -> None:
    """Take every layer but ``kept`` out of ``backbone``, in place, and tell its config."""
    family = family_of(backbone, "dropping layers")
    layers = layers_of(backbone, family)
    holder, _, name = family.layers.rpartition(".")
    setattr(backbone.get_submodule(holder), name, nn.ModuleList(layers[index] for index in kept))
    backbone.config.num_hidden_layers = len(kept)  # DistilBERT's config maps this to n_layers


def _checked(layers: Sequence[int], total: int, what: str) -> tuple[int, ...]:
    if not layers:
        raise UserError(f"{what} names no layer; an encoder keeps at least one of its {total} layers")
    for layer in layers:
        if not 0 <= layer < total:
            raise UserError(f"{what} names layer {layer}; the encoder has layers 0 to {total - 1}")
    repeated = sorted({layer for layer in layers if list(layers).count(layer) > 1})
    if repeated:
        raise UserError(f"{what} names layer {repeated[0]} more than once; name each layer to keep once")
    return tuple(sorted(layers))


def _layer(cell: Any, where: str) -> int:
    text = str(cell).strip()
    if isinstance(cell, bool) or not text.removeprefix("-").isdecimal():
        raise UserError(f"{where}: expected a layer's number, got {text[:40]!r}; list the layers from most to least "
                        "important, numbered from 0")
    return int(text)
