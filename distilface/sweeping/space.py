"""What a sweep varies: lists and ranges under dotted keys of a configuration. Torch-free."""

from __future__ import annotations

import difflib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args, get_origin

from pydantic import BaseModel

Setting = dict[str, Any]
"""One value for each swept key."""

_EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")


@dataclass(frozen=True)
class Choices:
    """A value out of a list."""

    choices: tuple[Any, ...]

    def labels(self) -> tuple[Any, ...]:
        """The values as the storage can hold them: a list or a section becomes its JSON."""
        return tuple(label(value) for value in self.choices)

    def value(self, stored: Any) -> Any:
        """The value behind a label."""
        return next(value for value in self.choices if label(value) == stored)

    def probes(self) -> tuple[Any, ...]:
        """Values that stand for all in a check."""
        return self.choices


@dataclass(frozen=True)
class Range:
    """A number from ``low`` to ``high``, both included.

    Attributes:
        log: even in its logarithm.
        step: only ``low``, ``low + step``, ...
        int: whole numbers.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None
    int: bool = False

    def value(self, stored: Any) -> Any:
        """As `Choices.value`: a number is stored as it is."""
        return stored

    def probes(self) -> tuple[Any, ...]:
        """The ends, and a value between them that is no whole number unless all are."""
        if self.int:
            return self.low, self.high
        inner = self.low + (self.step if self.step is not None else 0.6180339887 * (self.high - self.low))
        return self.low, inner, self.high


Values = Choices | Range
_RANGE = tuple(item.name for item in fields(Range))
_OPTIONS = ("choices", *_RANGE)


def label(value: Any) -> Any:
    """A scalar as it is, anything else as JSON."""
    return value if value is None or isinstance(value, str | int | float) else json.dumps(value, sort_keys=True)


def parse_space(given: Any) -> dict[str, Values]:
    """Lists and ranges by dotted key. Keys may also be nested, ``{train: {batch_size: [32, 64]}}``.

    Raises:
        ValueError: naming the key.
    """
    if not isinstance(given, Mapping) or not given:
        raise ValueError(f"got {given!r}; it names keys to vary, for example train.learning_rate: [1.0e-5, 3.0e-5]")
    return {key: _values(key, value) for key, value in _flat(given)}


def _flat(given: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in given.items():
        if isinstance(value, Mapping) and value and not set(value) & set(_OPTIONS):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _values(key: str, given: Any) -> Values:
    if isinstance(given, Choices | Range):
        return given
    if isinstance(given, list | tuple):
        return _choices(key, given)
    if not isinstance(given, Mapping) or not given:
        raise ValueError(f"{key}: got {given!r}; it takes a list of values, or a range {{low: 1, high: 9}}")
    unknown = [name for name in given if name not in _OPTIONS]
    if unknown:
        near = difflib.get_close_matches(str(unknown[0]), _OPTIONS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(_OPTIONS)}"
        raise ValueError(f"{key}: unknown option {unknown[0]!r}; {hint}")
    if "choices" in given:
        if len(given) > 1:
            raise ValueError(f"{key}: choices and {next(name for name in given if name != 'choices')} are both set; "
                             "give a list or a range")
        return _choices(key, given["choices"])
    return _range(key, {name: _number(value) for name, value in given.items()})


def _choices(key: str, given: Any) -> Choices:
    if not isinstance(given, list | tuple) or not given:
        raise ValueError(f"{key}: got {given!r}; name at least one value to try")
    choices = tuple(_number(value) for value in given)
    seen = [json.dumps(value, sort_keys=True) for value in choices]
    twice = next((value for value, text in zip(choices, seen, strict=True) if seen.count(text) > 1), None)
    if len(set(seen)) < len(seen):
        raise ValueError(f"{key}: names {twice!r} twice")
    return Choices(choices)


def _range(key: str, given: dict[str, Any]) -> Range:
    for name in ("low", "high"):
        if name not in given:
            raise ValueError(f"{key}: a range needs low and high, and {name} is missing")
    for name, value in given.items():
        if name in ("log", "int"):
            if not isinstance(value, bool):
                raise ValueError(f"{key}: {name} takes true or false, got {value!r}")
        elif not is_number(value) and not (name == "step" and value is None):
            raise ValueError(f"{key}: {name} takes a number, got {value!r}")
    found = Range(**given)
    if found.low >= found.high:
        raise ValueError(f"{key}: low {found.low} is not below high {found.high}")
    if found.log and found.low <= 0:
        raise ValueError(f"{key}: a log range starts above 0, got low {found.low}")
    if found.int and not all(float(n).is_integer() for n in (found.low, found.high, found.step or 1)):
        raise ValueError(f"{key}: int is true, but low, high and step are not all whole numbers")
    if found.step is not None:
        if found.log:
            raise ValueError(f"{key}: log and step are both set; drop one")
        steps = (found.high - found.low) / found.step if found.step > 0 else 0.0
        if steps < 1 or abs(steps - round(steps)) > 1e-6:
            raise ValueError(f"{key}: step {found.step} does not lead from {found.low} to {found.high}")
    if found.int:
        step = None if found.step is None else int(found.step)
        return Range(int(found.low), int(found.high), found.log, step, True)
    return found


def is_number(value: Any) -> bool:
    """Whether a value can stand on an axis."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(value: Any) -> Any:
    """``1e-5``, which YAML 1.1 takes for a string, as the number it is."""
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value


def count_cells(space: Mapping[str, Values]) -> int:
    """Cells of a grid."""
    return math.prod(len(values.choices) for values in space.values() if isinstance(values, Choices))


def cells(space: Mapping[str, Values]) -> Iterator[Setting]:
    """Every cell of a grid, the last key running fastest."""
    lists = [values.choices for values in space.values() if isinstance(values, Choices)]
    for cell in itertools.product(*lists):
        yield dict(zip(space, cell, strict=True))


def config_keys(model: type[BaseModel], prefix: str = "") -> dict[str, bool]:
    """Every dotted key of a configuration, and whether it names a section."""
    found: dict[str, bool] = {}
    for name, field in model.model_fields.items():
        inner = _nested(field.annotation)
        section = inner is not None and field.annotation is inner
        found[f"{prefix}{name}"] = section
        if inner is not None:
            found |= config_keys(inner, f"{prefix}{name}.")
    return found


def _nested(annotation: Any) -> type[BaseModel] | None:
    """The model in an annotation such as ``Model``, ``Model | None`` or ``tuple[Model, ...]``."""
    if isinstance(annotation, type) and get_origin(annotation) is None and issubclass(annotation, BaseModel):
        return annotation
    return next((inner for part in get_args(annotation) if (inner := _nested(part)) is not None), None)


def check_key(key: str, model: type[BaseModel]) -> None:
    """Refuse a key that is no value of ``model``, or that no sweep may vary.

    Raises:
        ValueError: naming the key.
    """
    known = config_keys(model)
    if key not in known:
        tail = [name for name in known if name.rpartition(".")[2] == key.rpartition(".")[2] and not known[name]]
        near = tail or difflib.get_close_matches(key, [name for name in known if not known[name]], n=1)
        raise ValueError(f"unknown key {key!r}; " + (
            f"did you mean {' or '.join(map(repr, near))}?" if near else
            f"sections: {', '.join(name for name in known if known[name])}"))
    if known[key]:
        below = [name for name in known if name.startswith(f"{key}.") and not known[name]]
        raise ValueError(f"{key!r} is a section; name one of its keys, such as {', '.join(below[:3])}")
    if key == "eval.sts" or key.startswith("eval.sts."):
        raise ValueError(f"{key!r} is what scores are made on, so it can't be varied; set it in base")
    if key == "train.seed":
        raise ValueError("'train.seed' is no setting to choose the best of; list the seeds under seeds, which repeats "
                         "each setting and takes the mean")
