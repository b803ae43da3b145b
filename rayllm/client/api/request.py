"""Build bodies of streamed requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rayllm.client.api.server import CHAT, COMPLETIONS, Endpoint
from rayllm.errors import ConfigError

STREAMED: Mapping[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
"""Fields that request a stream with usage."""


@dataclass(frozen=True)
class RequestTemplate:
    """Fields that requests have in common."""

    endpoint: Endpoint = CHAT
    options: Mapping[str, Any] = field(default_factory=dict)
    """Default fields."""
    system: str = ""
    """System message of conversations that begin without one."""

    def fill(self, model: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Build the body of a request.

        Args:
            model: model if the request names none.
            request: the request's own fields, with `prompt` or `messages`.

        Raises:
            ConfigError: the endpoint does not take these fields.
        """
        fields = {"model": model, **self.options, **request, **STREAMED}
        if self.endpoint == COMPLETIONS:
            if "messages" in fields:
                raise ConfigError("`messages` are for chat; a completion takes a `prompt`.")
            return fields
        prompt = fields.pop("prompt", None)
        messages = fields.get("messages") or [{"role": "user", "content": prompt}]
        return fields | {"messages": with_system(messages, self.system)}


def with_system(messages: list[Any], system: str) -> list[Any]:
    """Prepend a system message, unless the conversation has one or `system` is empty."""
    first = messages[0] if messages else None
    has_system = isinstance(first, dict) and first.get("role") in ("system", "developer")
    return [{"role": "system", "content": system}, *messages] if system and not has_system else messages
