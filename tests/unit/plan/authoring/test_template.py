"""Chat templates in a model's files, and stops that the files lack."""

from __future__ import annotations

import json

import pytest

from rayllm.plan.authoring.profile import chat_template, missing_stops

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
TOKENS = {"added_tokens_decoder": {"7": {"content": "<|im_end|>"}, "2": {"content": "</s>"}}, "eos_token": "</s>"}


@pytest.mark.parametrize(
    ("texts", "template"),
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
def test_chat_template_locations(texts: dict[str, str], template: str | None) -> None:
    assert chat_template(texts) == template


@pytest.mark.parametrize(
    ("tokens", "generation", "config", "stops"),
    [
        (TOKENS, {}, {"eos_token_id": 2}, ("<|im_end|>",)),
        (TOKENS, {"eos_token_id": [2, 7]}, {}, ()),
        (TOKENS, {}, {"eos_token_id": 7}, ()),
        ({**TOKENS, "eos_token": {"content": "<|im_end|>"}}, {}, {}, ()),
        # A text that is no single token could occur in an answer.
        ({"eos_token": "</s>"}, {}, {"eos_token_id": 2}, ()),
    ],
)
def test_missing_stops(
    tokens: dict[str, object], generation: dict[str, object], config: dict[str, object], stops: tuple[str, ...]
) -> None:
    texts = {
        "chat_template.jinja": CHATML,
        "tokenizer_config.json": json.dumps(tokens),
        "generation_config.json": json.dumps(generation),
    }
    assert missing_stops(texts, config) == stops
