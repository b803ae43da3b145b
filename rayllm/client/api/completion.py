"""Assemble a completion from the events of its stream."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple


class ToolCallDelta(NamedTuple):
    """A part of the tool call `call_index`; the first part has its id and name."""

    call_index: int
    id: str
    name: str
    arguments: str


class Delta(NamedTuple):
    """What one event adds to a completion."""

    text: str
    reasoning: str = ""
    calls: tuple[ToolCallDelta, ...] = ()


def parse_delta(event: dict[str, Any]) -> Delta | None:
    """The delta of an event; None if it has only a role, a finish reason or usage.

    A delta may be empty, for a token without text of its own.
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
    return Delta(text, reasoning, tuple(map(_tool_call_delta, calls or ())))


def _tool_call_delta(call: dict[str, Any]) -> ToolCallDelta:
    function = call.get("function") or {}
    arguments = function.get("arguments") or ""
    return ToolCallDelta(call.get("index", 0), call.get("id") or "", function.get("name") or "", arguments)


@dataclass
class ToolCall:
    """A function call requested by the model."""

    id: str
    name: str
    arguments: str = ""

    def as_message(self) -> dict[str, Any]:
        """The call as in an assistant message."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass
class Completion:
    """A completion, as far as it was received."""

    text: str = ""
    reasoning: str = ""
    calls_by_index: dict[int, ToolCall] = field(default_factory=dict)
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    logprobs: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, event: dict[str, Any]) -> Delta | None:
        """Add an event of the stream; returns its delta."""
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices") or ():
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            for name, values in (choice.get("logprobs") or {}).items():
                self.logprobs.setdefault(name, []).extend(values or ())
        delta = parse_delta(event)
        if delta is not None:
            self.text += delta.text
            self.reasoning += delta.reasoning
            for part in delta.calls:
                call = self.calls_by_index.setdefault(part.call_index, ToolCall(part.id, part.name))
                call.arguments += part.arguments
        return delta

    @property
    def calls(self) -> list[ToolCall]:
        """The tool calls, in order of their first parts."""
        return list(self.calls_by_index.values())

    def as_message(self) -> dict[str, Any]:
        """The completion as an assistant message."""
        calls = {"tool_calls": [call.as_message() for call in self.calls]} if self.calls else {}
        return {"role": "assistant", "content": self.text or None if calls else self.text, **calls}
