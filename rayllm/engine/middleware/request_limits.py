"""Limits on the lists in a request, and cheap checks of the entries, before vLLM parses the request.

vLLM tries each entry as each of some sixty types, and collects all errors. These checks stop at the first error.
"""

from typing import Any

from rayllm.core.endpoints import CHAT, CHAT_BATCH, RESPONSES, TOKENIZE
from rayllm.core.errors import RequestError

Body = dict[str, Any]

# Far above real requests: agents' conversations have some hundred messages, and OpenAI accepts 128 tools and 2,048
# texts to embed. Each entry stops vLLM's event loop for up to 0.1 ms.
MAX_FIELDS = 1_000
MAX_MESSAGES = 5_000
MAX_PARTS = 10_000
MAX_TOOLS = 1_000
MAX_TEXTS = 10_000
# vLLM tokenizes all words before it checks its limit of 1,024 tokens.
MAX_BAD_WORDS_CHARACTERS = 128 * 1024

_TEXTS = ("prompt", "input", "inputs", "texts", "documents", "text_1", "text_2", "queries", "items", "data_1", "data_2")
_WITH_FUNCTIONS = (CHAT, CHAT_BATCH, TOKENIZE)
_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**64 - 1


def check_limits(path: str, body: Body) -> None:
    """Refuse lists that are too long, or have entries of a wrong type, with a RequestError that names the entry."""
    if len(body) > MAX_FIELDS:
        raise RequestError(f"The request has more than {MAX_FIELDS} fields.")
    _check_messages(body.get("messages"))
    if path == RESPONSES:
        _check_objects("input", body.get("input"), MAX_MESSAGES)
    for name in _TEXTS:
        value = body.get(name)
        # The engine limits the length of a prompt in tokens.
        if isinstance(value, list) and len(value) > MAX_TEXTS and not isinstance(value[0], int):
            raise _too_many(name, MAX_TEXTS)
    _check_tools(path, body.get("tools"))
    _check_logit_bias(body.get("logit_bias"))
    _check_bad_words(body.get("bad_words"))
    _check_extra_arguments(body.get("vllm_xargs"))


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, list):
        return
    if messages and isinstance(messages[0], list):
        conversations = {f"messages[{index}]": part for index, part in enumerate(messages)}
    else:
        conversations = {"messages": messages}
    parts = 0
    for name, conversation in conversations.items():
        if not isinstance(conversation, list):
            raise RequestError(f"`{name}` must be a list of messages.", "messages")
        _check_objects(name, conversation, MAX_MESSAGES, "messages")
        for index, message in enumerate(conversation):
            # Messages in OpenAI's Harmony format have an author instead.
            if not isinstance(message.get("role"), str) and "author" not in message:
                raise RequestError(f"`{name}[{index}].role` must be a text.", "messages")
            content = message.get("content")
            if content is not None and not isinstance(content, str | list):
                raise RequestError(f"`{name}[{index}].content` must be a text or a list of parts.", "messages")
            if message.get("function_call"):
                said = f"`{name}[{index}].function_call` is old; send `tool_calls`, and results as `tool` messages."
                raise RequestError(said, "messages")
            parts += 1 + (len(content) if isinstance(content, list) else 0)
            if parts > MAX_PARTS:
                raise RequestError(f"`messages` has more than {MAX_PARTS} messages and content parts.", "messages")


def _check_tools(path: str, tools: Any) -> None:
    _check_objects("tools", tools, MAX_TOOLS)
    if not isinstance(tools, list) or path not in _WITH_FUNCTIONS:
        return
    for index, tool in enumerate(tools):
        function = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            hint = f" Custom tools work at {RESPONSES}." if tool.get("type") == "custom" else ""
            raise RequestError(f"`tools[{index}].function` must be an object with a `name`.{hint}", "tools")


def _check_logit_bias(bias: Any) -> None:
    for token, value in bias.items() if isinstance(bias, dict) else ():
        if not isinstance(value, int | float):
            raise RequestError(f"`logit_bias.{token[:40]}` must be a number.", "logit_bias")


def _check_bad_words(words: Any) -> None:
    texts = [word for word in words if isinstance(word, str)] if isinstance(words, list) else []
    if sum(map(len, texts)) > MAX_BAD_WORDS_CHARACTERS:
        raise RequestError(f"`bad_words` has more than {MAX_BAD_WORDS_CHARACTERS} characters in all.", "bad_words")
    if not all(map(str.strip, texts)):
        # vLLM before 0.30 fails on these.
        raise RequestError("`bad_words` has an empty word; remove it.", "bad_words")


def _check_extra_arguments(arguments: Any) -> None:
    for name, value in arguments.items() if isinstance(arguments, dict) else ():
        for item in value if isinstance(value, list) else (value,):
            if not isinstance(item, str | int | float):
                message = f"`vllm_xargs.{name[:40]}` must be a text, a number or a list of these."
                raise RequestError(message, "vllm_xargs")
            if isinstance(item, int) and not _MIN_INTEGER <= item <= _MAX_INTEGER:
                raise RequestError(f"`vllm_xargs.{name[:40]}` has a number beyond 64 bits.", "vllm_xargs")


def _check_objects(name: str, items: Any, most: int, param: str | None = None) -> None:
    """Refuse a list with entries that are not objects. Values that are no lists are left to vLLM."""
    if not isinstance(items, list):
        return
    if len(items) > most:
        raise _too_many(name, most, param)
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            raise RequestError(f"`{name}[{index}]` must be an object.", param or name)


def _too_many(name: str, most: int, param: str | None = None) -> RequestError:
    return RequestError(f"`{name}` has more than {most} entries.", param or name)
