"""A model's own chat template, and the stop texts that its files lack."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_TOKENIZER, _GENERATION = "tokenizer_config.json", "generation_config.json"
_TEMPLATE, _OLD_TEMPLATE = "chat_template.jinja", "chat_template.json"
FILES = (_TOKENIZER, _GENERATION, _TEMPLATE, _OLD_TEMPLATE)
"""Files that may hold the template and the stops."""

# End-of-turn tokens of many families.
_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|END_OF_TURN_TOKEN|>", "<turn|>")


def chat_template(texts: Mapping[str, str]) -> str | None:
    """A model's chat template, from the contents of those of `FILES` that exist; the default of several."""
    if _TEMPLATE in texts:
        return texts[_TEMPLATE]
    for path in (_OLD_TEMPLATE, _TOKENIZER):
        template = _mapping(texts.get(path)).get("chat_template")
        if isinstance(template, list):
            by_name = {entry["name"]: entry["template"] for entry in template if {"name", "template"} <= entry.keys()}
            template = by_name.get("default")
        if isinstance(template, str):
            return template
    return None


def missing_stops(texts: Mapping[str, str], config: Mapping[str, Any]) -> tuple[str, ...]:
    """End-of-turn tokens in the chat template that the model's own files do not declare as end of generation."""
    template, tokenizer = chat_template(texts) or "", _mapping(texts.get(_TOKENIZER))
    added_tokens = {str(key): _content(value) for key, value in (tokenizer.get("added_tokens_decoder") or {}).items()}
    # A text that is no single token could occur in an answer.
    used = [end for end in _END_OF_TURN if end in template and end in added_tokens.values()]
    declared = {_content(tokenizer.get("eos_token"))}
    for file in (_mapping(texts.get(_GENERATION)), config):
        ids = file.get("eos_token_id")
        declared |= {added_tokens.get(str(number), "") for number in (ids if isinstance(ids, list) else [ids])}
    return tuple(end for end in used if end not in declared)


def _content(value: Any) -> str:
    return str(value.get("content", "")) if isinstance(value, dict) else str(value or "")


def _mapping(text: str | None) -> Mapping[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
