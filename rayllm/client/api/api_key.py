"""API key of a server."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ApiKey:
    """An API key and the environment variable that it came from; "" is none."""

    variable: str = "OPENAI_API_KEY"
    value: str = field(default="", repr=False)

    def headers(self) -> dict[str, str]:
        """Request headers with the key."""
        return {"authorization": f"Bearer {self.value}"} if self.value else {}
