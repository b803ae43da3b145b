"""Chat templates as they lie beside models, and stops that the models' own files forget."""

from __future__ import annotations

import json

import pytest

from rayllm.authoring.template import chat_template, missing_stops

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
TOKENS = {"added_tokens_decoder": {"7": {"content": "<|im_end|>"}, "2": {"content": "</s>"}}, "eos_token": "</s>"}


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        ({}, None),
        ({"tokenizer_config.json": "no JSON"}, None),
        ({"tokenizer_config.json": json.dumps({"chat_template": "a"})}, "a"),
        ({"tokenizer_config.json": json.dumps({"chat_template": "a"}), "chat_template.jinja": "b"}, "b"),
        ({"chat_template.json": json.dumps({"chat_template": "c"})}, "c"),
        (
            {
                "tokenizer_config.json": json.dumps(
                    {"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}
                )
            },
            "d",
        ),
    ],
)
def test_where_templates_stand(texts: dict[str, str], found: str | None) -> None:
    assert chat_template(texts) == found


@pytest.mark.parametrize(
    ("tokens", "generation", "config", "stops"),
    [
        (TOKENS, {}, {"eos_token_id": 2}, ("<|im_end|>",)),
        (TOKENS, {"eos_token_id": [2, 7]}, {}, ()),
        (TOKENS, {}, {"eos_token_id": 7}, ()),
        ({**TOKENS, "eos_token": {"content": "<|im_end|>"}}, {}, {}, ()),
        # Where the text is no token of its own, nobody can tell it from an answer's words.
        ({"eos_token": "</s>"}, {}, {"eos_token_id": 2}, ()),
    ],
)
def test_ends_of_turns_that_end_no_answer(
    tokens: dict[str, object], generation: dict[str, object], config: dict[str, object], stops: tuple[str, ...]
) -> None:
    texts = {
        "chat_template.jinja": CHATML,
        "tokenizer_config.json": json.dumps(tokens),
        "generation_config.json": json.dumps(generation),
    }
    assert missing_stops(texts, config) == stops
