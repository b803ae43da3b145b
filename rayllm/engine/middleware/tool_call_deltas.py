"""Merges tool call deltas within a chunk of a chat stream."""

from __future__ import annotations

import json
from typing import Any


def with_merged_tool_calls(chunk: bytes) -> bytes:
    """`chunk` with at most one delta per tool call.

    vLLM may send a call's name and the beginning of its arguments as two deltas in one chunk. OpenAI never does, and
    clients, including earlier versions of OpenAI's own, then assemble the call wrongly. Only chunks with several deltas
    are parsed.
    """
    if not chunk.startswith(b"data: {") or chunk.count(b'"function":') < 2 or b'"tool_calls":' not in chunk:
        return chunk
    head, end, rest = chunk.partition(b"\n\n")
    parsed = json.loads(head.removeprefix(b"data: "))
    for choice in parsed["choices"]:
        if calls := choice.get("delta", {}).get("tool_calls"):
            choice["delta"]["tool_calls"] = _merged(calls)
    return b"data: " + json.dumps(parsed, ensure_ascii=False, separators=(",", ":")).encode() + end + rest


def _merged(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_index: dict[int, dict[str, Any]] = {}
    for call in calls:
        first = by_index.setdefault(call["index"], call)
        if first is not call:
            _add(first, call)
    return list(by_index.values())


def _add(first: dict[str, Any], more: dict[str, Any]) -> None:
    """Merge the delta `more` into the one before it."""
    function, added = first.get("function") or {}, more.get("function") or {}
    arguments = (function.get("arguments") or "") + (added.get("arguments") or "")
    first |= {key: value for key, value in more.items() if first.get(key) is None}
    first["function"] = added | {key: value for key, value in function.items() if value is not None}
    first["function"]["arguments"] = arguments
