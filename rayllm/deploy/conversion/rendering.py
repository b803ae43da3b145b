"""Render converted mappings as YAML."""

from __future__ import annotations

from rayllm.config.legacy import tables
from rayllm.config.legacy.nested import Mapping
from rayllm.config.yaml import dump_yaml

PARAGRAPHS: list[list[str]] = tables()["paragraphs"]


def model_text(config: Mapping) -> str:
    """Render a model's file."""
    return "\n".join(dump_yaml(part) for part in _parts(config))


def ordered(config: Mapping) -> Mapping:
    """A model's mapping in the order of its file, for a serve config with inline models."""
    return {key: value for part in _parts(config) for key, value in part.items()}


def _parts(config: Mapping) -> list[Mapping]:
    rest = [key for key in config if not any(key in keys for keys in PARAGRAPHS)]
    parts = ({key: config[key] for key in keys if key in config} for keys in (*PARAGRAPHS, rest))
    return [part for part in parts if part]


def serve_text(config: Mapping) -> str:
    """Render a serve config."""
    head = {key: value for key, value in config.items() if key != "applications"}
    parts = [head, {"applications": config["applications"]}]
    return "\n".join(dump_yaml(part) for part in parts if part)
