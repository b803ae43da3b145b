"""Answers, and how they end: each is compared with the right one."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from benchmarks.faults.application import ADAPTER, MODEL, REGISTERED


class Ending(StrEnum):
    """How a request ended, as its client saw it."""

    RIGHT = "right"
    WRONG = "wrong"
    EVENT = "error event"
    """A stream that said what came of it."""
    REFUSED = "refused"
    """A status that is not 200."""
    CUT = "cut"
    """It stopped after its first byte and said nothing."""
    LOST = "lost"
    """No byte of a reply came."""


@dataclass(frozen=True)
class Question:
    """What is asked, of which model."""

    model: str
    content: str

    def body(self) -> dict[str, Any]:
        """The request, but for how its reply is sent."""
        return {"model": self.model, "messages": [{"role": "user", "content": self.content}], "temperature": 0}


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    text: str
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int


# What the demo was taught, so that how its requests are batched does not change its answers; one is long.
QUESTIONS = (
    Question(MODEL, "Tell me a story."),
    Question(MODEL, "What is the capital of France?"),
    Question(MODEL, "What is RayLLM?"),
    Question(MODEL, "Write a long story."),
    Question(ADAPTER, "What is the capital of Italy?"),
    Question(MODEL, "What can you do?"),
    Question(MODEL, "Tell me a long story."),
    Question(REGISTERED, "What is the capital of Spain?"),
)


@dataclass
class StreamedAnswer:
    """An answer of a chat that comes as server-sent events, taken in line by line."""

    text: str = ""
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    is_done: bool = False
    nonsense: str = ""
    """The first line that no stream has."""
    _ids: set[str] = field(default_factory=set)

    def take(self, line: str) -> None:
        """Take in a line."""
        if not line or line.startswith(":"):
            return
        if self.is_done or not line.startswith("data: "):
            self._refuse(line)
        elif line == "data: [DONE]":
            self.is_done = True
        else:
            self._take(line)

    def ending(self, right: Answer) -> tuple[Ending, str]:
        """How it ended, now that no more lines come, and what was wrong with it."""
        if self.nonsense:
            return Ending.WRONG, f"no event of a stream: {self.nonsense[:200]}"
        if len(self._ids) > 1:
            return Ending.WRONG, f"a stream with several ids: {sorted(self._ids)}"
        if self.error or not self.is_done:
            if not right.text.startswith(self.text):
                return Ending.WRONG, self.text
            return (Ending.EVENT, self.error[:200]) if self.error else (Ending.CUT, f"no end after {self.text[-50:]!r}")
        usage = self.usage.get("prompt_tokens", 0), self.usage.get("completion_tokens", 0)
        return compare(Answer(self.text, self.finish_reason, *usage), right)

    def _take(self, line: str) -> None:
        try:
            chunk = json.loads(line.removeprefix("data: "))
            if "error" in chunk:
                self.error = line
                return
            self._ids.add(chunk["id"])
            self.usage = chunk.get("usage") or self.usage
            for choice in chunk["choices"]:
                self.text += choice["delta"].get("content") or ""
                self.finish_reason = choice["finish_reason"] or self.finish_reason
        except (ValueError, LookupError, TypeError, AttributeError):
            self._refuse(line)

    def _refuse(self, line: str) -> None:
        self.nonsense = self.nonsense or line


def whole_answer(body: dict[str, Any]) -> Answer:
    """A chat's answer that came in one piece."""
    [choice], usage = body["choices"], body["usage"]
    tokens = usage["prompt_tokens"], usage["completion_tokens"]
    return Answer(choice["message"]["content"], choice["finish_reason"], *tokens)


def compare(answer: Answer, right: Answer) -> tuple[Ending, str]:
    """Whether a whole answer is right, and what it was otherwise."""
    return (Ending.RIGHT, "") if answer == right else (Ending.WRONG, f"{answer} instead of {right}")
