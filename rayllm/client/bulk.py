"""Many requests from a file, and the answers in its order."""

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
    """A line of a file, and what came of it so far."""

    line: Line
    exchange: Exchange | None = None
    error: str = "it was broken off before the answer ended."
    """Why it has no whole answer; "" where it has one."""
    is_done: bool = False

    def as_json(self) -> dict[str, Any]:
        """The line's number and request, with the answer or with what there is of it and the error."""
        told: dict[str, Any] = {"line": self.line.number, "request": self.line.request}
        if self.exchange and (not self.error or self.exchange.answer.text):
            told |= self.exchange.as_json()
        return told | ({"error": self.error} if self.error else {})


class BulkQuery:
    """Asks what the lines of a file say.

    Args:
        lines: of the file.
        form: of their requests.
    """

    def __init__(self, lines: Sequence[Line], form: RequestTemplate) -> None:
        self._form = form
        self.all = [Query(line) for line in lines]
        """In the file's order; those that `ask` did not come to are not done."""

    async def ask(self, server: Server, model: str, concurrency: int, on_done: Callable[[], None]) -> None:
        """Ask all, so many at once. A failure is part of the answers, and raises nothing.

        Args:
            server: that is asked.
            model: for lines that name none.
            concurrency: how many are asked at once.
            on_done: called after each.
        """
        waiting = iter(self.all)

        async def client() -> None:
            for question in waiting:
                question.error = await self._ask(question, server, model)
                question.is_done = True
                on_done()

        async with asyncio.TaskGroup() as clients:
            for _ in range(min(concurrency, len(self.all))):
                clients.create_task(client())

    async def _ask(self, question: Query, server: Server, model: str) -> str:
        """What is wrong with the answer, or ""."""
        if question.line.fault:
            return f"line {question.line.number} {question.line.fault}"
        try:
            body = self._form.fill(model, question.line.request)
            question.exchange = Exchange(self._form.endpoint, body)
            await question.exchange.run(server)
        except (ConfigError, ServerError) as error:
            return error.message
        return ""

    @property
    def failed(self) -> int:
        """How many have no whole answer."""
        return sum(bool(question.error) for question in self.all)

    @property
    def answered(self) -> list[Exchange]:
        """Those with a whole answer."""
        return [question.exchange for question in self.all if question.exchange and not question.error]
