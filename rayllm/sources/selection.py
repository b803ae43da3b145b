"""Which files of a model serving needs, and which it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from rayllm.errors import ConfigError

INDEX = "model.safetensors.index.json"
SAFETENSORS = ("*.safetensors",)
PICKLED = ("*.bin", "*.pt", "*.pth")
# What a tokenizer, a processor and a model's code may consist of, beside the weights.
BESIDE_WEIGHTS = (
    "*.json",
    "*.txt",
    "*.model",
    "*.model.v*",
    "*.tiktoken",
    "*.jinja",
    "additional_chat_templates/*",
    "*.py",
    "1_Pooling/*",
    "2_Dense/*",
)
# Duplicates of the weights in other formats, and leftovers of training.
NEVER = (
    "original/*",
    "*.gguf",
    "*.onnx",
    "onnx/*",
    "optimizer*",
    "training_args*",
    "*.msgpack",
    "*.h5",
)
# Mistral's own format. Beside the other it would make vLLM choose it over what config.json describes.
CONSOLIDATED = ("consolidated*",)


def needed(paths: Iterable[str], where: str, allow_pickle: bool, weights: bool) -> list[str]:
    """Those of a place's `paths` that serving needs: safetensors rather than pickled weights where there are both.

    Args:
        paths: relative paths of all files there are.
        where: the place, for errors.
        allow_pickle: accept a place that holds only pickled weights.
        weights: false leaves the weights out, for a tokenizer.

    Raises:
        ConfigError: it holds no weights that may be loaded.
    """
    found = [path for path in paths if not _matches(path, NEVER)]
    beside = [path for path in found if _matches(path, BESIDE_WEIGHTS) and not _matches(path, CONSOLIDATED)]
    return beside + _weights(found, where, allow_pickle) if weights else beside


def _weights(paths: list[str], where: str, allow_pickle: bool) -> list[str]:
    safe = [path for path in paths if _matches(path, SAFETENSORS)]
    if safe:
        return [path for path in safe if not _matches(path, CONSOLIDATED)] or safe
    pickled = [path for path in paths if _matches(path, PICKLED)]
    if pickled and not allow_pickle:
        raise ConfigError(
            f"{where} holds only pickled weights ({pickled[0]}), which can run code when loaded. Convert them to "
            "safetensors, or set model_loading_config.allow_pickle_weights: true."
        )
    if not pickled:
        raise ConfigError(f"{where} holds no *.safetensors file.")
    return pickled


def find_weights(folder: Path, allow_pickle: bool, model_id: str) -> list[Path]:
    """The weight files in a local folder.

    Raises:
        ConfigError: the folder is no model, holds only pickled weights and those are not allowed, or lacks a file that
            its index names.
    """
    if not (folder / "config.json").is_file() and not (folder / "params.json").is_file():
        raise ConfigError(f"model `{model_id}`: {folder} is no model folder: it holds no config.json.")
    names = [path.name for path in folder.iterdir() if path.is_file()]
    try:
        found = _weights(names, str(folder), allow_pickle)
        _check_index(folder, found)
    except ConfigError as error:
        raise ConfigError(f"model `{model_id}`: {error.message}") from None
    return [folder / name for name in sorted(found)]


def _check_index(folder: Path, found: list[str]) -> None:
    """Refuse a model that is not all there: half an upload, say."""
    index = folder / INDEX
    if not index.is_file() or not _matches(found[0], SAFETENSORS):
        return
    try:
        named = set(json.loads(index.read_text())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{index} is no index of weights.") from None
    if lacking := sorted(named - set(found)):
        raise ConfigError(f"{folder} is not complete: {INDEX} names {lacking[0]}, which is not there.")


def _matches(path: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)
