"""Selects the files of a model that serving needs, and refuses pickled weights."""

from __future__ import annotations

import json
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from rayllm.errors import ConfigError

INDEX = "model.safetensors.index.json"
SAFETENSORS = ("*.safetensors",)
PICKLED = ("*.bin", "*.pt", "*.pth")
# Tokenizer, processor, code and everything else that is not weights.
NOT_WEIGHTS = (
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
# Weights in other formats, and leftovers of training.
EXCLUDED = (
    "original/*",
    "*.gguf",
    "*.onnx",
    "onnx/*",
    "optimizer*",
    "training_args*",
    "*.msgpack",
    "*.h5",
)
# Mistral's own format. vLLM would prefer it to the weights that config.json describes.
CONSOLIDATED = ("consolidated*",)


def select_files(paths: Iterable[str], uri: str, allow_pickle: bool, weights: bool) -> list[str]:
    """Select the paths that serving needs; safetensors are preferred to pickled weights.

    Args:
        paths: relative paths of all files.
        uri: the store, for errors.
        allow_pickle: accept a model with pickled weights only.
        weights: false selects only what a tokenizer needs.

    Raises:
        ConfigError: there are no weights that may be loaded.
    """
    candidates = [path for path in paths if not _matches(path, EXCLUDED)]
    others = [path for path in candidates if _matches(path, NOT_WEIGHTS) and not _matches(path, CONSOLIDATED)]
    return others + _select_weights(candidates, uri, allow_pickle) if weights else others


def _select_weights(paths: list[str], uri: str, allow_pickle: bool) -> list[str]:
    safetensors = [path for path in paths if _matches(path, SAFETENSORS)]
    if safetensors:
        return [path for path in safetensors if not _matches(path, CONSOLIDATED)] or safetensors
    pickled = [path for path in paths if _matches(path, PICKLED)]
    if pickled and not allow_pickle:
        raise ConfigError(
            f"{uri} holds only pickled weights ({pickled[0]}), which can run code when loaded. Convert them to "
            "safetensors, or set model_loading_config.allow_pickle_weights: true."
        )
    if not pickled:
        raise ConfigError(f"{uri} holds no *.safetensors file.")
    return pickled


def find_weights(folder: Path, allow_pickle: bool, model_id: str) -> list[Path]:
    """Find the weight files in a local folder.

    Raises:
        ConfigError: the folder is no model, holds only pickled weights although those are not allowed, or lacks a file
            that its index names.
    """
    if not (folder / "config.json").is_file() and not (folder / "params.json").is_file():
        raise ConfigError(f"model `{model_id}`: {folder} is no model folder: it holds no config.json.")
    names = [path.name for path in folder.iterdir() if path.is_file()]
    try:
        weights = _select_weights(names, str(folder), allow_pickle)
        _check_index(folder, weights)
    except ConfigError as error:
        raise ConfigError(f"model `{model_id}`: {error.message}") from None
    return [folder / name for name in sorted(weights)]


def _check_index(folder: Path, weights: list[str]) -> None:
    """Refuse an incomplete model, such as an upload in progress."""
    index = folder / INDEX
    if not index.is_file() or not _matches(weights[0], SAFETENSORS):
        return
    try:
        indexed = set(json.loads(index.read_text())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{index} is no index of weights.") from None
    if missing := sorted(indexed - set(weights)):
        raise ConfigError(f"{folder} is not complete: {INDEX} names {missing[0]}, which is missing.")


def _matches(path: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)
