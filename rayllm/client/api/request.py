"""Requests for streamed answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rayllm.client.api.server import CHAT, COMPLETIONS, Endpoint
from rayllm.errors import ConfigError

STREAMED: Mapping[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
"""Fields that have an answer streamed, and its tokens counted."""


@dataclass(frozen=True)
class RequestTemplate:
    """What requests of one kind have in common."""

    endpoint: Endpoint = CHAT
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields that a request has where it does not say otherwise."""
    system: str = ""
    """The system message of conversations that begin without one."""

    def fill(self, model: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """The body of a request.

        Args:
            model: that it is for, where `given` names none.
            given: its own fields, with `prompt` or `messages`.

        Raises:
            ConfigError: the endpoint has no place for what is given.
        """
        fields = {"model": model, **self.options, **given, **STREAMED}
        if self.endpoint == COMPLETIONS:
            if "messages" in fields:
                raise ConfigError("`messages` are for chat; a completion takes a `prompt`.")
            return fields
        prompt = fields.pop("prompt", None)
        messages = fields.get("messages") or [{"role": "user", "content": prompt}]
        return fields | {"messages": with_system(messages, self.system)}


def with_system(messages: list[Any], system: str) -> list[Any]:
    """A conversation with a system message at its beginning, unless it has one or `system` is empty."""
    first = messages[0] if messages else None
    has_own = isinstance(first, dict) and first.get("role") in ("system", "developer")
    return [{"role": "system", "content": system}, *messages] if system and not has_own else messages
