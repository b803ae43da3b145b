"""The texts in requests and replies."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from rayllm.core.errors import RequestError
from rayllm.core.json_body import parse_body

# Fields of a request that no model reads, whatever its template. All others may be part of the prompt.
_UNREAD = """
    model stream stream_options stop stop_sequences stop_token_ids seed user metadata include store service_tier
    logit_bias bad_words allowed_token_ids cache_salt request_id session_id prompt_cache_key safety_identifier
"""
UNREAD = frozenset(_UNREAD.split())
# Words of the APIs and of JSON schemas. They are no texts as names, and as values of marks.
_API = """
    role type name content text user assistant system tool developer function title url source data media_type base64
    tool_calls tool_call_id tool_use_id call_id id index arguments function_call function_call_output reasoning
    reasoning_content effort message output input output_text input_text refusal summary summary_text tool_use
    tool_result thinking enabled disabled adaptive image image_url input_image input_audio audio_url video_url
    image_embeds audio_embeds video_embeds file file_data text_delta input_json_delta thinking_delta citations_delta
    signature_delta detail auto none required low medium high status completed incomplete in_progress json_object
    json_schema schema input_schema strict parameters properties description items enum anyOf oneOf allOf
    additionalProperties default format object string number integer boolean array null const pattern minimum maximum
    minItems maxItems minLength maxLength $ref $defs
"""
_WORDS = frozenset(_API.split())
_MARKS = frozenset(("type", "role", "status", "detail", "format", "effort", "reasoning_effort", "tool_choice"))
# Of replies, what is not for the client to read, or repeats a text.
_NOT_SAID = "logprobs annotations signature encrypted_content id call_id object finish_reason stop_reason stop_sequence"
_IGNORED = frozenset(_NOT_SAID.split(" "))
# Where replies have what the model has written.
_REPLY_FIELDS = ("choices", "output", "content")
# Fields with the turns of a conversation, whose parts may be images or sound.
_TURNS = ("messages", "input")
_MEDIA = ("image_url", "audio_url", "video_url", "input_audio", "image_embeds", "audio_embeds", "video_embeds")
# By a part's type, the field that an engine decodes as an image or sound.
_MEDIA_OF = {name: name for name in _MEDIA} | {"input_image": "image_url", "image": "source"}
_DATA_URL = re.compile(r"data:[\w.+-]{1,64}/[\w.+-]{1,64};base64,")
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_=\r\n"
# Of forms; an engine checks what languages there are.
_FORM_OPTIONS = frozenset(("language", "to_language", "response_format", "temperature", "timestamp_granularities[]"))
# What was asked last matters most to a guard.
_LAST = ("messages", "prompt", "suffix", "input")
# Vectors in place of a text: a field of completions, and a part of messages.
_VECTORS = "prompt_embeds"
# Where a value is: anywhere, a turn of a conversation, a part of a turn, and the content of an image or of sound.
_ANYWHERE, _TURN, _PART, _BINARY = range(4)

Leaf = tuple[str, Any]
"""A text or number with the name that it has; the name of a property, without one; or None, for an image or sound,
whose content is left out."""


def request_texts(body: dict[str, Any]) -> list[str]:
    """The texts of a request to generate, in order: all that a template may show, names of properties included.

    Raises RequestError for token ids, vectors or PDFs in the prompt, which a guard cannot read.
    """
    prompt = body.get("prompt")
    if isinstance(prompt, list) and any(not isinstance(each, str) for each in prompt):
        raise RequestError(
            "The requests of this service are checked, so `prompt` must be text, not token ids.", "prompt"
        )
    leaves = prompt_leaves(body)
    if _VECTORS in body or ("", _VECTORS) in leaves or ("type", _VECTORS) in leaves:
        raise RequestError("The requests of this service are checked, so they must have no `prompt_embeds`.", "prompt")
    if ("media_type", "application/pdf") in leaves or any(name == "file_data" for name, _ in leaves):
        raise RequestError("The requests of this service are checked, so send the text of a PDF instead.")
    return list(_texts(leaves))


def texts_of(raw: bytes) -> list[str]:
    return request_texts(parse_body(raw))


def reply_texts(body: dict[str, Any]) -> list[str]:
    """The text of each answer in a reply, in order."""
    found = []
    for name in _REPLY_FIELDS:
        value = body.get(name)
        answers = value if name == "choices" and isinstance(value, list) else [value]
        found += ["\n".join(_texts(_collect([], answer, ignored=_IGNORED))) for answer in answers]
    return [text for text in found if text]


def delta_texts(delta: Any) -> Iterator[str]:
    """The texts in a part of a streamed reply, in which names are the API's."""
    return _texts(leaf for leaf in _collect([], delta, ignored=_IGNORED) if leaf[0])


def prompt_leaves(body: Mapping[str, Any], turns: Iterable[str] = _TURNS) -> list[Leaf]:
    """All of a request that a model may read; objects in the fields `turns` may have images or sound as `content`."""
    found: list[Leaf] = []
    for name, value in sorted(body.items(), key=lambda field: field[0] in _LAST):
        if name not in UNREAD:
            _collect(found, value, name, _TURN if name in turns else _ANYWHERE)
    return found


def form_texts(fields: Iterable[tuple[str, str]]) -> list[str]:
    """The texts in the fields of a form with sound."""
    return [value for name, value in fields if name not in UNREAD | _FORM_OPTIONS and value]


def _texts(leaves: Iterable[Leaf]) -> Iterator[str]:
    for name, value in leaves:
        if isinstance(value, str) and value and not (value in _WORDS and (not name or name in _MARKS)):
            yield value


def _collect(
    found: list[Leaf], value: Any, name: str = "-", place: int = _ANYWHERE, ignored: frozenset[str] = frozenset()
) -> list[Leaf]:
    if isinstance(value, dict):
        media = _media_in(value) if place == _PART else None
        if media:
            found.append(("", None))
        for key, item in value.items():
            if key not in ignored:
                found.append(("", key))
                # The model's own JSON, in which any name is the client's.
                names = ignored if key != "input" else frozenset[str]()
                _collect(found, item, key or "-", _place_in(value, key, place, media), names)
    elif isinstance(value, list):
        for item in value:
            _collect(found, item, name, place, ignored)
    elif isinstance(value, str):
        if place != _BINARY or not _is_base64(value):
            found.append((name, value))
        if name == "arguments" and "\\" in value:
            # Engines and clients read it as JSON, whose escapes hide a text.
            with suppress(RequestError):
                _collect(found, parse_body(value.encode(errors="replace")))
    elif value is not None and not isinstance(value, bool):
        found.append((name, value))
    return found


def _place_in(value: dict[str, Any], key: str, place: int, media: str | None) -> int:
    if key == media or place == _BINARY:
        return _BINARY
    has_parts = place == _TURN or (place == _PART and value.get("type") == "tool_result")
    return _PART if key == "content" and has_parts else _ANYWHERE


def _media_in(part: dict[str, Any]) -> str | None:
    """The field of a content part that an engine decodes; parts may have no type."""
    kind = part.get("type") or next((name for name in _MEDIA if name in part), None)
    field = _MEDIA_OF.get(kind) if isinstance(kind, str) else None
    return field if field in part else None


def _is_base64(text: str) -> bool:
    content = text.removeprefix(found[0]) if (found := _DATA_URL.match(text)) else text
    return content.isascii() and not content.encode().translate(None, _BASE64)
