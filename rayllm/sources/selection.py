"""Selects the files of a model that serving needs, and refuses pickled weights.

Some models hold their weights twice: as transformers has them, and as Mistral does (`consolidated*`, with params.json
in place of config.json). vLLM's `load_format` and `config_format` say which of the two is loaded.
"""

import json
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from rayllm.core.errors import ConfigError

CONFIG = "config.json"
MISTRAL_CONFIG = "params.json"
INDEX = "model.safetensors.index.json"
MISTRAL_INDEX = "consolidated.safetensors.index.json"
SAFETENSORS = ("*.safetensors",)
PICKLED = ("*.bin", "*.pt", "*.pth")
# Tokenizer, processor, code and everything else that is not weights.
NOT_WEIGHTS = (
    *("*.json", "*.txt", "*.model", "*.model.v*", "*.tiktoken", "*.jinja", "*.py"),
    *("additional_chat_templates/*", "1_Pooling/*", "2_Dense/*"),
)
# Weights in other formats, and leftovers of training.
EXCLUDED = ("original/*", "*.gguf", "*.onnx", "onnx/*", "optimizer*", "training_args*", "*.msgpack", "*.h5")
# Mistral's own format.
CONSOLIDATED = ("consolidated*",)

MistralPriority = Literal["only", "first", "last"]
"""When weights in Mistral's own format are used: as the only format, before other formats, or after them."""


def mistral_priority(arguments: Mapping[str, Any] | None, in_place: bool) -> MistralPriority:
    """When weights in Mistral's own format are used; `in_place` if vLLM reads the folder that files are selected from.

    By default vLLM prefers them if its folder has both. So they are not downloaded beside other weights, and vLLM loads
    what config.json describes. Source: vLLM 0.32, `DefaultModelLoader._prepare_weights`.
    """
    arguments = arguments or {}
    load_format = str(arguments.get("load_format") or "auto").lower()
    if load_format == "mistral":
        return "only"
    is_first = load_format == "auto" and (in_place or arguments.get("config_format") == "mistral")
    return "first" if is_first else "last"


def select_files(
    paths: Iterable[str], uri: str, allow_pickle: bool, weights: bool, priority: MistralPriority = "last"
) -> list[str]:
    """Select the paths that serving needs; safetensors are preferred to pickled weights.

    Args:
        paths: relative paths of all files.
        uri: the store, for errors.
        allow_pickle: accept a model with pickled weights only.
        weights: false selects only what a tokenizer needs.
        priority: when weights in Mistral's own format are used.

    Raises:
        ConfigError: there are no weights that may be loaded.
    """
    candidates = [path for path in paths if not _matches(path, EXCLUDED)]
    others = [path for path in candidates if _matches(path, NOT_WEIGHTS) and not _matches(path, CONSOLIDATED)]
    if not weights:
        return others
    selected = _select_weights(candidates, uri, allow_pickle, priority)
    if is_mistral(selected):
        others = [path for path in others if path != INDEX] + [path for path in candidates if path == MISTRAL_INDEX]
    return others + selected


def is_mistral(weights: Iterable[str]) -> bool:
    """Whether selected weights are in Mistral's own format."""
    return all(_matches(path, CONSOLIDATED) for path in weights)


def config_path(paths: Iterable[str], weights: Iterable[str], arguments: Mapping[str, Any] | None) -> str:
    """The file among `paths` that vLLM reads the configuration from. Source: vLLM 0.32, `get_config`."""
    config_format = (arguments or {}).get("config_format") or "auto"
    by_itself = config_format == "auto" and is_mistral(weights) and MISTRAL_CONFIG in set(paths)
    return MISTRAL_CONFIG if by_itself or config_format == "mistral" else CONFIG


def _select_weights(paths: list[str], uri: str, allow_pickle: bool, priority: MistralPriority) -> list[str]:
    safetensors = [path for path in paths if _matches(path, SAFETENSORS)]
    consolidated = [path for path in safetensors if _matches(path, CONSOLIDATED)]
    if priority == "only" and not consolidated:
        raise ConfigError(
            f"{uri} holds no consolidated*.safetensors file, which `load_format: mistral` loads; "
            "remove `engine_kwargs.load_format` if it holds other weights."
        )
    if consolidated and priority != "last":
        return consolidated
    if safetensors:
        return [path for path in safetensors if path not in consolidated] or consolidated
    pickled = [path for path in paths if _matches(path, PICKLED)]
    if pickled and not allow_pickle:
        raise ConfigError(
            f"{uri} holds only pickled weights ({pickled[0]}), which can run code when loaded. Convert them to "
            "safetensors, or set model_loading_config.allow_pickle_weights: true."
        )
    if not pickled:
        raise ConfigError(f"{uri} holds no *.safetensors file.")
    return pickled


def find_weights(
    folder: Path, allow_pickle: bool, model_id: str, arguments: Mapping[str, Any] | None = None
) -> list[Path]:
    """Find the weight files that vLLM loads from a local folder. Raises ConfigError if any is missing or unsafe."""
    if not (folder / CONFIG).is_file() and not (folder / MISTRAL_CONFIG).is_file():
        raise ConfigError(f"model `{model_id}`: {folder} is not a model folder: it holds no config.json.")
    names = [path.name for path in folder.iterdir() if path.is_file()]
    try:
        weights = _select_weights(names, str(folder), allow_pickle, mistral_priority(arguments, True))
        _check_index(folder, weights)
    except ConfigError as error:
        raise ConfigError(f"model `{model_id}`: {error.message}") from None
    return [folder / name for name in sorted(weights)]


def _check_index(folder: Path, weights: list[str]) -> None:
    """Refuse an incomplete model, such as an upload in progress."""
    index = folder / (MISTRAL_INDEX if is_mistral(weights) else INDEX)
    if not index.is_file() or not _matches(weights[0], SAFETENSORS):
        return
    try:
        indexed = set(json.loads(index.read_text())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{index} is not an index of weights.") from None
    if missing := sorted(indexed - set(weights)):
        raise ConfigError(f"{folder} is not complete: {index.name} names {missing[0]}, which is missing.")


def _matches(path: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)
