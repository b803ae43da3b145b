"""The data of a guided request for the worker: one entry of vLLM's `extra_args`, as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

# Key in a request's `vllm_xargs`; clients may not set it.
KEY = "rayllm_guided"


@dataclass(frozen=True)
class Envelope:
    """The backend's name, the kind of request ("chat" or "completion"), its JSON, and the ticket's id."""

    backend: str
    type: str
    request: dict[str, Any]
    ticket: str

    def pack(self) -> str:
        """The JSON text."""
        return json.dumps(vars(self))

    @classmethod
    def unpack(cls, text: str) -> Envelope:
        """Parse the JSON text.

        Raises:
            ValueError, TypeError: not an envelope.
        """
        return cls(**json.loads(text))
