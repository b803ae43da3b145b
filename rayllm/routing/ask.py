"""What a request means for the choice of a replica."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import takewhile
from typing import Any

from rayllm.routing.chain import Chain

# Fields that come before a prompt's turns, and those that hold the turns, in the order in which models read them.
_OPENINGS = ("system", "instructions")
_TURNS = ("messages", "input", "inputs", "prompt", "query", "queries", "text_1", "text_2", "documents", "texts")
_ANSWER_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_ROLES_OF_OPENINGS = ("system", "developer")
# Tokens that an answer is taken to have: limits are often set far higher than what is then written.
_USUAL_ANSWER = 256
_BYTES_A_TOKEN = 4
# A form holds a sound file, of which 256 bytes or so become a token.
_FORM_BYTES_A_TOKEN = 256
# Turns after which the prompt is marked: the next request of a conversation shares all but its last turns, its siblings
# the first ones.
_FIRST_TURNS, _LAST_TURNS = 4, 12
# A first turn as long as this is a document with a question, or may be; the question should not decide.
_DOCUMENT = 4096
# An opening as long as this, 2,000 tokens, is worth keeping what shares it together.
_GROUP = 8192
# Values looked at, so that neither nesting nor number costs time.
_MOST_VALUES = 2048
_FEW = 8
_END: Any = object()


@dataclass(frozen=True)
class Ask:
    """What one request means for the choice of a replica.

    Args:
        adapter: name of the adapter, "" for the base.
        session: value of the session header, "" for none.
        prefix: digests of the prompt's beginnings, each covering all before it, from short to long.
        sizes: the tokens that each of these covers, about.
        home: the digest that stays the same for a whole conversation, or for all questions on a document; 0 for none.
        home_size: the tokens that it covers.
        group: the digest of a long opening that conversations may share; 0 for none.
        is_later_turn: whether the conversation was answered before.
        work: tokens that it is expected to cost a replica, the answer included.
    """

    adapter: str = ""
    session: str = ""
    prefix: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    home: int = 0
    home_size: int = 0
    group: int = 0
    is_later_turn: bool = False
    work: int = 1

    @property
    def size(self) -> int:
        """The tokens that the longest of `prefix` covers; at least 1."""
        return max(1, self.sizes[-1]) if self.sizes else 1

    def of(self, adapter: str, session: str) -> Ask:
        """The same request to an adapter, "" for the base, in a session, "" for none."""
        own = _Salt(adapter) if adapter else int
        return replace(
            self,
            adapter=adapter,
            session=session,
            prefix=tuple(own(digest) for digest in self.prefix),
            home=own(self.home),
            group=own(self.group),
        )


class _Salt:
    """Makes digests an adapter's own, the same in every process; 0, which stands for none, stays 0."""

    def __init__(self, adapter: str) -> None:
        self._hash = blake2b(adapter.encode("utf-8", "surrogatepass"), digest_size=8)

    def __call__(self, digest: int) -> int:
        salted = self._hash.copy()
        salted.update(digest.to_bytes(8, "big"))
        return int.from_bytes(salted.digest(), "big") if digest else 0


def ask_of(body: Mapping[str, Any], raw_size: int) -> Ask:
    """What a request to a base means for the choice; of any kind and however broken: others refuse what is wrong.

    Args:
        body: the request's JSON object, empty for a form.
        raw_size: bytes of the request.
    """
    if not body:
        return Ask(work=1 + max(0, raw_size) // _FORM_BYTES_A_TOKEN)
    openings, turns = _openings(body), _turns(body)
    first = list(takewhile(_is_opening, turns))
    openings += first
    del turns[: len(first)]
    chain, values = Chain(), iter(range(_MOST_VALUES))
    for opening in openings:
        _add(chain, opening, values)
    chain.mark()
    group = chain.digests[-1] if chain.size >= _GROUP else 0
    home, home_size = _add_turns(chain, turns, values)
    return Ask(
        prefix=tuple(chain.digests),
        sizes=tuple(size // _BYTES_A_TOKEN for size in chain.sizes),
        home=home,
        home_size=home_size // _BYTES_A_TOKEN,
        group=group,
        is_later_turn=any(_is_answer(turn) for turn in turns[1:_FIRST_TURNS]),
        work=1 + (chain.size + chain.unseen) // _BYTES_A_TOKEN + _answer(body),
    )


def _openings(body: Mapping[str, Any]) -> list[Any]:
    openings = [body[name] for name in _OPENINGS if body.get(name)]
    tools = body.get("tools")
    if isinstance(tools, list):
        # Their names: schemas are long, and whoever calls a tool the same means the same.
        openings.append([_tool_name(tool) for tool in tools[:_MOST_VALUES]])
    return openings


def _tool_name(tool: Any) -> Any:
    if not isinstance(tool, dict):
        return tool
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else tool.get("name")


def _turns(body: Mapping[str, Any]) -> list[Any]:
    turns: list[Any] = []
    for name in _TURNS:
        value = body.get(name)
        if isinstance(value, list) and not _is_ids(value):
            turns += value[:_MOST_VALUES]
        elif value is not None:
            turns.append(value)
    return turns


def _is_opening(turn: Any) -> bool:
    return isinstance(turn, dict) and turn.get("role") in _ROLES_OF_OPENINGS


def _is_answer(turn: Any) -> bool:
    return isinstance(turn, dict) and turn.get("role") == "assistant"


def _add_turns(chain: Chain, turns: list[Any], values: Iterator[int]) -> tuple[int, int]:
    """Add all turns; the digest by which the conversation has its home, and its size."""
    start, home = chain.size, (0, 0)
    for index, turn in enumerate(turns):
        _add(chain, turn, values)
        if index < _FIRST_TURNS or index >= len(turns) - _LAST_TURNS:
            chain.mark()
        if index == 0:
            home = _home(chain, start)
    return home


def _home(chain: Chain, start: int) -> tuple[int, int]:
    """The digest of all so far, or of the longest marked beginning that holds half of a long first turn; its size."""
    length = chain.size - start
    marks = list(zip(chain.digests, chain.sizes, strict=True))
    if length >= _DOCUMENT:
        marks = [mark for mark in marks if start + length // 2 <= mark[1] < chain.size] or marks
    return marks[-1] if marks else (0, 0)


def _add(chain: Chain, value: Any, values: Iterator[int]) -> None:
    if isinstance(value, dict) and len(value) <= _FEW and all(isinstance(part, str) for part in value.values()):
        # A message as most are, of which there are many.
        for part in value.values():
            chain.add_text(part)
        return
    for text in _texts(value, values):
        if isinstance(text, str):
            chain.add_text(text)
        else:
            _add_ids(chain, text)


def _add_ids(chain: Chain, ids: list[Any]) -> None:
    try:
        chain.add_ids(ids)
    except (TypeError, OverflowError):
        chain.add_text("?")


def _texts(value: Any, values: Iterator[int]) -> Iterator[str | list[Any]]:
    """Texts and lists of token ids in a value, in their order; each value on the way takes one of `values`."""
    waiting: list[Iterator[Any]] = [iter((value,))]
    for _ in values:
        while (item := next(waiting[-1], _END)) is _END:
            waiting.pop()
            if not waiting:
                return
        if isinstance(item, str) or _is_ids(item):
            yield item
        elif isinstance(item, dict):
            waiting.append(iter(item.values()))
        elif isinstance(item, list):
            waiting.append(iter(item))


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], int)


def _answer(body: Mapping[str, Any]) -> int:
    """Tokens that the answer may have."""
    for name in _ANSWER_LIMITS:
        limit = body.get(name)
        if isinstance(limit, int):
            return max(0, min(limit, _USUAL_ANSWER))
    return _USUAL_ANSWER
