"""Typed configuration: defaults in code, YAML holds only differences, ``--set`` has the last word.

Unknown keys and contradictions are errors that name the key. The resolved configuration is written beside every output.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from distilface.errors import UserError


class StrictModel(BaseModel):
    """A frozen configuration value that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


Config = TypeVar("Config", bound=StrictModel)


def load_config(model: type[Config], file: str | Path | None = None, sets: Sequence[str] = (),
                overrides: Mapping[str, Any] | None = None) -> Config:
    """Build ``model`` from its defaults, then ``file`` (YAML), then ``overrides`` (flags), then ``sets``.

    Args:
        file: YAML file holding differences from the defaults.
        sets: ``section.key=value`` strings; the value is read as YAML, so ``1e-5``, ``true`` and ``[1, 2]`` have types.
        overrides: nested mapping of values given by command-line flags; ``None`` leaves mean "not given".

    Raises:
        UserError: naming the key, on an unknown key, a wrong type or a contradiction.
    """
    values: dict[str, Any] = read_yaml(Path(file)) if file is not None else {}
    if overrides:
        _merge(values, overrides)
    return build_config(model, values, sets, str(file) if file else "the configuration")


def build_config(model: type[Config], values: dict[str, Any], sets: Sequence[str] = (),
                 source: str = "the configuration") -> Config:
    """Build ``model`` from ``values``, then ``sets``; errors begin with ``source``. See `load_config`."""
    for item in sets:
        key, separator, text = item.partition("=")
        if not separator or not key.strip():
            raise UserError(f"--set got {item!r}; it takes section.key=value, for example train.learning_rate=1e-5")
        assign(values, key.strip().split("."), _scalar(text))
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise UserError(_explain(error, model, source)) from error


def dump_config(config: StrictModel) -> str:
    """The resolved configuration as YAML, every default spelled out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def differences(now: Any, before: Any, prefix: str = "") -> Sequence[tuple[str, Any, Any]]:
    """Where two JSON values differ: the key (``train.seed``), the value before and the value now."""
    if isinstance(now, dict) and isinstance(before, dict):
        keys = sorted(now.keys() | before.keys())
        return [found for key in keys for found in differences(now.get(key), before.get(key), f"{prefix}{key}.")]
    if isinstance(now, list) and isinstance(before, list) and len(now) == len(before):
        return [found for index, pair in enumerate(zip(now, before, strict=True))
                for found in differences(*pair, f"{prefix}{index}.")]
    return [] if now == before else [(prefix.rstrip(".").removeprefix("config."), before, now)]


def _scalar(text: str) -> Any:
    """Read a YAML scalar, and also ``1e-5``, which YAML 1.1 takes for a string."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"--set value {text!r} is not valid YAML; quote it") from error
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def read_yaml(file: Path) -> dict[str, Any]:
    """The sections and keys of a YAML file; `UserError` where it holds anything else."""
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"config file {str(file)!r} does not exist; the shipped ones are in configs/") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"config file {str(file)!r} can't be read: {error}") from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" at line {where.line + 1}" if where is not None else ""
        raise UserError(f"config file {str(file)!r} is not valid YAML{line}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UserError(f"config file {str(file)!r} holds a {type(values).__name__}; it must hold sections and keys")
    return values


def _merge(into: dict[str, Any], extra: Mapping[str, Any]) -> None:
    for key, value in extra.items():
        if value is None:
            continue
        if isinstance(value, Mapping):
            _merge(_section(into, key), value)
        else:
            into[key] = value


def assign(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set the key at ``path`` (section, section, ..., key), making sections on the way."""
    for key in path[:-1]:
        values = _section(values, key)
    values[path[-1]] = value


def _section(values: dict[str, Any], key: str) -> dict[str, Any]:
    if values.get(key) is None:
        values[key] = {}
    if not isinstance(values[key], dict):
        raise UserError(f"{key!r} is set to {values[key]!r}; it is a section, so set one of its keys ({key}.KEY=VALUE)")
    return values[key]  # type: ignore[no-any-return]


def _explain(error: ValidationError, model: type[BaseModel], source: str) -> str:
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"]) or "(whole file)"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        known = _fields_at(model, first["loc"][:-1])
        near = difflib.get_close_matches(str(first["loc"][-1]), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
        return f"{source}: unknown key {key!r}; {hint}{more}"
    message = first["msg"].removeprefix("Value error, ")
    received = f", got {first['input']!r}" if first["type"] not in ("value_error", "missing") else ""
    return f"{source}: {key}: {message}{received}{more}"


def _fields_at(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    for part in location:
        if isinstance(part, int):  # an item of a list; the list's own item type was taken a step before
            continue
        field = model.model_fields.get(part)
        if field is None:
            break
        candidates = (field.annotation, *get_args(field.annotation))
        nested = [kind for kind in candidates
                  if get_origin(kind) is None and isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not nested:
            break
        model = nested[0]
    return list(model.model_fields)
