"""How many tokens a request may take, counted as vLLM reads the request."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rayllm.core.endpoints import CHAT, CHAT_BATCH, COMPLETIONS, MESSAGES, RESPONSES
from rayllm.serving.router.requests.texts import Leaf, prompt_leaves

# The fields that limit an answer, first the one that counts; other endpoints for JSON write no answers. The endpoints
# of the Responses and the Messages API write one.
_LIMITS = {
    **dict.fromkeys((CHAT, CHAT_BATCH), ("max_completion_tokens", "max_tokens")),
    **dict.fromkeys((COMPLETIONS, MESSAGES), ("max_tokens",)),
    RESPONSES: ("max_output_tokens",),
}
_WITH_N = (CHAT, CHAT_BATCH, COMPLETIONS)
# More is refused by engines.
_MAX_ANSWERS, _MAX_TOKENS = 16384, 2**31
# Texts that are scored, each with what is in the other fields.
_QUERIES = ("query", "queries", "text_1", "data_1")
_SCORED = ("documents", "items", "text_2", "data_2")
_TURNS = ("messages", "input", *_QUERIES, *_SCORED)
# Bytes that stand for a number, which is the id of a token; for an image or sound; and for a byte of a form with sound.
_NUMBER, _MEDIA, _FORM_BYTE = 4, 4096, 1 / 64


@dataclass(frozen=True)
class Demand:
    """What a request may take.

    Args:
        prompt_bytes: bytes of all prompts.
        answers: how many answers it asks for.
        answer_limit: most tokens of each of them; None if the request does not say.
    """

    prompt_bytes: int = 0
    answers: int = 1
    answer_limit: int | None = None


def demand_of(path: str, body: Mapping[str, Any]) -> Demand:
    """What a JSON request may take. Never fails: malformed requests are refused elsewhere."""
    prompt_bytes = _prompt_bytes(path, body)
    if path not in _LIMITS:
        return Demand(prompt_bytes, 0, 0)
    count = whole_number(body.get("n")) if path in _WITH_N else 1
    each = count if count and 1 <= count <= _MAX_ANSWERS else 1
    prompts = max(_entries(body.get("prompt")), _entries(body.get("messages")))
    return Demand(prompt_bytes, each * prompts, _limit(body, _LIMITS[path]))


def demand_of_form(size: int, fields: Iterable[tuple[str, str]]) -> Demand:
    """What a form with sound may take."""
    return Demand(int(size * _FORM_BYTE), 1, _limit(dict(fields), ("max_completion_tokens",)))


def whole_number(value: Any) -> int | None:
    """A number as vLLM's schemas read numbers, which accept texts such as "8_000"; None for anything else."""
    if isinstance(value, int):
        return int(value)
    if not isinstance(value, str | float):
        return None
    # Rarely needed, and expensive to import where large bodies are read.
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(int).validate_python(value)
    except ValidationError:
        return None


def _limit(body: Mapping[str, Any], names: Iterable[str]) -> int | None:
    limit = whole_number(next((value for name in names if (value := body.get(name)) is not None), None))
    return None if limit is None else min(max(0, limit), _MAX_TOKENS)


def _prompt_bytes(path: str, body: Mapping[str, Any]) -> int:
    """Bytes of all that a model may read; what several prompts have in common counts once for each prompt."""
    many = ("messages",) if path == CHAT_BATCH else () if path in _LIMITS else _SCORED
    name = next((name for name in many if isinstance(body.get(name), list)), None)
    if name is None:
        return _size(body)
    queries = max((len(value) for each in _QUERIES if isinstance(value := body.get(each), list)), default=1)
    shared = _size({field: value for field, value in body.items() if field != name})
    return _size({name: body[name]}) + shared * max(1, len(body[name]) // max(1, queries))


def _size(body: Mapping[str, Any]) -> int:
    return sum(map(_bytes, prompt_leaves(body, _TURNS)))


def _bytes(leaf: Leaf) -> int:
    value = leaf[1]
    if value is None:
        return _MEDIA
    return len(value.encode("utf-8", "surrogatepass")) if isinstance(value, str) else _NUMBER


def _entries(prompt: Any) -> int:
    """How many prompts a field holds, which may be one text, token IDs or list of messages."""
    return len(prompt) if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else 1
