"""Facts about the installed vLLM: its version, request fields, parsers and architectures."""

from __future__ import annotations

from rayllm.core.endpoints import CHAT, CHAT_BATCH, COMPLETIONS, MESSAGES, RESPONSES


def version() -> str:
    """vLLM's version."""
    import vllm

    return str(vllm.__version__)


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
