"""What a router knows of one request."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from rayllm.request_stats import RequestStats


@dataclass
class RequestRecord:
    """One request, from its headers to the end of its reply. Times are `time.perf_counter()`'s.

    `model_id` and `adapter` are empty until the model is known; `status` is 0 until something was sent, and 499 if the
    client left first; `attempts` counts the replicas that the request was sent to, `replica` is the last of them,
    `sent_at` when it got the request; `first_byte_at` is when the reply began.
    """

    endpoint: str
    model_id: str = ""
    adapter: str = ""
    status: int = 0
    attempts: int = 0
    fallbacks: int = 0
    replica: str = ""
    started_at: float = field(default_factory=time.perf_counter)
    sent_at: float | None = None
    first_byte_at: float | None = None
    ended_at: float = 0.0
    stats: RequestStats | None = None

    def sent_to(self, replica: str) -> None:
        """The request goes to a replica now."""
        self.attempts += 1
        self.replica, self.sent_at = replica, time.perf_counter()

    def began(self, status: int = 200) -> None:
        """The first bytes of the reply were sent."""
        if self.first_byte_at is None:
            self.status, self.first_byte_at = status, time.perf_counter()

    def end(self) -> None:
        """The reply is complete, or the client has left."""
        self.ended_at = time.perf_counter()
        self.status = self.status or CLIENT_LEFT


CLIENT_LEFT = 499
"""Status of requests whose client left before the reply began; nginx has it, too."""
