"""The names that the installed vLLM has, for `rayllm.config.vllm_versions`.

`python scripts/vllm_names.py` writes those of its series, as `make generate` does for the locked one; `--check` fails
where they are stale.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

from rayllm.config.vllm_versions import current_series
from rayllm.core.endpoints import CHAT, CHAT_BATCH, COMPLETIONS, MESSAGES, RESPONSES
from rayllm.engine.vllm import moved_names

DATA = Path(__file__).resolve().parent.parent / "rayllm" / "config" / "data" / "vllm"


def vllm_names() -> dict[Path, str]:
    """The file of the installed series, and its text."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    arguments = {
        kind: sorted(f.name for f in dataclasses.fields(cls) if not f.name.startswith("_"))
        for kind, cls in (("engine", AsyncEngineArgs), ("server", moved_names.load("FrontendArgs")))
    }
    names = arguments | parser_names() | {"architectures": architectures(), "requests": request_fields()}
    return {DATA / f"{current_series()}.json": json.dumps(names, indent=1) + "\n"}


def request_fields() -> dict[str, list[str]]:
    """Fields of vLLM's requests, by path of the endpoints that generate text."""
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.openai.chat_completion.protocol import BatchChatCompletionRequest, ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest
    from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

    requests = {
        CHAT: ChatCompletionRequest,
        CHAT_BATCH: BatchChatCompletionRequest,
        COMPLETIONS: CompletionRequest,
        RESPONSES: ResponsesRequest,
        MESSAGES: AnthropicMessagesRequest,
    }
    return {path: sorted(request.model_fields) for path, request in requests.items()}


def parser_names() -> dict[str, list[str]]:
    """Names of vLLM's own parsers, by kind: `tool_parser` and `reasoning_parser`."""
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    return {
        "tool_parser": sorted(ToolParserManager.list_registered()),
        "reasoning_parser": sorted(ReasoningParserManager.list_registered()),
    }


def architectures() -> list[str]:
    """Architectures that vLLM has a model class for, as `config.json` names them."""
    from vllm.model_executor.models import ModelRegistry

    return sorted(ModelRegistry.get_supported_archs())


def main() -> int:
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    for path, text in vllm_names().items():
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            print(f"stale: {path.name}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
