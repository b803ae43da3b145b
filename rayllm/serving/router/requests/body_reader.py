"""Parsing of JSON bodies without blocking the event loop: large ones in a subprocess.

A thread would not do: the parser holds the GIL from start to end.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from rayllm.core.endpoints import CHAT
from rayllm.core.errors import UnavailableError
from rayllm.core.json_body import is_light
from rayllm.core.limited_process import call
from rayllm.core.shares import Turns
from rayllm.serving.router.requests.body_summary import Summary, summarize
from rayllm.serving.router.requests.texts import texts_of

T = TypeVar("T")

# Leaves the other cores free under a flood of large bodies.
_MAX_PROCESSES = 2
_BUSY = "Too many large request bodies are waiting to be read."
_QUEUE_S = 20.0
# Includes the start of the process, which takes seconds under load.
_TIMEOUT_S = 60.0


class BodyReader:
    """Parses the JSON bodies of one event loop."""

    def __init__(self) -> None:
        self._turns = Turns(_MAX_PROCESSES, _QUEUE_S, partial(UnavailableError, _BUSY, None, None, 5))

    async def read(self, raw: bytes, path: str = CHAT, tenant: str = "") -> Summary:
        """Parse a body, which a tenant has sent to a path.

        Raises RequestError as `summarize`, and UnavailableError if too many large bodies are waiting.
        """
        return await self._result(tenant, summarize, raw, path)

    async def texts(self, raw: bytes, tenant: str = "") -> list[str]:
        """The texts in a tenant's body that `read` has accepted; raises as `request_texts` and `read`."""
        return await self._result(tenant, texts_of, raw)

    async def _result(self, tenant: str, parse: Callable[..., T], raw: bytes, *arguments: str) -> T:
        if is_light(raw):
            return parse(raw, *arguments)
        async with self._turns.turn(tenant):
            return await call("The request body", parse, raw, *arguments, timeout_s=_TIMEOUT_S)
