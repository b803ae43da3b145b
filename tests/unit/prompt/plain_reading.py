"""The rules of `prompt_format` read plainly: what a person with the rules and Python's own format strings would write.

It shares nothing with the package, so that the two can be compared.
"""

from __future__ import annotations

import json
import string
from typing import Any

Messages = list[dict[str, Any]]


class RefusedError(Exception):
    """The rules say 400."""


def plain_reading(
    keys: dict[str, Any],
    messages: Messages,
    *,
    tools: list[dict[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    omit_bos: bool = False,
) -> str:
    """The prompt for `messages` under the format `keys`, a plain mapping."""
    if not messages:
        raise RefusedError("no messages")
    if tools and keys.get("tools_list") is None:
        raise RefusedError("tools are not rendered")
    head, chat = divided(keys, messages)
    system = rendered_system(keys, head)
    users = [index for index, message in enumerate(chat) if message["role"] == "user"]
    if keys.get("system_in_user") and system and not users:
        raise RefusedError("no user message")
    if continue_final_message:
        last = messages[-1]
        if last["role"] in ("system", "developer") or last.get("tool_calls") or last["content"] is None:
            raise RefusedError("nothing to continue")

    prompt = "" if omit_bos else keys.get("bos", "")
    if not keys.get("system_in_user"):
        prompt += system
    if tools and not users:
        tools_list = keys["tools_list"].format(tools=as_json(tools))
        prompt += keys["user"].format(instruction="", system="", tools_list=tools_list)
    for index, message in enumerate(chat):
        host = users[-1:] if keys.get("system_in_last_user") else users[:1]
        shelf = users[:1] if keys.get("tools_in_first_user") else users[-1:]
        values = {
            "system": system if [index] == host else "",
            "tools_list": keys["tools_list"].format(tools=as_json(tools)) if tools and [index] == shelf else "",
        }
        is_open = continue_final_message and index == len(chat) - 1
        prompt += rendered_message(keys, message, values, is_open)
    if add_generation_prompt and not continue_final_message:
        prompt += keys.get("trailing_assistant", "")
    return prompt


def divided(keys: dict[str, Any], messages: Messages) -> tuple[Messages, Messages]:
    """The system messages that are rendered first, and the conversation, with those that come later."""
    systems = [index for index, message in enumerate(messages) if message["role"] in ("system", "developer")]
    first = [index for place, index in enumerate(systems) if index == place] or systems[:1]
    later = keys.get("later_system") or ("refuse" if keys.get("system_in_user") else "in_place")
    if later == "refuse" and len(systems) > len(first):
        raise RefusedError("a second system message later")
    chat = []
    for index, message in enumerate(messages):
        if index in systems and index not in first:
            chat.append({**message, "role": "user" if later == "user" else "system"})
        elif index not in systems:
            chat.append(message)
    return [messages[index] for index in first], chat


def rendered_system(keys: dict[str, Any], messages: Messages) -> str:
    contents = [text(keys, message["content"]) for message in messages]
    if contents:
        content = "\n\n".join(content for content in contents if content)
    else:
        content = text(keys, keys.get("default_system_message", ""))
    if content or keys.get("add_system_tags_even_if_message_is_empty"):
        return keys["system"].format(instruction=content)
    return ""


def rendered_message(keys: dict[str, Any], message: dict[str, Any], values: dict[str, str], is_open: bool) -> str:
    if message["role"] == "system":
        return rendered_system(keys, [message])
    role = "tool" if message["role"] == "function" else message["role"]
    if role not in ("user", "assistant", "tool") or keys.get(role) is None:
        raise RefusedError(role)
    content = text(keys, message["content"])
    if role == "assistant" and message.get("tool_calls"):
        if keys.get("tool_calls") is None:
            raise RefusedError("tool calls are not rendered")
        calls = "\n".join(keys["tool_calls"].format(tool_call=call_json(call)) for call in message["tool_calls"])
        content = f"{content}\n{calls}" if content else calls
    pieces = list(string.Formatter().parse(keys[role]))
    if is_open:
        # Up to and with the last place of the content.
        last = max(index for index, (_, field, _, _) in enumerate(pieces) if field == "instruction")
        pieces = pieces[: last + 1]
    values = {"instruction": content, **values}
    return "".join(literal + (values[field] if field else "") for literal, field, _, _ in pieces)


def text(keys: dict[str, Any], content: str | list[Any] | None) -> str:
    if isinstance(content, list):
        if any(part["type"] != "text" for part in content):
            raise RefusedError("not text")
        content = "\n".join(part["text"] for part in content if part["text"])
    content = content or ""
    return content.strip() if keys.get("strip_whitespace", True) else content


def call_json(call: dict[str, Any]) -> str:
    function = call["function"]
    return as_json({"name": function["name"], "arguments": function["arguments"]})


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
