"""Generate docs/configuration.md, the configuration's JSON Schema for editors, and the tables of docs/batch.md."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rayllm.batch.config import (
    Checkpoint,
    HTTPRequestProcessorConfig,
    ProcessorConfig,
    RequestProcessorConfig,
    VLLMProcessorConfig,
)
from rayllm.config.app import AppConfig
from rayllm.config.faults import models_in
from rayllm.config.model import ModelConfig
from rayllm.config.source import HubSource
from rayllm.core.settings import PREFIX, Settings

_HEAD = """\
# Configuration reference

Generated from the schema by `make generate`.

Unknown keys are refused, with a suggestion. Relative paths are looked up beside the file that holds them, then, for a
serve config, in the folder above it, then in the working directory. `serve run` does not say where its config is, so
there only the working directory counts.

`prompt_format` may also be at the top level, and `stopping_sequences` and `stopping_tokens` inside `prompt_format`.
`prompt_format: {use_hugging_face_chat_template: true}` selects the model's own chat template.

Editors with the YAML language server check a model's file against [model.schema.json](model.schema.json) if its first
line is `# yaml-language-server: $schema=../docs/model.schema.json`.
"""


def model_schema() -> dict[str, Any]:
    """JSON Schema of a model's YAML, including the forms that loading rewrites."""
    schema = ModelConfig.model_json_schema()
    prompt_format = schema["$defs"]["PromptFormat"]
    generation = schema["$defs"]["GenerationConfig"]["properties"]
    for key in ("stopping_sequences", "stopping_tokens"):
        prompt_format["properties"][key] = {**generation[key], "default": None}
    own_template = {
        "type": "object",
        "properties": {"use_hugging_face_chat_template": {"const": True}},
        "required": ["use_hugging_face_chat_template"],
        "additionalProperties": False,
    }
    generation["prompt_format"]["anyOf"].append(own_template)
    schema["properties"]["prompt_format"] = generation["prompt_format"]
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "RayLLM model"
    return schema


def reference() -> str:
    """The page docs/configuration.md."""
    parts = [_HEAD, "## A model's YAML\n", *_table(ModelConfig, "")]
    parts += ["\n## `args` of a serve config\n", "| key | type | default | meaning |", "|---|---|---|---|"]
    parts += ["| `llm_configs` | list | required | Model YAML files, folders, globs or inline mappings. |"]
    parts += [_row("router", AppConfig.model_fields["router"]), "\n### `router`\n"]
    parts += _table(typing.cast(type[BaseModel], AppConfig.model_fields["router"].annotation), "router.")
    parts += ["\n## Environment variables\n", "| variable | default | meaning |", "|---|---|---|"]
    for setting in fields(Settings):
        parts.append(f"| `{PREFIX}{setting.name.upper()}` | `{setting.default}` | {setting.metadata['doc']} |")
    return "\n".join(parts) + "\n"


def fields_table(keys: Mapping[str, FieldInfo]) -> str:
    """A table of keys, without those of nested mappings."""
    rows = (_row(name, field) for name, field in keys.items())
    return "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows])


def _table(model: type[BaseModel], prefix: str) -> Iterator[str]:
    yield fields_table(model.model_fields)
    keys = model.model_fields.items()
    below = [(f"{prefix}{name}", found) for name, field in keys for found in models_in(field.annotation)]
    for path, found in below:
        alternatives = [other for other_path, other in below if other_path == path]
        title = f"`{path}`" + (f" as {found.__name__}" if len(alternatives) > 1 else "")
        yield f"\n### {title}\n"
        yield (found.__doc__ or "").strip().splitlines()[0] + "\n"
        yield from _table(found, path + ".")


def _row(name: str, field: FieldInfo) -> str:
    default = "required" if field.is_required() else f"`{_plain(field.default)}`"
    meaning = " ".join((field.description or "").split()).replace("|", "\\|")
    return f"| `{name}` | {_type_name(field.annotation)} | {default} | {meaning} |"


def _plain(value: Any) -> str:
    if value is None or value is PydanticUndefined:
        return "null"
    if isinstance(value, BaseModel):
        return "{}"
    if isinstance(value, tuple):
        return str(list(value)).replace("'", '"')
    return {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value) or '""'


def _type_name(annotation: Any) -> str:
    arguments = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return " \\| ".join(f"`{argument}`" for argument in arguments)
    if origin is typing.Annotated:
        return _type_name(arguments[0])
    if origin in (tuple, list):
        return f"list of {_type_name(arguments[0])}"
    if origin is dict or annotation is dict:
        return "mapping"
    if arguments:
        names = [_type_name(argument) for argument in arguments if argument is not type(None)]
        # A source is mostly written as a string.
        return " \\| ".join(dict.fromkeys(["text", *names] if HubSource in arguments else names))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping"
    return {str: "text", Path: "text", int: "integer", float: "number", bool: "true/false"}.get(annotation, "any")


def batch_reference() -> str:
    """A table per configuration class, shared options first."""
    return "\n".join(_batch_tables())


def _batch_tables() -> Iterator[str]:
    yield _batch_table(ProcessorConfig, "Every processor")
    for config in (VLLMProcessorConfig, RequestProcessorConfig, HTTPRequestProcessorConfig, Checkpoint):
        yield _batch_table(config, f"`{config.__name__}`")


def _batch_table(config: type[ProcessorConfig] | type[Checkpoint], title: str) -> str:
    shared = () if config is ProcessorConfig else ProcessorConfig.model_fields
    own = {name: field for name, field in config.model_fields.items() if name not in shared and not field.exclude}
    return f"### {title}\n\n{(config.__doc__ or '').splitlines()[0]}\n\n{fields_table(own)}\n"
