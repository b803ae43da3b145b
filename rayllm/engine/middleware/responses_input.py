"""Rewrites items and tools of the Responses API that vLLM would refuse, or read in part.

Calls of custom tools become those of functions with one text, `input`, as which the model sees these tools.
"""

import json
from typing import Any

from rayllm.core.errors import RequestError

Body = dict[str, Any]

_OUTPUTS = ("function_call_output", "custom_tool_call_output")
# Item → its required fields.
_FIELDS: dict[str, tuple[str, ...]] = {
    "message": ("role", "content"),
    "reasoning": (),
    "function_call": ("call_id", "name", "arguments"),
    "custom_tool_call": ("call_id", "name", "input"),
    **dict.fromkeys(_OUTPUTS, ("call_id", "output")),
}
_ROLES = ("user", "assistant", "system", "developer")
# Where items have their parts.
_PARTS = ("content", "output", "summary")
_ONE_TEXT = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


def with_readable_items(body: Body) -> Body:
    """A copy of `body` with items and custom tools as vLLM reads them. Raises a RequestError that names the item."""
    changed = dict(body)
    if isinstance(items := body.get("input"), list):
        rewritten = (_item(f"input[{index}]", item) for index, item in enumerate(items))
        changed["input"] = [item for item in rewritten if item is not None]
    if isinstance(tools := body.get("tools"), list):
        changed["tools"] = [_tool(tool) for tool in tools]
    return changed


def _item(name: str, item: Body) -> Body | None:
    item = _without_nulls(item)
    kind = item.get("type", "message" if "role" in item else None)
    if kind == "item_reference":
        raise RequestError(f"`{name}`: this service stores no items. Send the item itself, and `store: false`.", name)
    if not isinstance(kind, str) or kind not in _FIELDS:
        types = ", ".join(f"`{known}`" for known in _FIELDS)
        raise RequestError(f"`{name}.type` must be one of {types}, not `{str(kind)[:64]}`.", name)
    for field in _FIELDS[kind]:
        wanted, said = (str | list, "a text or a list of parts") if field in _PARTS else (str, "a text")
        if not isinstance(item.get(field), wanted):
            raise RequestError(f"`{name}.{field}` must be {said}; it is required in a `{kind}`.", name)
    if kind == "message" and item["role"] not in _ROLES:
        raise RequestError(f"`{name}.role` must be one of {', '.join(_ROLES)}.", name)
    return _readable(kind, item)


def _without_nulls(item: Body) -> Body:
    """An item without nulls, for which vLLM has no defaults, also in its parts. vLLM takes no unknown `phase`."""
    kept = {field: value for field, value in item.items() if value is not None and field != "phase"}
    for field in _PARTS:
        if isinstance(parts := kept.get(field), list):
            kept[field] = [_part(part) if isinstance(part, dict) else part for part in parts]
    return kept


def _part(part: Body) -> Body:
    kept = {field: value for field, value in part.items() if value is not None}
    # vLLM has no default in a result.
    return {"detail": "auto", **kept} if part.get("type") == "input_image" else kept


def _readable(kind: str, item: Body) -> Body | None:
    if kind == "custom_tool_call":
        return {**item, "type": "function_call", "arguments": json.dumps({"input": item["input"]})}
    if kind == "reasoning":
        # vLLM reads only the first part.
        texts = _texts(item.get("content")) or _texts(item.get("summary"))
        content = [{"type": "reasoning_text", "text": "\n".join(texts)}]
        return {"type": kind, "id": item.get("id", "rs"), "summary": [], "content": content} if any(texts) else None
    if kind in _OUTPUTS:
        parts, texts = item["output"], _texts(item["output"])
        # Not all chat templates read parts of a result.
        is_text = isinstance(parts, list) and len(texts) == len(parts)
        return {**item, "type": "function_call_output", "output": "\n".join(texts) if is_text else parts}
    return _answer(item)


def _texts(parts: Any) -> list[str]:
    found = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return [text for text in found if isinstance(text, str)]


def _answer(item: Body) -> Body:
    """An item with the parts of an earlier answer joined to one text: vLLM takes only the first, and no refusal."""
    parts = item.get("content")
    if item.get("role") != "assistant" or not isinstance(parts, list):
        return item
    found = _texts([{"text": part.get("text", part.get("refusal"))} for part in parts if isinstance(part, dict)])
    # Where parts have no text, vLLM reports the fault.
    return item if len(found) < len(parts) else {"role": "assistant", "content": "".join(found)}


def _tool(tool: Any, is_nested: bool = False) -> Any:
    """A tool with its grammar, which vLLM refuses, in its description; a custom tool of a namespace as a function."""
    if not isinstance(tool, dict):
        return tool
    if isinstance(nested := tool.get("tools"), list):
        # vLLM requires a description.
        return {"description": "", **tool, "tools": [_tool(each, is_nested=True) for each in nested]}
    if tool.get("type") != "custom":
        return tool
    free, given = {name: value for name, value in tool.items() if name != "format"}, tool.get("format")
    if isinstance(given, dict) and given.get("type") == "grammar":
        grammar = f"The input follows this grammar ({given.get('syntax')}):\n{given.get('definition')}"
        free["description"] = f"{tool.get('description') or ''}\n\n{grammar}".strip()
    return {**free, "type": "function", "parameters": _ONE_TEXT} if is_nested else free
