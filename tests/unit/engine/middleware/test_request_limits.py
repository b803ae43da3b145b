"""Limits on the lists in a request, and the index of the first error."""

from __future__ import annotations

from typing import Any

import pytest

from rayllm.core.endpoints import CHAT, CHAT_BATCH, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES, TOKENIZE
from rayllm.core.errors import RequestError
from rayllm.engine.middleware.request_limits import (
    MAX_BAD_WORDS_CHARACTERS,
    MAX_FIELDS,
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_TEXTS,
    MAX_TOOLS,
    check_limits,
)

USER = {"role": "user", "content": "Hi"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        (CHAT, {"messages": [USER, USER, ""]}, "`messages[2]` must be an object"),
        (MESSAGES, {"messages": [USER, None]}, "`messages[1]` must be an object"),
        (TOKENIZE, {"messages": [7]}, "`messages[0]` must be an object"),
        ("/pooling", {"messages": [USER, []]}, "`messages[1]` must be an object"),
        (CHAT, {"messages": [USER, {"role": "user", "content": 7}]}, "`messages[1].content` must be a text or a list"),
        (CHAT, {"messages": [USER, {"content": "a"}]}, "`messages[1].role` must be a text"),
        (MESSAGES, {"messages": [{"role": 7}]}, "`messages[0].role` must be a text"),
        (CHAT_BATCH, {"messages": [[USER], [USER, "a"]]}, "`messages[1][1]` must be an object"),
        (CHAT_BATCH, {"messages": [[USER], USER]}, "`messages[1]` must be a list of messages"),
        (RESPONSES, {"input": [USER, "a"]}, "`input[1]` must be an object"),
        (CHAT, {"tools": ["a"]}, "`tools[0]` must be an object"),
        (MESSAGES, {"tools": [{"name": "f"}, 1]}, "`tools[1]` must be an object"),
        (CHAT, {"tools": [TOOL, {"x": 1}]}, "`tools[1].function` must be an object with a `name`"),
        (CHAT, {"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "Custom tools work at /v1/responses."),
        (CHAT, {"messages": [USER, {"role": "assistant", "function_call": {"name": "f"}}]}, "send `tool_calls`"),
        (CHAT, {"tools": [{"function": {"name": 7}}]}, "`tools[0].function` must be an object with a `name`"),
        (CHAT, {"messages": [USER] * (MAX_MESSAGES + 1)}, f"`messages` has more than {MAX_MESSAGES} entries"),
        (RESPONSES, {"input": [USER] * (MAX_MESSAGES + 1)}, f"`input` has more than {MAX_MESSAGES} entries"),
        (
            CHAT,
            {"messages": [{**USER, "content": [{}] * MAX_PARTS}]},
            f"more than {MAX_PARTS} messages and content parts",
        ),
        (CHAT_BATCH, {"messages": [[USER]] * (MAX_PARTS + 1)}, f"more than {MAX_PARTS} messages and content parts"),
        (CHAT, {"tools": [TOOL] * (MAX_TOOLS + 1)}, f"`tools` has more than {MAX_TOOLS} entries"),
        (COMPLETIONS, {"prompt": ["a"] * (MAX_TEXTS + 1)}, f"`prompt` has more than {MAX_TEXTS} entries"),
        (EMBEDDINGS, {"input": [[1]] * (MAX_TEXTS + 1)}, f"`input` has more than {MAX_TEXTS} entries"),
        ("/rerank", {"documents": ["a"] * (MAX_TEXTS + 1)}, f"`documents` has more than {MAX_TEXTS} entries"),
        (CHAT, {"logit_bias": {"1": 1, "2": "a"}}, "`logit_bias.2` must be a number"),
        (
            CHAT,
            {"bad_words": ["a", "x" * MAX_BAD_WORDS_CHARACTERS]},
            f"more than {MAX_BAD_WORDS_CHARACTERS} characters",
        ),
        (CHAT, {"bad_words": ["a", " "]}, "`bad_words` has an empty word"),
        (CHAT, {"vllm_xargs": {"a": 1, "b": None}}, "`vllm_xargs.b` must be a text, a number or a list"),
        (CHAT, {"vllm_xargs": {"b": [1, {}]}}, "`vllm_xargs.b` must be a text, a number or a list"),
        (CHAT, {"vllm_xargs": {"b": 2**64}}, "`vllm_xargs.b` has a number beyond 64 bits"),
        (COMPLETIONS, {"vllm_xargs": {"b": [-(2**63) - 1]}}, "`vllm_xargs.b` has a number beyond 64 bits"),
        (CHAT, {f"x{number}": 1 for number in range(MAX_FIELDS + 1)}, f"more than {MAX_FIELDS} fields"),
    ],
)
def test_the_first_fault_is_named(path: str, body: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_limits(path, body)
    assert said in caught.value.message
    assert caught.value.param == (None if len(body) > 1 else next(iter(body)))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [USER, PARTS, {"role": "assistant", "content": None, "tool_calls": []}, {"role": "user"}]}),
        (CHAT, {"messages": "hello", "tools": {}, "logit_bias": 1, "vllm_xargs": []}),
        (CHAT, {"messages": [{"role": "assistant", "content": "a", "function_call": None}]}),
        (CHAT, {"messages": [], "tools": [TOOL]}),
        (CHAT, {"messages": [{"author": {"role": "user"}, "content": []}]}),
        (CHAT, {"vllm_xargs": {"a": [1, "b", 0.5], "c": True, "d": 2**64 - 1}}),
        (CHAT_BATCH, {"messages": [[USER], [USER, PARTS]]}),
        (RESPONSES, {"input": [USER, {"type": "reasoning"}], "tools": [{"type": "web_search"}]}),
        (MESSAGES, {"messages": [USER, PARTS], "tools": [{"name": "f", "input_schema": {}}]}),
        (CHAT, {"bad_words": ["a", 1, "x" * (MAX_BAD_WORDS_CHARACTERS - 1)]}),
        (MESSAGES, {"tools": [{"type": "custom", "name": "f", "input_schema": {}}, {"type": 7}, {"name": "f"}]}),
        (COMPLETIONS, {"prompt": list(range(MAX_TEXTS + 1))}),
        (EMBEDDINGS, {"input": ["a", "b"]}),
        (EMBEDDINGS, {"input": [1] * (MAX_TEXTS + 1)}),
    ],
)
def test_what_is_right_or_anothers_to_judge_passes(path: str, body: dict[str, Any]) -> None:
    check_limits(path, body)
