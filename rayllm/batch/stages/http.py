"""Send rows as HTTP requests, with retries and a rate limit that all workers share."""

import asyncio
import json
import math
import random
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp

from rayllm.batch.config import HTTPRequestProcessorConfig
from rayllm.batch.execution.row_loop import RowLoop
from rayllm.batch.rows import Row
from rayllm.core.errors import RequestError

_MAX_WAIT_S = 60.0
_MAX_ERROR_CHARS = 500


class RateLimiter:
    """Evenly spaced send times for requests. Runs as an actor for all workers."""

    def __init__(self, qps: float) -> None:
        self._interval_s = 1 / qps
        self._next = 0.0

    def wait_s(self) -> float:
        """Seconds until the next request may be sent."""
        now = time.monotonic()
        send_at = max(self._next, now)
        self._next = send_at + self._interval_s
        return send_at - now


@dataclass(eq=False)
class HTTPRequestStage:
    """Adds `status_code`, `http_response`, the response's fields, and `generated_text` from a completion.

    Args:
        headers: the headers to send, without references to variables.
        rate_limiter: handle of a `RateLimiter` actor; None is no limit.
    """

    config: HTTPRequestProcessorConfig
    headers: dict[str, str]
    rate_limiter: Any = None

    def __post_init__(self) -> None:
        self._rows = RowLoop()
        self._rows.limit(self.config.max_concurrent_requests)
        self._session = self._rows.call(self._open())

    def __call__(self, rows: list[Row]) -> list[Row]:
        return self._rows.map(self._request, rows)

    async def _open(self) -> aiohttp.ClientSession:
        timeout = aiohttp.ClientTimeout(total=self.config.timeout_s)
        return aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))

    async def _request(self, row: Row) -> Row:
        body = json.dumps(_body(row), default=_plain).encode()
        attempts = 0
        while True:
            attempts += 1
            problem, retry_after = "", None
            try:
                status, headers, text = await self._send(body)
                is_transient = status in (408, 425, 429) or status >= 500
                if not is_transient or attempts > self.config.max_retries:
                    return self._result(status, text, attempts)
                retry_after = headers.get("Retry-After")
            except (aiohttp.ClientError, TimeoutError) as error:
                problem = str(error) or type(error).__name__
            if problem and attempts > self.config.max_retries:
                raise RequestError(f"{self.config.url} cannot be reached ({_counted(attempts)}): {problem}")
            await asyncio.sleep(wait_s(self.config.base_retry_wait_time_in_s, attempts, retry_after))

    async def _send(self, body: bytes) -> tuple[int, Any, str]:
        if self.rate_limiter is not None:
            due = await self.rate_limiter.wait_s.remote() + time.monotonic()
            # The timers of a busy event loop may be early.
            while (left_s := due - time.monotonic()) > 0:  # noqa: ASYNC110  (waits for a time, not for an event)
                await asyncio.sleep(left_s)
        async with self._session.post(self.config.url, data=body, headers=self.headers) as response:
            return response.status, response.headers, await response.text(errors="replace")

    def _result(self, status: int, text: str, attempts: int) -> Row:
        try:
            content: Any = json.loads(text)
        except ValueError:
            content = text
        if self.config.raise_for_status and status >= 400:
            message = " ".join(text.split())[:_MAX_ERROR_CHARS]
            raise RequestError(f"{self.config.url} answered {status} ({_counted(attempts)}): {message}")
        fields = content if isinstance(content, dict) else {}
        return {**fields, **_generated(fields), "http_response": content, "status_code": status}


def _body(row: Row) -> Any:
    """The request body: the row's `body`, else its fields and those of `sampling_params`."""
    if "body" in row:
        if others := [name for name in row if name != "body"]:
            raise RequestError(f"a row with a `body` must have no other key, but this one has {', '.join(others)}.")
        return row["body"]
    fields = dict(row)
    sampling = fields.pop("sampling_params", None) or {}
    return {name: value for name, value in {**fields, **sampling}.items() if value is not None}


def _generated(response: Row) -> Row:
    """The text of an OpenAI-style completion."""
    choices = response.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return {}
    message = choices[0].get("message")
    text = message.get("content") if isinstance(message, dict) else choices[0].get("text")
    return {"generated_text": text, "finish_reason": choices[0].get("finish_reason")}


def wait_s(first_s: float, attempts: int, retry_after: str | None) -> float:
    """Seconds until the next attempt after `attempts` attempts: `first_s`, doubled each time, or `retry_after`."""
    backoff = min(first_s * 2 ** (attempts - 1), _MAX_WAIT_S)
    # With jitter: requests that failed together should not return together.
    return max(random.uniform(backoff / 2, backoff), _seconds(retry_after))


def _seconds(retry_after: str | None) -> float:
    """Parse `Retry-After`, which is in seconds or a date; 0 if the header is missing or invalid.

    Source: https://www.rfc-editor.org/rfc/rfc9110#field.retry-after
    """
    if retry_after is None:
        return 0.0
    with suppress(ValueError):
        seconds = float(retry_after)
        return seconds if 0 < seconds < math.inf else 0.0
    with suppress(ValueError, TypeError):
        return max(0.0, (parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds())
    return 0.0


def _counted(attempts: int) -> str:
    return "one attempt" if attempts == 1 else f"{attempts} attempts"


def _plain(value: Any) -> Any:
    """Convert a dataset's values that JSON does not know."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise RequestError(f"a value of type {type(value).__name__} cannot be sent as JSON.")
