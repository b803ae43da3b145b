"""Makes old import paths of vLLM work, for users' guided decoding backends and tool parser plugins."""

import importlib
import sys
from collections.abc import Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Old module → modules with its names today, the most used first.
_MOVED_MODULES = {
    "vllm.entrypoints.openai.protocol": (
        "vllm.entrypoints.openai.chat_completion.protocol",
        "vllm.entrypoints.openai.completion.protocol",
        "vllm.entrypoints.serve.engine.protocol",
        "vllm.entrypoints.generate.base.protocol",
        "vllm.entrypoints.openai.engine.protocol",
        "vllm.entrypoints.openai.models.protocol",
        "vllm.entrypoints.openai.responses.protocol",
        "vllm.entrypoints.serve.tokenize.protocol",
        "vllm.entrypoints.serve.lora.protocol",
        "vllm.entrypoints.pooling.embed.protocol",
        "vllm.entrypoints.pooling.classify.protocol",
        "vllm.entrypoints.pooling.scoring.protocol",
        "vllm.entrypoints.pooling.pooling.protocol",
        "vllm.entrypoints.speech_to_text.transcription.protocol",
        "vllm.entrypoints.speech_to_text.translation.protocol",
    ),
    "vllm.entrypoints.openai.tool_parsers": ("vllm.tool_parsers",),
    "vllm.entrypoints.openai.tool_parsers.abstract_tool_parser": ("vllm.tool_parsers.abstract_tool_parser",),
    "vllm.entrypoints.openai.tool_parsers.utils": ("vllm.tool_parsers.utils",),
    "vllm.transformers_utils.tokenizer": ("vllm.tokenizers",),
}
# Renamed names: old module → name → name today.
_RENAMED_NAMES = {"vllm.transformers_utils.tokenizer": {"AnyTokenizer": "TokenizerLike"}}


def install() -> None:
    """Make vLLM's old import paths work in this process. Imports vLLM."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        # Last, so that existing modules win.
        sys.meta_path.append(_Finder())
    parameters = importlib.import_module("vllm.sampling_params")
    if not hasattr(parameters, "LogitsProcessor"):
        logits_process = importlib.import_module("vllm.logits_process")
        parameters.LogitsProcessor = logits_process.LogitsProcessor  # type: ignore[attr-defined]


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # Some old modules had submodules.
        return ModuleSpec(fullname, self, is_package=True) if fullname in _MOVED_MODULES else None

    def exec_module(self, module: ModuleType) -> None:
        # Resolved lazily, so that unused modules are not imported.
        module.__getattr__ = partial(_resolve, module.__name__)  # type: ignore[method-assign]


def _resolve(module: str, name: str) -> Any:
    """A name of an old module. Python turns the AttributeError of `from … import` into an ImportError."""
    if not name.startswith("_"):
        today = _RENAMED_NAMES.get(module, {}).get(name, name)
        for part in _MOVED_MODULES[module]:
            try:
                return getattr(importlib.import_module(part), today)
            except (ImportError, AttributeError):
                continue
    raise AttributeError(f"module {module!r} has no attribute {name!r} in this vLLM", name=name)
