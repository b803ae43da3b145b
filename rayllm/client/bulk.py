"""Send many requests concurrently, and keep the results in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rayllm.client.api.errors import ServerError
from rayllm.client.api.exchange import Exchange
from rayllm.client.api.request import RequestTemplate
from rayllm.client.api.server import Server
from rayllm.client.prompt_file import Line
from rayllm.errors import ConfigError


@dataclass
class Query:
    """A line of a file, and its result so far."""

    line: Line
    exchange: Exchange | None = None
    error: str = "it was interrupted before the completion ended."
    """Why there is no complete result; "" if there is one."""
    is_done: bool = False

    def as_json(self) -> dict[str, Any]:
        """The line's number and request, with the completion, or the error and the partial completion."""
        fields: dict[str, Any] = {"line": self.line.number, "request": self.line.request}
        if self.exchange and (not self.error or self.exchange.completion.text):
            fields |= self.exchange.as_json()
        return fields | ({"error": self.error} if self.error else {})


class BulkQuery:
    """Sends the requests of a file.

    Args:
        lines: lines of the file.
        template: fields that the requests have in common.
    """

    def __init__(self, lines: Sequence[Line], template: RequestTemplate) -> None:
        self._template = template
        self.all = [Query(line) for line in lines]
        """Queries in the order of the file; those not sent yet are not done."""

    async def run(self, server: Server, model: str, concurrency: int, on_done: Callable[[], None]) -> None:
        """Send all. A failure is recorded in its query, and raises nothing.

        Args:
            server: the server.
            model: model for lines that name none.
            concurrency: requests in flight at once.
            on_done: called after each query.
        """
        pending = iter(self.all)

        async def client() -> None:
            for query in pending:
                query.error = await self._send(query, server, model)
                query.is_done = True
                on_done()

        async with asyncio.TaskGroup() as clients:
            for _ in range(min(concurrency, len(self.all))):
                clients.create_task(client())

    async def _send(self, query: Query, server: Server, model: str) -> str:
        """Send a query; returns its error, or ""."""
        if query.line.fault:
            return f"line {query.line.number} {query.line.fault}"
        try:
            body = self._template.fill(model, query.line.request)
            query.exchange = Exchange(self._template.endpoint, body)
            await query.exchange.run(server)
        except (ConfigError, ServerError) as error:
            return error.message
        return ""

    @property
    def failed(self) -> int:
        """Number of queries without a complete result."""
        return sum(bool(query.error) for query in self.all)

    @property
    def completed(self) -> list[Exchange]:
        """Exchanges with a complete result."""
        return [query.exchange for query in self.all if query.exchange and not query.error]
