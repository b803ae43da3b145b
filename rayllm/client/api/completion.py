"""An answer, put together from the events of its stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple


class ToolCallDelta(NamedTuple):
    """A piece of a tool call. Its number tells which; id and name come with the first piece."""

    number: int
    id: str
    name: str
    arguments: str


class Delta(NamedTuple):
    """What one event adds to an answer."""

    text: str
    reasoning: str = ""
    calls: tuple[ToolCallDelta, ...] = ()


def piece(event: dict[str, Any]) -> Delta | None:
    """What an event adds; None where it only opens the answer, ends it or counts it.

    A piece may be empty: a token that makes no text by itself came all the same.
    """
    choices = event.get("choices")
    if not choices:
        return None
    choice = choices[0]
    if (text := choice.get("text")) is not None:
        return Delta(text)
    delta = choice.get("delta") or {}
    content, calls = delta.get("content"), delta.get("tool_calls")
    reasoning = delta.get("reasoning") or delta.get("reasoning_content") or ""
    if content and not calls and not reasoning:
        return Delta(content)
    text = content or delta.get("refusal") or ""
    if not (text or reasoning or calls) and (content is None or "role" in delta):
        return None
    return Delta(text, reasoning, tuple(map(_call_part, calls or ())))


def _call_part(given: dict[str, Any]) -> ToolCallDelta:
    function = given.get("function") or {}
    arguments = function.get("arguments") or ""
    return ToolCallDelta(given.get("index", 0), given.get("id") or "", function.get("name") or "", arguments)


@dataclass
class ToolCall:
    """A function that the model wants to have called."""

    id: str
    name: str
    arguments: str = ""

    def as_message(self) -> dict[str, Any]:
        """As it stands in an assistant's message."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass
class Completion:
    """What has come of an answer so far."""

    text: str = ""
    reasoning: str = ""
    calls_by_number: dict[int, ToolCall] = field(default_factory=dict)
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    logprobs: dict[str, list[Any]] = field(default_factory=dict)

    def take(self, event: dict[str, Any]) -> Delta | None:
        """Take in an event of its stream; what it adds."""
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices") or ():
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            for name, values in (choice.get("logprobs") or {}).items():
                self.logprobs.setdefault(name, []).extend(values or ())
        added = piece(event)
        if added is not None:
            self.text += added.text
            self.reasoning += added.reasoning
            for part in added.calls:
                call = self.calls_by_number.setdefault(part.number, ToolCall(part.id, part.name))
                call.arguments += part.arguments
        return added

    @property
    def calls(self) -> list[ToolCall]:
        """The tool calls, in the order in which they began."""
        return list(self.calls_by_number.values())

    def as_message(self) -> dict[str, Any]:
        """The assistant's message that it is."""
        calls = {"tool_calls": [call.as_message() for call in self.calls]} if self.calls else {}
        return {"role": "assistant", "content": self.text or None if calls else self.text, **calls}
