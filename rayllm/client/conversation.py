"""A conversation of several turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rayllm.client.api.completion import Completion, ToolCall
from rayllm.client.api.request import with_system


@dataclass
class Conversation:
    """What was said, and who answers."""

    model: str
    system: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    """Further fields of each request."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """Without the system message."""

    def say(self, text: str) -> None:
        """Add a message of the user."""
        self.messages.append({"role": "user", "content": text})

    def take(self, answer: Completion, is_complete: bool) -> list[ToolCall]:
        """Add an answer, and return the tool calls that it waits for.

        One that was broken off counts as far as its text came; without any, the user's message is taken back.
        """
        if not is_complete:
            answer = Completion(answer.text)
        if not is_complete and not answer.text:
            self.take_back()
        else:
            self.messages.append(answer.as_message())
        return answer.calls

    def give(self, call: ToolCall, result: str) -> None:
        """Add what a tool call gave."""
        self.messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

    def take_back(self) -> None:
        """Forget the user's last message and all after it."""
        while self.messages and self.messages.pop()["role"] != "user":
            pass

    def body(self) -> dict[str, Any]:
        """The request for the next answer."""
        tools = {"tools": self.tools} if self.tools else {}
        messages = with_system(list(self.messages), self.system)
        return {"model": self.model, "messages": messages, **tools, **self.options, "stream": True}
