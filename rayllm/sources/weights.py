"""Which files of a model serving needs, and which it refuses."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rayllm.errors import ConfigError

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
# Duplicates of the weights in other formats, and leftovers of training. `consolidated*` would make vLLM choose
# Mistral's own format over the one that its config.json describes.
NEVER = (
    "original/*",
    "*.gguf",
    "*.onnx",
    "onnx/*",
    "optimizer*",
    "training_args*",
    "consolidated*",
    "*.msgpack",
    "*.h5",
)


def find_weights(folder: Path, allow_pickle: bool, model_id: str) -> list[Path]:
    """The weight files in `folder`.

    Raises:
        ConfigError: the folder is no model, or holds only pickled weights and those are not allowed.
    """
    if not (folder / "config.json").is_file() and not (folder / "params.json").is_file():
        raise ConfigError(f"model `{model_id}`: {folder} is no model folder: it holds no config.json.")
    if found := sorted(folder.glob("*.safetensors")):
        return found
    pickled = _matching(folder, PICKLED)
    if pickled and allow_pickle:
        return pickled
    if pickled:
        raise ConfigError(
            f"model `{model_id}`: {folder} holds only pickled weights ({pickled[0].name}), which can run code when "
            "loaded. Convert them to safetensors, or set model_loading_config.allow_pickle_weights: true."
        )
    raise ConfigError(f"model `{model_id}`: {folder} holds no *.safetensors file.")


def _matching(folder: Path, patterns: Iterable[str]) -> list[Path]:
    return sorted(path for pattern in patterns for path in folder.glob(pattern))
