"""Which of a client's headers a router forwards to a replica; it strips all others."""

from __future__ import annotations

from starlette.requests import Request

from rayllm.core import headers

# An allow-list: a client could otherwise disable deadlines, or choose replicas, by a header of Ray Serve's.
_FORWARDED = ("accept", "traceparent", "tracestate", "x-request-id", headers.SESSION)


def forwarded_headers(request: Request) -> dict[str, str]:
    """The client's headers for the replica."""
    return {name: value for name in _FORWARDED if (value := request.headers.get(name))}
