"""Renders messages to a prompt as Hugging Face and vLLM do, with Jinja alone."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rayllm.prompt.template import CONTINUE_TAG


class PromptError(ValueError):
    """The messages cannot be rendered with the template: the client's error, 400 over HTTP."""


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    **variables: Any,
) -> str:
    """Render messages with a chat template to the prompt that vLLM would make.

    As in vLLM, arguments of tool calls given as JSON text become objects first (anything else than an object becomes
    `{}`), and empty `tool_calls` and null keys are dropped. The caller's messages are not changed.

    Args:
        template: Jinja text, from `compile_template` or a model's own.
        messages: `{"role": ..., "content": ...}` each, at least one; content is text, null, or a list of parts.
        tools: the tools, as in an OpenAI request.
        add_generation_prompt: end with the start of the assistant's answer.
        continue_final_message: end within the last message instead, after its content.
        variables: further variables of the template, such as `omit_bos` or `bos_token`.

    Raises:
        PromptError: the template is invalid, refuses the messages, or fails on them.

    Source: `apply_chat_template` and `render_jinja_template` of transformers 5.23; `_postprocess_messages` in
    vllm/entrypoints/chat_utils.py 0.29.
    """
    from rayllm.prompt.environment import compiled  # deferred: Jinja is needed for the first prompt only

    if len(messages) == 0:
        raise PromptError("Messages cannot be an empty list.")
    chat = [_message(message) for message in messages]
    ending = _tag_ending(chat[-1]) if continue_final_message else None
    try:
        prompt = compiled(template).render(
            messages=chat,
            tools=_plain(tools),
            add_generation_prompt=add_generation_prompt and not continue_final_message,
            **{"documents": None, **_plain(variables)},
        )
    except Exception as error:  # templates may raise anything; vLLM also replies 400
        raise PromptError(str(error)) from error
    return prompt if ending is None else _cut(prompt, ending)


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    plain = _plain(message)
    if not isinstance(plain, dict):
        raise PromptError(f"A message must be an object with a role and a content, not {type(message).__name__}.")
    plain = {key: value for key, value in plain.items() if value is not None}
    if plain.get("role") == "assistant" and isinstance(calls := plain.pop("tool_calls", None), list) and calls:
        plain["tool_calls"] = [_call(call) for call in calls]
    return plain


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = None
    return {**call, "function": {**function, "arguments": arguments if isinstance(arguments, dict) else {}}}


def _plain(value: Any) -> Any:
    """A copy of plain JSON types: templates are untrusted, and must not see objects with methods."""
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # str() of an enum's member is its name
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    for convert in ("model_dump", "tolist"):  # of pydantic; of numpy, in the rows of a dataset
        if callable(method := getattr(value, convert, None)):
            return _plain(method())
    if isinstance(value, int | float):
        return float(value) if isinstance(value, float) else int(value)
    return f"<{type(value).__name__}>"


def _tag_ending(message: dict[str, Any]) -> str:
    """Mark the end of the message's content, and return the last text of that content."""
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + CONTINUE_TAG
        return content
    for position, part in reversed(list(enumerate(content if isinstance(content, list) else []))):
        if isinstance(part, str):
            message["content"][position] = part + CONTINUE_TAG
            return part
        if isinstance(part, dict) and isinstance(text := part.get("text"), str):
            part["text"] = text + CONTINUE_TAG
            return text
    raise PromptError("continue_final_message is set, but the last message has no content to continue.")


def _cut(prompt: str, ending: str) -> str:
    """Cut the prompt at the mark; `ending` must have been rendered."""
    position = prompt.rfind(CONTINUE_TAG.strip())
    if position < 0 or ending.strip() not in prompt:
        raise PromptError("continue_final_message is set, but the template does not render the last message's content.")
    # A template that trims content has trimmed the mark's trailing space.
    is_whole = prompt.startswith(CONTINUE_TAG, position)
    return prompt[:position] if is_whole else prompt[:position].rstrip()
