"""The texts in requests and replies."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rayllm.core.errors import RequestError
from rayllm.core.json_body import parse_body

# Where requests to generate have what the model reads.
_REQUEST_FIELDS = ("system", "instructions", "documents", "tools", "messages", "prompt", "suffix", "input")
# Where replies have what the model has written.
_REPLY_FIELDS = ("choices", "output", "content")
# Marks of the APIs, skipped as long as they are short: clients can write texts there, too.
_MARKS = frozenset(
    (
        *("type", "role", "id", "call_id", "tool_call_id", "tool_use_id", "status", "object"),
        *("finish_reason", "stop_reason", "stop_sequence", "format", "detail"),
    )
)
_LONGEST_MARK = 48
# Content parts that are no text, and where they have their files.
_MEDIA_TYPES = re.compile(r"(input_)?(image|audio|video|file)(_url|_embeds|_pil)?")
_MEDIA = frozenset(
    (
        *("image_url", "audio_url", "video_url", "input_audio", "image_embeds", "audio_embeds", "image_pil"),
        *("file", "file_data", "file_url", "source"),
    )
)
# Repeats of a reply's text.
_REPEATS = frozenset(("logprobs", "annotations", "signature", "encrypted_content"))


def request_texts(body: dict[str, Any]) -> list[str]:
    """The texts of a request to generate, in order.

    Raises:
        RequestError: its prompt has token ids, which a guard cannot read.
    """
    prompt = body.get("prompt")
    if _has_numbers(prompt):
        raise RequestError(
            "The requests of this service are checked, so `prompt` must be text, not token ids.", "prompt"
        )
    return [text for name in _REQUEST_FIELDS for text in texts_in(body.get(name))]


def texts_of(raw: bytes) -> list[str]:
    """The texts of a request to generate, from its body."""
    return request_texts(parse_body(raw))


def reply_texts(body: dict[str, Any]) -> list[str]:
    """The texts of each answer in a reply, in order, with those of one answer joined."""
    found = []
    for name in _REPLY_FIELDS:
        value = body.get(name)
        answers = value if name == "choices" and isinstance(value, list) else [value]
        found += ["\n".join(texts_in(answer, _REPEATS)) for answer in answers]
    return [text for text in found if text]


def texts_in(value: Any, ignored: frozenset[str] = frozenset()) -> Iterator[str]:
    """The texts in a JSON value, at any depth."""
    if isinstance(value, str):
        if value:
            yield value
    elif isinstance(value, list):
        for item in value:
            yield from texts_in(item, ignored)
    elif isinstance(value, dict):
        skipped = ignored | _MEDIA if _is_media(value) else ignored
        for name, item in value.items():
            if name not in skipped and not _is_mark(name, item):
                yield from texts_in(item, ignored)


def _is_media(part: dict[str, Any]) -> bool:
    return isinstance(kind := part.get("type"), str) and _MEDIA_TYPES.fullmatch(kind) is not None


def _is_mark(name: str, value: Any) -> bool:
    return name in _MARKS and isinstance(value, str) and len(value) <= _LONGEST_MARK


def _has_numbers(prompt: Any) -> bool:
    return isinstance(prompt, list) and any(not isinstance(each, str) for each in prompt)
