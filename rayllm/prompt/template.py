"""Compiles a `prompt_format` to the Jinja chat template that vLLM, batch and the command line render."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from rayllm.prompt.format import PromptFormat
from rayllm.prompt.pieces import Placeholder, parse

CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
"""What Hugging Face appends to the content of the last message, to find where to cut the prompt.

Source: `render_jinja_template` in transformers/utils/chat_template_utils.py. Our template strips the content before
the tag and leaves the tag whole; else the cut would lose white space that belongs to the role's own template."""

# Roles of a tool's result, including OpenAI's older name.
_RESULTS = ["tool", "function"]
_NO_TOOLS = "this model's prompt_format has no `tool`, `tool_calls`, `tools_list`."

# Tags end in `-`, so line breaks and indentation between them vanish. All output comes from expressions, in which Jinja
# neither trims white space nor looks for tags.
_TEXT = """\
{#- Compiled from a prompt_format by rayllm; change that instead. -#}
{%- set text_keys = {'text': 'text', 'input_text': 'text', 'output_text': 'text', 'refusal': 'refusal',
                     'thinking': 'thinking'} -%}
{%- macro text(value) -%}
  {%- set joined = namespace(texts=[value] if value is string else []) -%}
  {%- if value is defined and value is not none and value is not string -%}
    {%- if value is mapping or value is not sequence -%}
      {{- raise_exception("A message's content must be a string or a list of parts.") -}}
    {%- endif -%}
    {%- for part in value -%}
      {%- set key = 'text' if part is string else text_keys.get(part['type']) -%}
      {%- if key is none -%}
        {{- raise_exception("This model's prompt_format renders text only, not a content part of type '"
                            ~ (part['type'] or 'unknown') ~ "'.") -}}
      {%- endif -%}
      {%- set words = part if part is string else part[key] -%}
      {%- if words is string -%}
        {%- set joined.texts = joined.texts + ([words] if words else []) -%}
      {%- elif words is defined and words is not none -%}
        {{- raise_exception("The text of a content part of type '" ~ part['type'] ~ "' must be a string.") -}}
      {%- endif -%}
    {%- endfor -%}
  {%- endif -%}
  {{- joined.texts | join('\\n') -}}
{%- endmacro -%}"""

_TOOL_CALL = """\
{%- macro tool_call(function) -%}
  {%- if function['name'] is not string -%}
    {{- raise_exception("A tool call must have a `function` with a `name`.") -}}
  {%- endif -%}
  {%- set arguments = function['arguments'] or {} -%}
  {{- '{"name": ' ~ (function['name'] | tojson) ~ ', "arguments": '
      ~ (arguments if arguments is string else arguments | tojson) ~ '}' -}}
{%- endmacro -%}"""


def compile_template(fmt: PromptFormat, *, bos: str | None = None) -> str:
    """The Jinja chat template that renders messages as `fmt` says, with `bos` in place of its own if that is given.

    Made for the environment of Hugging Face's chat templates, which vLLM uses: besides Jinja itself it needs the global
    `raise_exception` and the filter `tojson`. It reads `messages`, `tools`, `add_generation_prompt`, and `omit_bos`:
    true leaves the BOS out, for a prompt that is tokenized with special tokens.
    """
    return "\n".join(
        [
            _TEXT,
            *_calls(fmt),
            *_scan(fmt),
            *_system(fmt),
            *_tools(fmt),
            *_literal("not omit_bos", fmt.bos if bos is None else bos),
            *([] if fmt.system_in_user else ["{{- system_prompt -}}"]),
            *_messages(fmt),
            *_literal("add_generation_prompt", fmt.trailing_assistant),
        ]
    )


def _scan(fmt: PromptFormat) -> Iterator[str]:
    """Scan all messages once: refuse what cannot be rendered, and find the system and user messages."""
    others = ["assistant", *_RESULTS] if fmt.renders_tools else ["assistant"]
    roles = ", ".join(["system", "developer", "user", *others])
    unknown = f"' is not supported: this model's prompt_format knows {roles}."
    yield _refuse("not messages", "Messages cannot be an empty list.")
    yield f"{{%- set tag = {_quoted(CONTINUE_TAG)} -%}}"
    yield "{%- set is_open = not add_generation_prompt and text(messages[-1]['content']).endswith(tag) -%}"
    yield _refuse(
        "is_open and (messages[-1]['role'] in ['system', 'developer'] or messages[-1]['tool_calls'])",
        "continue_final_message cannot continue a system message or a message with tool_calls.",
    )
    yield "{%- set found = namespace(systems=none, is_opening=true, first_user=none, last_user=none) -%}"
    yield "{%- for message in messages -%}"
    yield "{%- if message['role'] in ['system', 'developer'] -%}"
    message = "Only one system message can be specified."
    yield _refuse("found.systems is not none and not found.is_opening", message)
    yield f"{{%- set found.systems = (found.systems or []) + [text(message['content']){_trim(fmt)}] -%}}"
    yield "{%- else -%}"
    yield "{%- set found.is_opening = false -%}"
    yield "{%- endif -%}"
    yield "{%- if message['role'] == 'user' -%}"
    yield "{%- set found.first_user = loop.index0 if found.first_user is none else found.first_user -%}"
    yield "{%- set found.last_user = loop.index0 -%}"
    if not fmt.renders_tools:
        yield f"{{%- elif message['role'] in {_RESULTS} -%}}"
        unsupported = f"' is not supported: {_NO_TOOLS}"
        yield f"""{{{{- raise_exception("The role '" ~ message['role'] ~ {_quoted(unsupported)}) -}}}}"""
    yield f"{{%- elif message['role'] not in {[*others, 'system', 'developer']} -%}}"
    yield f"""{{{{- raise_exception("The role '" ~ message['role'] ~ {_quoted(unknown)}) -}}}}"""
    yield "{%- endif -%}"
    yield "{%- endfor -%}"


def _system(fmt: PromptFormat) -> Iterator[str]:
    """Set `system_prompt` to the rendered system message, or to nothing."""
    default = fmt.default_system_message.strip() if fmt.strip_whitespace else fmt.default_system_message
    joined = "found.systems | select | join('\\n\\n')"
    yield f"{{%- set system = {_quoted(default)} if found.systems is none else {joined} -%}}"
    rendered = _concatenation(fmt.system, instruction="system")
    condition = "true" if fmt.add_system_tags_even_if_message_is_empty else "system"
    yield f'{{%- set system_prompt = {rendered} if {condition} else "" -%}}'
    if fmt.system_in_user:
        message = "The system message goes into a user message, but there is none."
        yield _refuse("system_prompt and found.last_user is none", message)


def _tools(fmt: PromptFormat) -> Iterator[str]:
    """Set `tools_prompt` to the rendered list of the offered tools, or to nothing."""
    if fmt.tools_list is None:
        yield _refuse("tools", f"Tools are offered, but {_NO_TOOLS}")
        return
    rendered = _concatenation(fmt.tools_list, tools="tools | tojson")
    yield f'{{%- set tools_prompt = {rendered} if tools else "" -%}}'


def _calls(fmt: PromptFormat) -> Iterator[str]:
    """The macro that appends the calls of an assistant message to its content."""
    if fmt.tool_calls is None:
        return
    rendered = _concatenation(fmt.tool_calls, tool_call="tool_call(call['function'] or {})")
    yield _TOOL_CALL
    yield "{%- macro with_calls(words, calls) -%}"
    yield "{{- words -}}"
    yield "{%- for call in calls or [] -%}"
    yield f"{{{{- ('\\n' if words or not loop.first else '') ~ {rendered} -}}}}"
    yield "{%- endfor -%}"
    yield "{%- endmacro -%}"


def _messages(fmt: PromptFormat) -> Iterator[str]:
    """Render every message except system messages, in order."""
    host = "found.last_user" if fmt.system_in_last_user else "found.first_user"
    if fmt.tools_list is not None:
        # Tools go into a user message; without one, into an empty one of their own.
        yield "{%- if tools_prompt and found.last_user is none -%}"
        yield _message(fmt.user, '""', system='""', tools_list="tools_prompt", mark='""')
        yield "{%- endif -%}"
    yield "{%- for message in messages -%}"
    yield '{%- set mark = tag if is_open and loop.last else "" -%}'
    yield f"{{%- set words = text(message['content']).removesuffix(mark){_trim(fmt)} -%}}"
    yield "{%- if message['role'] == 'user' -%}"
    system = f'system_prompt if loop.index0 == {host} else ""'
    tools_list = 'tools_prompt if loop.index0 == found.last_user else ""'
    yield _message(fmt.user, "words", system=system, tools_list=tools_list)
    yield "{%- elif message['role'] == 'assistant' -%}"
    if fmt.renders_tools:
        yield _message(fmt.assistant, "with_calls(words, message['tool_calls'])")
    else:
        yield _refuse("message['tool_calls']", f"An assistant message has tool_calls, but {_NO_TOOLS}")
        yield _message(fmt.assistant, "words")
    if fmt.tool is not None:
        yield f"{{%- elif message['role'] in {_RESULTS} -%}}"
        yield _message(fmt.tool, "words")
    yield "{%- endif -%}"
    yield "{%- endfor -%}"


def _message(template: str, content: str, mark: str = "mark", **values: str) -> str:
    """Render a role's template around `content`, an expression. Its last occurrence carries the cut mark."""
    terms = _terms(template, {"instruction": content, **values})
    last = max(index for index, term in enumerate(terms) if term == f"({content})")
    return f"{{{{- {' ~ '.join([*terms[: last + 1], mark, *terms[last + 1 :]])} -}}}}"


def _concatenation(template: str, **values: str) -> str:
    """A template as an expression in parentheses; `values` holds the expression of each placeholder."""
    return f"({' ~ '.join(_terms(template, values))})"


def _terms(template: str, values: Mapping[str, str]) -> list[str]:
    pieces = parse(template, values).pieces
    return [f"({values[piece.name]})" if isinstance(piece, Placeholder) else _quoted(piece) for piece in pieces]


def _literal(condition: str, text: str) -> Iterator[str]:
    if text:
        yield f"{{%- if {condition} -%}}{{{{- {_quoted(text)} -}}}}{{%- endif -%}}"


def _refuse(condition: str, message: str) -> str:
    return f"{{%- if {condition} -%}}{{{{- raise_exception({_quoted(message)}) -}}}}{{%- endif -%}}"


def _trim(fmt: PromptFormat) -> str:
    return " | trim" if fmt.strip_whitespace else ""


def _quoted(text: str) -> str:
    # A JSON string is a Jinja string. Only with ensure_ascii off: Jinja does not join the surrogates of "\ud83d\ude00".
    return json.dumps(text, ensure_ascii=False)
