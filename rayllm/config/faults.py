"""Pydantic's findings, told to a person: `file: key.path: what is wrong, and how to mend it`."""

from __future__ import annotations

import typing
from collections.abc import Iterable
from difflib import get_close_matches

from pydantic import BaseModel, ValidationError

from rayllm.errors import ConfigError


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A half-sentence with the closest known name, or "" where none is close."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean `{close[0]}`?" if close else ""


def config_error(name: str, model: type[BaseModel], error: ValidationError) -> ConfigError:
    """All faults of one file, called `name`, as a single error with one line each."""
    lines = [f"{name}: {_line(model, dict(item))}" for item in error.errors(include_url=False, include_input=False)]
    return ConfigError("\n".join(dict.fromkeys(lines)))


def _line(model: type[BaseModel], item: dict[str, typing.Any]) -> str:
    parts = [part for part in item["loc"] if not _is_union_tag(part)]
    path = ".".join(str(part) for part in parts)
    if item["type"] == "extra_forbidden":
        known = _fields_at(model, parts[:-1])
        hint = did_you_mean(str(parts[-1]), known) or f"; known here: {', '.join(sorted(known))}."
        return f"{path}: unknown key{hint}"
    if item["type"] == "missing":
        return f"{path}: is required."
    message = str(item["msg"]).removeprefix("Value error, ").rstrip(".")
    return f"{path}: {message[0].lower() + message[1:]}." if path else f"{message}."


def _is_union_tag(part: object) -> bool:
    # Pydantic puts the name of the union's branch into the location: `function-before[...]`, `HubSource`, `list[str]`.
    return isinstance(part, str) and ("[" in part or (part[:1].isupper() and part.endswith("Source")))


def _fields_at(model: type[BaseModel], path: list[object]) -> list[str]:
    """Names of the keys that exist at `path` below `model`; a union gives the keys of all its branches."""
    models = [model]
    for part in path:
        if isinstance(part, int):
            continue
        annotations = [m.model_fields[str(part)].annotation for m in models if str(part) in m.model_fields]
        models = [found for annotation in annotations for found in models_in(annotation)]
    return [name for found in models for name in found.model_fields]


def models_in(annotation: object) -> list[type[BaseModel]]:
    """The configuration classes that a field's annotation mentions, at any depth."""
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [found for argument in typing.get_args(annotation) for found in models_in(argument)]
