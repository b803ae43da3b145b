"""The hooks of one router, and their calls for requests and usage."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import fields
from typing import Any

from starlette.datastructures import Headers

from rayllm.config import RouterConfig
from rayllm.core.errors import HookError, RefusedError, RequestError
from rayllm.hooks import HookUsage
from rayllm.serving.cluster.background import in_background
from rayllm.serving.router.hooks.process import HookProcess
from rayllm.serving.router.requests.client_request import ClientRequest
from rayllm.serving.router.requests.payload import JsonPayload, Payload

logger = logging.getLogger(__name__)
ReadBody = Callable[[bytes], Awaitable[Payload]]

# Parts of the names of headers with credentials.
_SECRET = ("auth", "key", "token", "secret", "cookie", "password", "credential", "signature")
# Most reports of usage that wait for hooks; further reports are dropped.
_MAX_REPORTS = 10_000
_REPORTS_AT_ONCE = 32
# Seconds that a stopping router waits for calls.
_LAST_CALLS_S = 5.0


class RequestHooks:
    """Calls the configured hooks. Without hooks there is no process."""

    def __init__(self) -> None:
        self._process: HookProcess | None = None
        self._reports = 0
        # Leaves most calls to requests, which wait for their hooks.
        self._reports_at_once = asyncio.Semaphore(_REPORTS_AT_ONCE)

    async def configure(self, config: RouterConfig) -> None:
        """Use the hooks of a configuration from now on. Unchanged hooks keep their process.

        Raises ConfigError if a function cannot be imported; the former hooks stay.
        """
        former = self._process
        if former and (former.hooks, former.max_bytes) == (config.hooks, config.max_body_bytes):
            return
        wanted = HookProcess(config.hooks, config.max_body_bytes) if config.hooks else None
        if wanted:
            await wanted.start()
        self._process = wanted
        if former:
            in_background(former.stop(_LAST_CALLS_S))

    async def stop(self) -> None:
        """End the process after the calls in progress, or after a few seconds."""
        if self._process:
            await self._process.stop(_LAST_CALLS_S)

    @property
    def see_requests(self) -> bool:
        """Whether any hook is called for requests."""
        return self._process is not None and any(_those("request", self._process))

    async def apply(self, client: ClientRequest, payload: Payload, read: ReadBody) -> Payload:
        """Call the hooks in order; each hook gets the request as changed by the hooks before.

        Args:
            read: parses a changed body like a client's; raises RequestError for an invalid body.

        Raises:
            RefusedError: a hook refuses the request.
            HookError: a hook fails, and `on_error` is `refuse`.
        """
        process = self._process
        if process is None:
            return payload
        started = time.perf_counter()
        process.users += 1
        try:
            for index, name in _those("request", process):
                try:
                    payload = await _asked(process, index, client, payload, read)
                except HookError as error:
                    logger.warning("%s failed on the request %s: %s", name, client.record.request_id, error)
                    if process.hooks[index].on_error == "refuse":
                        message = "A policy hook of this service failed; the router's log says why."
                        raise HookError(message) from None
        finally:
            process.users -= 1
            client.record.hooks_s += time.perf_counter() - started
        return payload

    def report(self, client: ClientRequest) -> None:
        """Call the hooks of usage for a request that has ended, in the background."""
        process = self._process
        if process is None:
            return
        for index, name in _those("usage", process):
            if self._reports >= _MAX_REPORTS:
                logger.error("%s is too slow: the usage of %s is lost.", name, client.record.request_id)
                continue
            self._reports += 1
            process.users += 1
            in_background(self._report(process, index, name, _usage(client)))

    async def _report(self, process: HookProcess, index: int, name: str, usage: dict[str, Any]) -> None:
        try:
            async with self._reports_at_once:
                await _run(process, index, {"when": "usage", "request": usage, "has_body": False})
        except (HookError, RefusedError) as error:
            logger.warning("%s failed on the usage of the request %s: %s", name, usage["id"], error)
        finally:
            self._reports -= 1
            process.users -= 1


def _those(when: str, process: HookProcess) -> Iterator[tuple[int, str]]:
    """The hooks of a kind: their indices, and their names in the log."""
    for index, hook in enumerate(process.hooks):
        if hook.when == when:
            yield index, f"The hook `{hook.callable}` (router.hooks.{index})"


async def _asked(process: HookProcess, index: int, client: ClientRequest, payload: Payload, read: ReadBody) -> Payload:
    request = {
        "id": client.record.request_id,
        "path": client.path,
        "model": payload.model,
        "key": client.caller.name,
        "tenant": client.caller.tenant,
        "headers": shown_headers(client.request.headers),
    }
    body = payload.raw if isinstance(payload, JsonPayload) else None
    head = {"when": "request", "request": request, "has_body": body is not None}
    changed = await _run(process, index, head, body or b"")
    if changed is None:
        return payload
    try:
        return await read(changed)
    except RequestError as error:
        raise HookError(f"the body that it returned is invalid: {error}") from None


async def _run(process: HookProcess, index: int, head: dict[str, Any], body: bytes = b"") -> bytes | None:
    """Call a hook; returns the changed body, or None without a change."""
    result, changed = await process.run(index, head, body)
    if result["result"] == "refuse":
        raise RefusedError(result["message"], None, result["code"], result["status"])
    if result["result"] == "fault":
        raise HookError(result["message"])
    return changed if result["result"] == "change" else None


def shown_headers(headers: Headers) -> dict[str, str]:
    """The headers that hooks may see: without credentials, by the name or by the caller's key in the value."""
    keys = {words[-1] for name in ("authorization", "x-api-key") if (words := headers.get(name, "").split())}
    return {
        name: value
        for name, value in headers.items()
        if not any(part in name for part in _SECRET) and not any(key in value for key in keys)
    }


def _usage(client: ClientRequest) -> dict[str, Any]:
    """The fields of a HookUsage."""
    known = {**client.record.as_json(), "path": client.record.endpoint, "tenant": client.caller.tenant}
    return {field.name: known[field.name] for field in fields(HookUsage)}
