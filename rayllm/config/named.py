"""Resolve a model's name on the command line: a file, a hub id, a folder or a bucket URI."""

from __future__ import annotations

import re
from pathlib import Path

from rayllm.config.load import load_model, model_from
from rayllm.config.model import ModelConfig

_SCHEMES = ("s3://", "gs://")


def named_model(text: str, model_id: str | None = None) -> ModelConfig:
    """The configuration for a model file, a hub id, a local folder or a bucket URI.

    Without `model_id`, the model's name is derived from its source or file.

    Raises:
        ConfigError: it is none of these, or the file is invalid.
    """
    if text.endswith((".yaml", ".yml")):
        return load_model(text)
    path = Path(text).expanduser()
    if text.startswith(_SCHEMES):
        name = _name(text)
    elif path.is_dir():
        name, text = _name(str(path.resolve())), str(path.absolute())
    else:
        name = _name(text) if text.startswith(("/", ".", "~")) else text
    return model_from(
        {"model_loading_config": {"model_id": model_id or name, "model_source": text}}, "model", (Path.cwd(),)
    )


def _name(path: str) -> str:
    """The last part of a path, reduced to a valid model id."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path.rstrip("/").rpartition("/")[2]).lstrip("-._") or "model"


def file_name(model_id: str) -> str:
    """File name for a model: its id with `--` for `/`, and `_` for `.` and `:`."""
    return model_id.replace("/", "--").replace(".", "_").replace(":", "_") + ".yaml"
