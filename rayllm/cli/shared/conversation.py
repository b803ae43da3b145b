"""A multi-turn conversation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rayllm.cli.shared.completion import Completion


@dataclass
class Conversation:
    """Messages so far, and the options of each request."""

    model: str
    system: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    """Additional fields of each request."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """Without the system message."""

    def say(self, text: str) -> None:
        """Add a user message."""
        self.messages.append({"role": "user", "content": text})

    def add(self, completion: Completion) -> list[dict[str, Any]]:
        """Add a completion; returns the tool calls that need results.

        Of an incomplete completion the text is kept; without text, the user message is removed.
        """
        if completion.is_complete:
            self.messages.append(completion.as_message())
            return list(completion.calls.values())
        if completion.text:
            self.messages.append({"role": "assistant", "content": completion.text})
        else:
            self.undo()
        return []

    def add_result(self, call: dict[str, Any], result: str) -> None:
        """Add the result of a tool call."""
        self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    def undo(self) -> None:
        """Remove the last user message and all after it."""
        while self.messages and self.messages.pop()["role"] != "user":
            pass

    def body(self) -> dict[str, Any]:
        """Body of the request for the next completion."""
        tools = {"tools": self.tools} if self.tools else {}
        system = [{"role": "system", "content": self.system}] if self.system else []
        return {"model": self.model, "messages": [*system, *self.messages], **tools, **self.options}
