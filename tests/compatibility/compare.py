"""What counts as the same answer: all of it but names made up for the occasion and the clock."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx

# Log-probabilities of bfloat16 weights differ in the last digits with what else is in the batch.
TOLERANCE = 2e-2
# Made anew for each answer.
_OWN = {"id", "created", "created_at", "completed_at", "request_id", "item_id", "call_id", "tool_use_id", "request-id"}
# How much of a prompt was cached, which each server says of its own cache, and vLLM's only where it is asked to.
_CACHED = {"prompt_tokens_details", "cache_read_input_tokens", "cache_creation_input_tokens"}

# Words that every chunk says again: not pieces of a text.
_WHOLE = {"role", "type", "name", "finish_reason", "stop_reason"}


def answer(client: httpx.Client, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """Status and content of the reply to one request; of an error, the status alone."""
    reply = client.post(path, json=body)
    if reply.status_code >= 400:
        return reply.status_code, None
    if reply.headers["content-type"].startswith("text/event-stream"):
        return reply.status_code, _gathered(reply.text)
    return reply.status_code, _stripped(reply.json())


def difference(ours: Any, theirs: Any, where: str = "") -> str | None:
    """Where two answers differ, or None."""
    if isinstance(ours, bool | None) or isinstance(theirs, bool | None):
        return None if ours is theirs else f"{where}: {ours!r} is not {theirs!r}"
    if isinstance(ours, int | float) and isinstance(theirs, int | float):
        same = math.isclose(ours, theirs, abs_tol=TOLERANCE if isinstance(ours, float) else 0)
        return None if same else f"{where}: {ours} is not {theirs}"
    if isinstance(ours, dict) and isinstance(theirs, dict):
        if ours.keys() != theirs.keys():
            return f"{where}: keys {sorted(ours.keys() ^ theirs.keys())} on one side only"
        return next((d for key in ours if (d := difference(ours[key], theirs[key], f"{where}.{key}"))), None)
    if isinstance(ours, list) and isinstance(theirs, list):
        if len(ours) != len(theirs):
            return f"{where}: {len(ours)} entries are not {len(theirs)}"
        pairs = enumerate(zip(ours, theirs, strict=True))
        return next((d for index, (a, b) in pairs if (d := difference(a, b, f"{where}[{index}]"))), None)
    return None if ours == theirs else f"{where}: {ours!r} is not {theirs!r}"


def _stripped(value: Any) -> Any:
    """`value` without names made up for the occasion."""
    if isinstance(value, dict):
        kept = {key: _stripped(item) for key, item in value.items() if key not in _OWN | _CACHED}
        if "input_tokens" in kept:
            # Anthropic's are those that were not cached.
            kept["input_tokens"] += sum(value.get(key) or 0 for key in _CACHED if key.startswith("cache_"))
        return kept
    return [_stripped(item) for item in value] if isinstance(value, list) else value


def _gathered(text: str) -> Any:
    """A stream put together: how it was cut into chunks is chance."""
    events = [block for block in text.split("\n\n") if block]
    datas = [line.removeprefix("data: ") for block in events for line in block.split("\n") if line.startswith("data: ")]
    done = datas[-1] == "[DONE]"
    parsed = [_stripped(json.loads(data)) for data in datas if data != "[DONE]"]
    if parsed and "type" in parsed[0]:
        return _typed(parsed)
    choices: dict[int, dict[str, Any]] = {}
    for chunk in parsed:
        for choice in chunk["choices"]:
            _join(choices.setdefault(choice["index"], {}), choice)
    usage = [chunk["usage"] for chunk in parsed if chunk.get("usage")]
    return {
        "choices": choices,
        "usage": usage[-1:],
        "models": sorted({chunk["model"] for chunk in parsed}),
        "done": done,
    }


def _join(whole: dict[str, Any], part: dict[str, Any]) -> None:
    for key, value in part.items():
        if key == "text_offset":
            continue  # vLLM counts it from the beginning of a chunk
        if isinstance(value, dict):
            _join(whole.setdefault(key, {}), value)
        elif key == "tool_calls":
            for call in value:
                _join(whole.setdefault(f"call {call['index']}", {}), call)
        elif isinstance(value, str) and key not in _WHOLE:
            whole[key] = whole.get(key, "") + value
        elif isinstance(value, list):
            whole[key] = whole.get(key, []) + value
        elif value is not None:
            whole[key] = value


def _typed(events: list[dict[str, Any]]) -> Any:
    """A stream of named events: the order of their kinds, the texts joined, and the last of each kind."""
    kinds: list[str] = []
    texts: dict[str, str] = {}
    for event in events:
        if not kinds or kinds[-1] != event["type"]:
            kinds.append(event["type"])
        delta = event.get("delta")
        for key, value in (delta if isinstance(delta, dict) else {"delta": delta}).items():
            if isinstance(value, str):
                texts[key] = value if key in _WHOLE else texts.get(key, "") + value
    ends = [event for event in events if event["type"] in ("response.completed", "message_start", "message_delta")]
    return {"kinds": kinds, "texts": texts, "ends": [{**event, "sequence_number": 0} for event in ends]}
