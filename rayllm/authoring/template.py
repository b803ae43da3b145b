"""A model's own chat template, and the texts that end its turns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_TOKENIZER, _GENERATION = "tokenizer_config.json", "generation_config.json"
_TEMPLATE, _OLD_TEMPLATE = "chat_template.jinja", "chat_template.json"
FILES = (_TOKENIZER, _GENERATION, _TEMPLATE, _OLD_TEMPLATE)
"""Files that tell of templates and stops."""

# Texts that end a turn in the templates of many families.
_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|END_OF_TURN_TOKEN|>", "<turn|>")


def chat_template(texts: Mapping[str, str]) -> str | None:
    """The chat template that lies beside a model; of several, the default one.

    Args:
        texts: what stands in those of `FILES` that are there.
    """
    if _TEMPLATE in texts:
        return texts[_TEMPLATE]
    for path in (_OLD_TEMPLATE, _TOKENIZER):
        found = _mapping(texts.get(path)).get("chat_template")
        if isinstance(found, list):
            by_name = {entry["name"]: entry["template"] for entry in found if {"name", "template"} <= entry.keys()}
            found = by_name.get("default")
        if isinstance(found, str):
            return found
    return None


def missing_stops(texts: Mapping[str, str], config: Mapping[str, Any]) -> tuple[str, ...]:
    """Texts that end a turn by the chat template, where the model's own files do not end an answer there.

    Args:
        texts: as of `chat_template`.
        config: the model's config.json.
    """
    template, tokenizer = chat_template(texts) or "", _mapping(texts.get(_TOKENIZER))
    known = {str(key): _content(value) for key, value in (tokenizer.get("added_tokens_decoder") or {}).items()}
    # A text that is no token of its own cannot be told apart from an answer's words.
    written = [end for end in _ENDS if end in template and end in known.values()]
    ends = {_content(tokenizer.get("eos_token"))}
    for holder in (_mapping(texts.get(_GENERATION)), config):
        ids = holder.get("eos_token_id")
        ends |= {known.get(str(number), "") for number in (ids if isinstance(ids, list) else [ids])}
    return tuple(end for end in written if end not in ends)


def _content(value: Any) -> str:
    return str(value.get("content", "")) if isinstance(value, dict) else str(value or "")


def _mapping(text: str | None) -> Mapping[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
