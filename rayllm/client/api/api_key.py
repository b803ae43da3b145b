"""The key that a server is shown."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ApiKey:
    """A key, and the environment variable that it came from; "" is none."""

    variable: str = "OPENAI_API_KEY"
    value: str = field(default="", repr=False)

    def headers(self) -> dict[str, str]:
        """What shows it."""
        return {"authorization": f"Bearer {self.value}"} if self.value else {}
