"""The hooks of one router, as its requests meet them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from starlette.datastructures import Headers

from rayllm.config import HookConfig, RouterConfig
from rayllm.errors import HookError, RefusedError, RequestError
from rayllm.hooks import HookRequest, HookUsage
from rayllm.serving.cluster.background import in_background
from rayllm.serving.router.hooks.pool import HookPool
from rayllm.serving.router.hooks.process import Call, Result
from rayllm.serving.router.requests.client_request import ClientRequest
from rayllm.serving.router.requests.payload import JsonPayload, Payload
from rayllm.serving.router.requests.record import RequestRecord

logger = logging.getLogger(__name__)
ReadBody = Callable[[bytes], Awaitable[Payload]]

# Parts of names of headers that may hold credentials.
_SECRET = ("auth", "key", "token", "secret", "cookie", "password", "credential", "signature")
# Reports of usage that wait for their hooks; further ones are dropped.
_MAX_REPORTS = 10_000
_REPORTS_AT_ONCE = 32
# Seconds that a stopping router waits for calls.
_LAST_CALLS_S = 5.0


class RequestHooks:
    """Calls the configured hooks. Without any there is no process."""

    def __init__(self) -> None:
        self._pool: HookPool | None = None
        self._reports = 0
        # Most calls are for requests, which wait for them.
        self._reports_at_once = asyncio.Semaphore(_REPORTS_AT_ONCE)

    async def configure(self, config: RouterConfig) -> None:
        """Use the hooks of a configuration from now on. The same ones keep their process.

        Raises:
            ConfigError: one cannot be imported; the former ones stay.
        """
        former = self._pool
        if former and (former.hooks, former.max_bytes) == (config.hooks, config.max_body_bytes):
            return
        wanted = HookPool(config.hooks, config.max_body_bytes) if config.hooks else None
        if wanted:
            await wanted.start()
        self._pool = wanted
        if former:
            in_background(former.stop(_LAST_CALLS_S))

    async def stop(self) -> None:
        """Wait for the calls in progress, some seconds at most, and end the process."""
        if self._pool:
            await self._pool.stop(_LAST_CALLS_S)

    @property
    def see_requests(self) -> bool:
        """Whether a hook sees requests before they are routed."""
        return self._pool is not None and bool(_those("request", self._pool))

    async def apply(self, client: ClientRequest, payload: Payload, read: ReadBody) -> Payload:
        """Ask the hooks in order about a request; each gets what the one before has made of it.

        Args:
            client: the client's request.
            payload: its payload.
            read: reads a changed body as a client's; raises RequestError if it is invalid.

        Raises:
            RefusedError: a hook refuses it.
            HookError: a hook fails, and `on_error` is `refuse`.
        """
        if self._pool is None:
            return payload
        started = time.perf_counter()
        try:
            with self._pool.in_use() as pool:
                for index, hook in _those("request", pool):
                    payload = await _asked(pool, index, hook, client, payload, read)
        finally:
            client.record.hooks_s += time.perf_counter() - started
        return payload

    def report(self, client: ClientRequest) -> None:
        """Tell the hooks that want it about a request that has ended, in the background."""
        if self._pool is None:
            return
        for index, hook in _those("usage", self._pool):
            if self._reports >= _MAX_REPORTS:
                logger.error("%s is too slow: the usage of %s is lost.", _name(index, hook), client.record.request_id)
                continue
            head = {"when": "usage", "request": asdict(_usage(client.record, client.caller.tenant)), "has_body": False}
            self._reports += 1
            in_background(self._report(self._pool, Call(index, hook.timeout_s, head)))

    async def _report(self, pool: HookPool, call: Call) -> None:
        hook = pool.hooks[call.hook]
        try:
            with pool.in_use():
                async with self._reports_at_once:
                    _check(await pool.run(call), hook)
        except (HookError, RefusedError) as error:
            request_id = call.head["request"]["id"]
            logger.warning("%s failed on the usage of the request %s: %s", _name(call.hook, hook), request_id, error)
        finally:
            self._reports -= 1


def _those(when: str, pool: HookPool) -> list[tuple[int, HookConfig]]:
    return [(index, hook) for index, hook in enumerate(pool.hooks) if hook.when == when]


async def _asked(
    pool: HookPool, index: int, hook: HookConfig, client: ClientRequest, payload: Payload, read: ReadBody
) -> Payload:
    """The request after a hook has seen it, or as it was if that fails and may."""
    is_json = isinstance(payload, JsonPayload)
    head = {"when": "request", "request": _request(client, payload.model), "has_body": is_json}
    try:
        result = await pool.run(Call(index, hook.timeout_s, head, payload.raw if is_json else b""))
        _check(result, hook)
        return await _changed(result, read) if result.head["result"] == "change" else payload
    except HookError as error:
        logger.warning("%s failed on the request %s: %s", _name(index, hook), client.record.request_id, error)
        if hook.on_error == "allow":
            return payload
        raise HookError("A policy hook of this service failed; the router's log says why.") from None


async def _changed(result: Result, read: ReadBody) -> Payload:
    try:
        return await read(result.body)
    except RequestError as error:
        raise HookError(f"the body that it returned is invalid: {error}") from None


def _check(result: Result, hook: HookConfig) -> None:
    """Raise what a hook has answered, unless it allows the request."""
    head = result.head
    if head["result"] == "refuse":
        raise RefusedError(head["message"], None, head["code"], head["status"])
    if head["result"] == "fault":
        raise HookError(head["message"])
    if head["result"] == "timeout":
        raise HookError(f"it took more than {hook.timeout_s:g} s (timeout_s)")


def _name(index: int, hook: HookConfig) -> str:
    return f"The hook `{hook.callable}` (router.hooks.{index})"


def _request(client: ClientRequest, model: str) -> dict[str, Any]:
    """The fields of a HookRequest without its body."""
    request = HookRequest(
        client.record.request_id,
        client.path,
        model,
        client.caller.name,
        client.caller.tenant,
        shown_headers(client.request.headers),
    )
    fields = asdict(request)
    del fields["body"]
    return fields


def shown_headers(headers: Headers) -> dict[str, str]:
    """The headers that hooks may see: none whose name sounds like credentials, or whose value has the caller's key."""
    keys = {words[-1] for name in ("authorization", "x-api-key") if (words := headers.get(name, "").split())}
    return {
        name: value
        for name, value in headers.items()
        if not any(part in name for part in _SECRET) and not any(key in value for key in keys)
    }


def _usage(record: RequestRecord, tenant: str) -> HookUsage:
    written = record.as_json()
    return HookUsage(
        id=record.request_id,
        path=record.endpoint,
        tenant=tenant,
        **{
            name: written[name]
            for name in (
                *("model", "adapter", "key", "status", "error", "finish_reason", "prompt_tokens", "cached_tokens"),
                *("completion_tokens", "created", "total_s", "first_token_s"),
            )
        },
    )
