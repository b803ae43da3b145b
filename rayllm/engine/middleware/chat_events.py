"""Corrects the chunks and replies of chats, which vLLM writes in ways that some clients misread."""

import json
import re
from typing import Any

# The text of reasoning. Within a text, the quotation marks around the name would be escaped.
_REASONING = re.compile(rb'"reasoning":\s*("(?:[^"\\]|\\.)*")')


def corrected_chat(body: bytes) -> bytes:
    """A chunk or a whole reply, with its reasoning by both names and at most one delta for each tool call."""
    return _with_merged_tool_calls(_REASONING.sub(rb'\g<0>,"reasoning_content":\1', body))


def _with_merged_tool_calls(chunk: bytes) -> bytes:
    """`chunk` of a chat stream with at most one delta per tool call.

    vLLM may send a call's name and the beginning of its arguments as two deltas in one chunk. OpenAI never does, and
    clients, such as earlier versions of OpenAI's own, then assemble the call wrongly.
    """
    # Only chunks with several deltas are parsed.
    if not chunk.startswith(b"data: {") or chunk.count(b'"function":') < 2 or b'"tool_calls":' not in chunk:
        return chunk
    head, end, rest = chunk.partition(b"\n\n")
    parsed = json.loads(head.removeprefix(b"data: "))
    for choice in parsed["choices"]:
        by_index: dict[int, dict[str, Any]] = {}
        for call in choice.get("delta", {}).get("tool_calls") or ():
            if (first := by_index.setdefault(call["index"], call)) is not call:
                _add(first, call)
        if by_index:
            choice["delta"]["tool_calls"] = list(by_index.values())
    return b"data: " + json.dumps(parsed, ensure_ascii=False, separators=(",", ":")).encode() + end + rest


def _add(first: dict[str, Any], more: dict[str, Any]) -> None:
    function, added = first.get("function") or {}, more.get("function") or {}
    arguments = (function.get("arguments") or "") + (added.get("arguments") or "")
    first |= {key: value for key, value in more.items() if first.get(key) is None}
    given = {key: value for key, value in function.items() if value is not None}
    first["function"] = {**added, **given, "arguments": arguments}
