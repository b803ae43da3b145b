"""A completion, collected from the chunks of a stream, and printed chunk by chunk."""

import io
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import click

from rayllm.cli.shared.server import Server

# A model's output must not control the terminal: all control characters but tabs and newlines are removed.
_CONTROLS = dict.fromkeys([*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0)])


class CallPart(NamedTuple):
    """A part of a tool call: `id` and `name` come with the first, and a part of the arguments with each."""

    number: int
    id: str
    name: str
    arguments: str


class Delta(NamedTuple):
    """What one chunk adds: text, reasoning, and parts of tool calls."""

    text: str
    reasoning: str = ""
    calls: tuple[CallPart, ...] = ()


@dataclass
class Completion:
    """A completion, or the received part of an interrupted one.

    Attributes:
        calls: tool calls as in an assistant's message, by their index.
        ttft_s: seconds from sending the request to the first token.
        e2e_s: seconds from sending the request to the last event.
    """

    text: str = ""
    reasoning: str = ""
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    ttft_s: float | None = None
    e2e_s: float = 0.0
    is_complete: bool = False

    def receive(self, server: Server, body: Mapping[str, Any], show: Callable[[Delta], None] = lambda _: None) -> None:
        """Send a request to a server and receive its completion; `show` is called with what each chunk adds.

        Raises ServerError if the request fails, or the completion is cut off.
        """
        sent_at: list[float] = []
        with closing(server.stream(body, lambda: sent_at.append(time.perf_counter()))) as chunks:
            for chunk in chunks:
                self.e2e_s = time.perf_counter() - sent_at[0]
                delta = self._add(chunk)
                if any(delta):
                    self.ttft_s = self.e2e_s if self.ttft_s is None else self.ttft_s
                    show(delta)
        self.is_complete = True

    def _add(self, chunk: Any) -> Delta:
        usage = getattr(chunk, "usage", None)
        if usage is not None and hasattr(usage, "to_dict"):
            self.usage = usage.to_dict()
        if not chunk.choices:
            return Delta("")
        choice = chunk.choices[0]
        self.finish_reason = _text(choice, "finish_reason") or self.finish_reason
        delta = _delta(choice)
        self.text += delta.text
        self.reasoning += delta.reasoning
        for part in delta.calls:
            new = {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": ""}}
            self.calls.setdefault(part.number, new)["function"]["arguments"] += part.arguments
        return delta

    def as_message(self) -> dict[str, Any]:
        calls = {"tool_calls": list(self.calls.values())} if self.calls else {}
        return {"role": "assistant", "content": self.text or None if calls else self.text, **calls}

    def as_json(self) -> dict[str, Any]:
        """The completion, without empty fields."""
        optional = {
            "reasoning": self.reasoning,
            "tool_calls": list(self.calls.values()),
            "usage": self.usage,
            "ttft_ms": None if self.ttft_s is None else round(1000 * self.ttft_s, 3),
            "e2e_ms": round(1000 * self.e2e_s, 3),
        }
        fields = {name: value for name, value in optional.items() if value}
        return {"text": self.text, "finish_reason": self.finish_reason, **fields}


def _delta(choice: Any) -> Delta:
    delta = getattr(choice, "delta", None)
    if delta is None:
        return Delta(_text(choice, "text"))
    calls = getattr(delta, "tool_calls", None)
    parts = tuple(_call_part(call) for call in calls) if isinstance(calls, list) else ()
    reasoning = _text(delta, "reasoning") or _text(delta, "reasoning_content")
    return Delta(_text(delta, "content") or _text(delta, "refusal"), reasoning, parts)


def _call_part(call: Any) -> CallPart:
    index, function = getattr(call, "index", 0), getattr(call, "function", None)
    number = index if isinstance(index, int) else 0
    return CallPart(number, _text(call, "id"), _text(function, "name"), _text(function, "arguments"))


def _text(holder: Any, name: str) -> str:
    """A text of what a server sent, which the `openai` package does not check."""
    value = getattr(holder, name, None)
    return value if isinstance(value, str) else ""


class StreamPrinter:
    """Printer to standard output. Reasoning is dimmed on a terminal, and left out elsewhere."""

    def __init__(self) -> None:
        self.is_terminal = sys.stdout.isatty()
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A completion may hold lone surrogates.
            sys.stdout.reconfigure(errors="replace")
        self._dims = self.is_terminal and not os.environ.get("NO_COLOR")
        self._call: int | None = None
        self._is_reasoning = False
        self._is_line_open = False

    def show(self, delta: Delta) -> None:
        if delta.reasoning and self.is_terminal:
            self._is_reasoning = True
            self._write(click.style(_plain(delta.reasoning), dim=True) if self._dims else _plain(delta.reasoning))
        if delta.text:
            if self._is_reasoning:
                self._is_reasoning = False
                self._write("\n\n")
            self._end_call()
            self._write(_plain(delta.text) if self.is_terminal else delta.text)
        for part in delta.calls:
            if part.number != self._call:
                self.end()
                self._call = part.number
                self._write(f"→ {_plain(part.name)}(")
            self._write(_plain(part.arguments))

    def end(self) -> None:
        """End the output with a newline."""
        self._end_call()
        self._is_reasoning = False
        if self._is_line_open:
            self._write("\n")

    def _end_call(self) -> None:
        if self._call is not None:
            self._call = None
            self._write(")\n")

    def _write(self, text: str) -> None:
        if text:
            self._is_line_open = not text.endswith("\n")
            sys.stdout.write(text)
            sys.stdout.flush()


def _plain(text: str) -> str:
    return text.translate(_CONTROLS)
