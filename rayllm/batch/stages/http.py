"""Requests over HTTP, many at once, at a pace that all workers keep together."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp

from rayllm.batch.execution.row_loop import RowLoop
from rayllm.batch.rows import Row
from rayllm.errors import RequestError

_MOST_WAIT_S = 60.0
_TOLD = 500


@dataclass(frozen=True)
class Patience:
    """How often a request is tried again, the seconds before the first further try, and those that one may take."""

    retries: int
    first_wait_s: float
    timeout_s: float

    def wait_s(self, tries: int, retry_after: str | None) -> float:
        """Seconds until the next try after `tries` of them; at least what the endpoint asked for."""
        grown = min(self.first_wait_s * 2 ** (tries - 1), _MOST_WAIT_S)
        # By chance, so that those who failed together do not come back together.
        return max(random.uniform(grown / 2, grown), _seconds(retry_after))


class Pace:
    """So many requests a second, evenly: gives each one its time. Runs as an actor for all workers.

    Args:
        qps: requests a second.
    """

    def __init__(self, qps: float) -> None:
        self._step_s = 1 / qps
        self._next = 0.0

    def wait_s(self) -> float:
        """Seconds until the next request may go."""
        now = time.monotonic()
        turn = max(self._next, now)
        self._next = turn + self._step_s
        return turn - now


class HTTPRequestStage:
    """Adds `status_code`, the answer as `http_response`, its fields, and `generated_text` where it is OpenAI's.

    Args:
        url: where requests go.
        headers: what goes with each.
        window: requests under way at once.
        patience: with requests that fail.
        raise_for_status: whether a status from 400 means that a row failed.
        pace: handle of a `Pace`; None is no limit.
    """

    def __init__(
        self,
        url: str,
        headers: dict[str, str],
        window: int,
        patience: Patience,
        raise_for_status: bool = True,
        pace: Any = None,
    ) -> None:
        self._url = url
        self._headers = headers
        self._patience = patience
        self._raise_for_status = raise_for_status
        self._pace = pace
        self._rows = RowLoop()
        self._rows.open_window(window)
        self._session = self._rows.call(self._open())

    def __call__(self, rows: list[Row]) -> list[Row]:
        return self._rows.map(self._answer, rows)

    async def _open(self) -> aiohttp.ClientSession:
        timeout = aiohttp.ClientTimeout(total=self._patience.timeout_s)
        return aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))

    async def _answer(self, row: Row) -> Row:
        body = json.dumps(_body(row), default=_plain).encode()
        tries = 0
        while True:
            tries += 1
            problem, retry_after = "", None
            try:
                status, headers, text = await self._send(body)
                if not _may_pass(status) or tries > self._patience.retries:
                    return self._told(status, text, tries)
                retry_after = headers.get("Retry-After")
            except (aiohttp.ClientError, TimeoutError) as error:
                problem = str(error) or type(error).__name__
            if problem and tries > self._patience.retries:
                raise RequestError(f"{self._url} cannot be reached ({_times(tries)}): {problem}")
            await asyncio.sleep(self._patience.wait_s(tries, retry_after))

    async def _send(self, body: bytes) -> tuple[int, Any, str]:
        if self._pace is not None:
            await asyncio.sleep(await self._pace.wait_s.remote())
        async with self._session.post(self._url, data=body, headers=self._headers) as response:
            return response.status, response.headers, await response.text(errors="replace")

    def _told(self, status: int, text: str, tries: int) -> Row:
        try:
            answer: Any = json.loads(text)
        except ValueError:
            answer = text
        if self._raise_for_status and status >= 400:
            told = " ".join(text.split())[:_TOLD]
            raise RequestError(f"{self._url} answered {status} ({_times(tries)}): {told}")
        fields = answer if isinstance(answer, dict) else {}
        return {**fields, **_generated(fields), "http_response": answer, "status_code": status}


def _body(row: Row) -> Any:
    """What is sent: the row's `body`, else its fields, those of `sampling_params` among them."""
    if "body" in row:
        if others := [name for name in row if name != "body"]:
            raise RequestError(f"a row with a `body` has nothing beside it, but this one has {', '.join(others)}.")
        return row["body"]
    fields = dict(row)
    sampling = fields.pop("sampling_params", None) or {}
    return {name: value for name, value in {**fields, **sampling}.items() if value is not None}


def _may_pass(status: int) -> bool:
    """Whether a failure may be gone the next time."""
    return status in (408, 425, 429) or status >= 500


def _generated(answer: Row) -> Row:
    """The text of an answer in OpenAI's form."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return {}
    message = choices[0].get("message")
    text = message.get("content") if isinstance(message, dict) else choices[0].get("text")
    return {"generated_text": text, "finish_reason": choices[0].get("finish_reason")}


def _seconds(retry_after: str | None) -> float:
    """What `Retry-After` says, in seconds or as a date; 0 where it says nothing that can be read.

    Source: https://www.rfc-editor.org/rfc/rfc9110#field.retry-after
    """
    if retry_after is None:
        return 0.0
    try:
        seconds = float(retry_after)
        return seconds if 0 < seconds < math.inf else 0.0
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return 0.0


def _times(tries: int) -> str:
    return "one try" if tries == 1 else f"{tries} tries"


def _plain(value: Any) -> Any:
    """Values of a dataset's rows that JSON does not know."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise RequestError(f"a value of type {type(value).__name__} cannot be sent as JSON.")
