"""Loads for the simulated fleet: each turn as a router meets it, a body, and the blocks of KV cache that it takes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any

from benchmarks.fleet import BLOCK, Turn
from rayllm.routing import routing_request

_WORDS_A_BLOCK = BLOCK


@dataclass
class _Text:
    """A text and the blocks that it takes."""

    words: str
    blocks: tuple[int, ...]


class Writer:
    """Texts that differ from one another."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._blocks = count()

    def text(self, tokens: float) -> _Text:
        """A text of about so many tokens, four bytes each."""
        blocks = max(1, round(tokens / BLOCK))
        letters = self.random.randbytes(blocks * _WORDS_A_BLOCK * 3 // 2).hex()
        words = " ".join(letters[at : at + 3] for at in range(0, len(letters), 3))
        return _Text(words, tuple(next(self._blocks) for _ in range(blocks)))

    def about(self, mean: float) -> float:
        """A length: now and then several times the mean."""
        return mean * self.random.lognormvariate(-0.32, 0.8)

    def times(self, rate: float, number: int) -> list[float]:
        """Arrivals at random, `rate` a second."""
        at, times = 0.0, []
        for _ in range(number):
            at += self.random.expovariate(rate)
            times.append(at)
        return times

    def pick(self, among: Sequence[Any], exponent: float = 1.0) -> Any:
        """One of several, by Zipf's law."""
        weights = [1 / rank**exponent for rank in range(1, len(among) + 1)]
        return self.random.choices(among, weights)[0]


def _turn(at: float, opening: _Text | None, turns: Sequence[_Text], answer: _Text, adapter: str = "") -> Turn:
    messages = [{"role": "system", "content": opening.words}] if opening else []
    for index, text in enumerate(turns):
        messages.append({"role": "assistant" if index % 2 else "user", "content": text.words})
    prompt = [block for text in (*([opening] if opening else []), *turns) for block in text.blocks]
    body = {"messages": messages, "max_tokens": 256}
    request = routing_request(body, sum(len(message["content"]) for message in messages))
    return Turn(at, request.with_target(adapter, str(turns[0].blocks[-1])), prompt, answer.blocks)


def _conversation(writer: Writer, at: float, opening: _Text, turns: int, adapter: str = "") -> Turn:
    texts: list[_Text] = []
    made: list[Turn] = []
    for _ in range(turns):
        texts.append(writer.text(writer.about(150)))
        answer = writer.text(writer.about(200))
        made.append(_turn(at, opening, texts, answer, adapter))
        made[-1].pause = writer.random.expovariate(1 / 5)
        texts.append(answer)
    for turn, following in pairwise(made):
        turn.then = following
    return made[0]


def chats(seed: int = 1, number: int = 500, rate: float = 6.0) -> list[Turn]:
    """Conversations of eight turns in the mean, under eight system prompts of a thousand tokens."""
    writer = Writer(seed)
    openings = [writer.text(1000) for _ in range(8)]
    return [
        _conversation(writer, at, writer.pick(openings), 1 + int(writer.random.expovariate(1 / 7.5)))
        for at in writer.times(rate, number)
    ]


def tenants(seed: int = 2, number: int = 900, rate: float = 7.0) -> list[Turn]:
    """150 tenants with a system prompt of 6,000 tokens each, more than half of what all caches hold."""
    writer = Writer(seed)
    openings = [writer.text(6000) for _ in range(150)]
    return [_conversation(writer, at, writer.random.choice(openings), 3) for at in writer.times(rate, number)]


def documents(seed: int = 3, number: int = 1500, rate: float = 16.0) -> list[Turn]:
    """Questions on 60 documents of 12,000 tokens, each in one message with its document before it."""
    writer = Writer(seed)
    papers = [writer.text(writer.about(12_000)) for _ in range(60)]
    return [_asked(writer, at, writer.pick(papers, 0.8)) for at in writer.times(rate, number)]


def _asked(writer: Writer, at: float, paper: _Text) -> Turn:
    question = writer.text(writer.about(60))
    both = _Text(f"{paper.words}\n\n{question.words}", (*paper.blocks, *question.blocks))
    return _turn(at, None, [both], writer.text(writer.about(150)))


def singles(seed: int = 4, number: int = 3000, rate: float = 28.0) -> list[Turn]:
    """Prompts that share nothing."""
    writer = Writer(seed)
    return [
        _turn(at, None, [writer.text(writer.about(1000))], writer.text(writer.about(200)))
        for at in writer.times(rate, number)
    ]


def adapted(seed: int = 5, number: int = 4000, rate: float = 24.0) -> list[Turn]:
    """Single prompts for 100 adapters, asked for by Zipf's law."""
    writer = Writer(seed)
    names = [f"adapter-{index}" for index in range(100)]
    return [
        _turn(at, None, [writer.text(writer.about(300))], writer.text(writer.about(150)), writer.pick(names))
        for at in writer.times(rate, number)
    ]
