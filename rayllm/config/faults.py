"""Validation errors for people, as `file: key.path: what is wrong, and how to fix it`."""

import typing
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

from pydantic import BaseModel, ValidationError

from rayllm.core.errors import ConfigError


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A clause that suggests the most similar known name; "" if none is similar."""
    close = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean `{close[0]}`?" if close else ""


def config_error(name: str, model: type[BaseModel], error: ValidationError) -> ConfigError:
    """Convert pydantic's error for a file with this name to ours, with one line per fault."""
    lines = [f"{name}: {_line(model, dict(item))}" for item in error.errors(include_url=False, include_input=False)]
    return ConfigError("\n".join(dict.fromkeys(lines)))


@contextmanager
def validating(name: str, model: type[BaseModel]) -> Iterator[None]:
    """Raise what pydantic finds in a file with this name as `config_error` says it."""
    try:
        yield
    except ValidationError as error:
        raise config_error(name, model, error) from None


def _line(model: type[BaseModel], item: dict[str, typing.Any]) -> str:
    parts = [part for part in item["loc"] if not _is_union_tag(part)]
    path = ".".join(str(part) for part in parts)
    if item["type"] == "extra_forbidden":
        known = _fields_at(model, parts[:-1])
        hint = did_you_mean(str(parts[-1]), known) or f"; known here: {', '.join(sorted(known))}."
        return f"{path}: unknown key{hint}"
    if item["type"] == "missing":
        return f"{path}: is required."
    is_no_list = item["type"] in ("list_type", "tuple_type")
    message = "must be a list" if is_no_list else str(item["msg"]).removeprefix("Value error, ").rstrip(".")
    return f"{path}: {message[0].lower() + message[1:]}." if path else f"{message}."


def _is_union_tag(part: object) -> bool:
    # Pydantic's locations include the branch of a union: `function-before[...]`, `HubSource`, `list[str]`.
    return isinstance(part, str) and ("[" in part or (part[:1].isupper() and part.endswith("Source")))


def _fields_at(model: type[BaseModel], path: list[object]) -> list[str]:
    """Names of the keys at `path` below `model`; for a union, the keys of all its branches."""
    models = [model]
    for part in path:
        if isinstance(part, int):
            continue
        annotations = [m.model_fields[str(part)].annotation for m in models if str(part) in m.model_fields]
        models = [each for annotation in annotations for each in models_in(annotation)]
    return [name for each in models for name in each.model_fields]


def models_in(annotation: object) -> list[type[BaseModel]]:
    """The schemas in a field's annotation, at any depth."""
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [each for argument in typing.get_args(annotation) for each in models_in(argument)]
