"""Digests of a prompt: of its prefixes, and the keys that related requests share."""

from array import array
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from itertools import takewhile
from typing import Any

from rayllm.routing.request import RoutingRequest

# Fields that precede the turns of a prompt, and those that hold the turns, in the order in which models read them.
_OPENINGS = ("system", "instructions")
_TURNS = ("messages", "input", "inputs", "prompt", "query", "queries", "text_1", "text_2", "documents", "texts")
_OPENING_ROLES = ("system", "developer")
# Turns after which a prefix ends: the next request of a conversation shares all but its last turns, and other
# conversations with the same opening share its first turns.
_FIRST_TURNS, _LAST_TURNS = 4, 12
# Bytes from which a first turn may be a document with a question, which must not change the key.
_DOCUMENT = 4096
# Bytes (2,000 tokens) from which conversations with the same opening are kept together.
_GROUP = 8192
# Values visited at most, which bounds the time that a deep or long body takes.
_MAX_VALUES = 2048
_SMALL_MESSAGE = 8
_END: Any = object()
# Tokens assumed for an answer: clients often set limits far above what is then generated.
_TYPICAL_ANSWER = 256
_BYTES_PER_TOKEN = 4
# Bytes hashed, about 130,000 tokens.
_MAX_BYTES = 512 * 1024
# Token ids hashed of one list: they cost far more time than text.
_MAX_IDS = 32 * 1024
# Within a long text, prefixes end at growing distances, each 1.5 times the last: at least two thirds of a shared
# beginning are found.
_FIRST_MARK = 2048
# Base64 images and audio are long ASCII without a space: only their ends are hashed.
_MEDIA_END = 512


class DigestChain:
    """Digests of the growing prefixes of a text, the same in every process.

    Attributes:
        digests: digest of each prefix, the shortest first.
        sizes: bytes hashed for each prefix; of images and audio, only the ends are hashed.
        size: bytes hashed so far.
    """

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=8)
        self._next_mark = _FIRST_MARK
        self.digests: list[int] = []
        self.sizes: list[int] = []
        self.size = 0

    def add_text(self, text: str) -> None:
        if len(text) > 4 * _MEDIA_END and _is_media(text):
            text = f"{text[:_MEDIA_END]}{len(text)}{text[-_MEDIA_END:]}"
        self._add(text[: max(0, _MAX_BYTES - self.size)].encode("utf-8", "surrogatepass"))

    def add_ids(self, ids: list[int]) -> None:
        """Append token ids, four bytes each as the text of a token has; raises TypeError or OverflowError."""
        self._add(array("I", ids[: max(0, min(_MAX_IDS, (_MAX_BYTES - self.size) // 4))]).tobytes())

    def mark(self) -> None:
        """End a prefix here, unless a prefix ends here already."""
        if self.size > (self.sizes[-1] if self.sizes else 0):
            self.digests.append(int.from_bytes(self._hash.digest(), "big"))
            self.sizes.append(self.size)

    def _add(self, data: bytes) -> None:
        start = 0
        while self.size + len(data) - start >= self._next_mark:
            end = start + self._next_mark - self.size
            self._hash.update(data[start:end])
            self.size, start = self._next_mark, end
            self.mark()
            self._next_mark += self._next_mark // 2
        self._hash.update(data[start:])
        self.size += len(data) - start


def _is_media(text: str) -> bool:
    start = text[: 2 * _MEDIA_END]
    return start.isascii() and " " not in start


def routing_request(body: Mapping[str, Any], prompt_bytes: int, answer_limit: int | None = None) -> RoutingRequest:
    """Extract the features of a request to a base model. Never fails: malformed requests are refused elsewhere.

    Args:
        body: JSON object of the request, empty for a form.
        prompt_bytes: bytes of all prompts.
        answer_limit: most tokens of an answer; None if the request sets no limit.
    """
    openings, turns = _openings(body), _turns(body)
    leading = list(takewhile(lambda turn: _role(turn) in _OPENING_ROLES, turns))
    openings += leading
    del turns[: len(leading)]
    chain, values = DigestChain(), iter(range(_MAX_VALUES))
    for opening in openings:
        _add(chain, opening, values)
    chain.mark()
    group_key = chain.digests[-1] if chain.size >= _GROUP else 0
    affinity_key, affinity_size = _add_turns(chain, turns, values)
    answer = _TYPICAL_ANSWER if answer_limit is None else min(answer_limit, _TYPICAL_ANSWER)
    return RoutingRequest(
        prefix_digests=tuple(chain.digests),
        prefix_tokens=tuple(size // _BYTES_PER_TOKEN for size in chain.sizes),
        affinity_key=affinity_key,
        affinity_tokens=affinity_size // _BYTES_PER_TOKEN,
        group_key=group_key,
        is_follow_up=any(_role(turn) == "assistant" for turn in turns[1:_FIRST_TURNS]),
        work=1 + max(0, prompt_bytes) // _BYTES_PER_TOKEN + answer,
    )


def _openings(body: Mapping[str, Any]) -> list[Any]:
    openings = [body[name] for name in _OPENINGS if body.get(name)]
    tools = body.get("tools")
    if isinstance(tools, list):
        # Names only: schemas are long, and tools of the same name rarely differ.
        openings.append([_tool_name(tool) for tool in tools[:_MAX_VALUES]])
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
            turns += value[:_MAX_VALUES]
        elif value is not None:
            turns.append(value)
    return turns


def _role(turn: Any) -> Any:
    return turn.get("role") if isinstance(turn, dict) else None


def _add_turns(chain: DigestChain, turns: list[Any], values: Iterator[int]) -> tuple[int, int]:
    """Add all turns; returns the affinity key and the bytes that the key covers."""
    start, key = chain.size, (0, 0)
    for index, turn in enumerate(turns):
        _add(chain, turn, values)
        if index < _FIRST_TURNS or index >= len(turns) - _LAST_TURNS:
            chain.mark()
        if index == 0:
            key = _affinity_key(chain, start)
    return key


def _affinity_key(chain: DigestChain, start: int) -> tuple[int, int]:
    """Digest of the first turn; of a long document, of the longest prefix with half of the document but not its end.

    `chain` ends with the first turn, which `start` bytes precede.
    """
    length = chain.size - start
    marks = list(zip(chain.digests, chain.sizes, strict=True))
    if length >= _DOCUMENT:
        marks = [mark for mark in marks if start + length // 2 <= mark[1] < chain.size] or marks
    return marks[-1] if marks else (0, 0)


def _add(chain: DigestChain, value: Any, values: Iterator[int]) -> None:
    if isinstance(value, dict) and len(value) <= _SMALL_MESSAGE and all(isinstance(v, str) for v in value.values()):
        # Fast path for a plain message.
        for part in value.values():
            chain.add_text(part)
        return
    for text in _texts(value, values):
        if isinstance(text, str):
            chain.add_text(text)
        else:
            _add_ids(chain, text)


def _add_ids(chain: DigestChain, ids: list[Any]) -> None:
    try:
        chain.add_ids(ids)
    except (TypeError, OverflowError):
        chain.add_text("?")


def _texts(value: Any, values: Iterator[int]) -> Iterator[str | list[Any]]:
    """Texts and lists of token ids in a JSON value, in order. Every value visited uses up an entry of `values`."""
    stack: list[Iterator[Any]] = [iter((value,))]
    for _ in values:
        while (item := next(stack[-1], _END)) is _END:
            stack.pop()
            if not stack:
                return
        if isinstance(item, str) or _is_ids(item):
            yield item
        elif isinstance(item, dict):
            stack.append(iter(item.values()))
        elif isinstance(item, list):
            stack.append(iter(item))


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], int)
