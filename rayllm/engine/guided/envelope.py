"""What travels with a guided request from the replica to the worker: one entry of vLLM's `extra_args`, as JSON text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

# The entry's name in a request's `vllm_xargs`; clients may not set it.
KEY = "rayllm_guided"


@dataclass(frozen=True)
class Envelope:
    """The name of the backend, the kind of the request ("chat" or "completion"), its JSON and the ticket's id."""

    backend: str
    type: str
    request: dict[str, Any]
    ticket: str

    def pack(self) -> str:
        """The JSON text."""
        return json.dumps(vars(self))

    @classmethod
    def unpack(cls, text: str) -> Envelope:
        """Read the JSON text.

        Raises:
            ValueError, TypeError: it is no envelope.
        """
        return cls(**json.loads(text))
