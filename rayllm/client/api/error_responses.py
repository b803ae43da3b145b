"""Failures of a server, each as one error."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from http.client import responses
from typing import Any, NamedTuple

import aiohttp

from rayllm.client.api.address import Address
from rayllm.client.api.api_key import ApiKey
from rayllm.client.api.errors import ServerError

_LONGEST = 500
_ELSEWHERE = "--url or RAYLLM_URL names another server; `rayllm run` starts one."
# What an OpenAI-compatible server says with an error object, and any other web server with a page of its own.
_NO_SUCH_PAGE = (400, 404, 405, 501)
_MAY_PASS = (408, 429, 500, 502, 503, 504, 529)


class _Told(NamedTuple):
    """What an error object says."""

    message: str
    kind: str
    param: str | None


def refusal(address: Address, status: int, headers: Mapping[str, str], body: bytes, key: ApiKey) -> ServerError:
    """The error that a reply with another status than 200 is."""
    told = _told(body)
    if told is None and (status < 400 or status in _NO_SUCH_PAGE):
        return foreign(address, status, headers)
    phrase = responses.get(status, "")
    message = (told.message if told else "") or phrase
    reason = f"{status} {(told.kind if told else '') or phrase}".strip()
    error = ServerError(f"{address} answered {status}: {message}", reason, status, told.param if told else None)
    hint = _hint(status, headers.get("retry-after"), key)
    return error.with_hint(hint) if hint else error


def foreign(address: Address, status: int, headers: Mapping[str, str]) -> ServerError:
    """The error for what no OpenAI-compatible server says."""
    kind = headers.get("content-type", "").partition(";")[0] or "nothing"
    goes_on = f" that leads to {headers['location'][:_LONGEST]}" if "location" in headers else ""
    line = f"{address} answered {status} with {kind}{goes_on}: this is no OpenAI-compatible server."
    return ServerError(f"{line}\nhint: {_ELSEWHERE}", f"{status} {kind}", status)


def failed_stream(address: Address, event: Mapping[str, Any]) -> ServerError:
    """The error that an event of a stream tells."""
    told = _object(event) or _Told("", "", None)
    message = f"{address} failed within the answer: {told.message or 'it does not say why'}"
    return ServerError(message, f"failed within the answer: {told.kind}", 0, told.param)


def unreachable(address: Address, error: Exception) -> ServerError:
    """The error for a connection that did not come about, or broke."""
    if isinstance(error, aiohttp.ClientSSLError):
        return ServerError(f"{address}: TLS failed: {_one_line(str(error))}", "TLS failed")
    if isinstance(error, aiohttp.ClientConnectorError):
        code = error.os_error.errno or 0
        # Those of the resolver are below 0; asyncio puts a text of its own for all others.
        why = os.strerror(code) if code > 0 else error.os_error.strerror or str(error.os_error)
        return ServerError(f"{address}: nobody answers: {why}.\nhint: {_ELSEWHERE}", f"nobody answers: {why}")
    if isinstance(error, TimeoutError):
        return ServerError(f"{address}: nobody answers in time.\nhint: {_ELSEWHERE}", "nobody answers in time")
    if isinstance(error, aiohttp.InvalidURL):
        return ServerError(f"{address} is no address.", "no address")
    if isinstance(error, aiohttp.ClientResponseError):
        return ServerError(f"{address}: what answers there is no HTTP.\nhint: {_ELSEWHERE}", "no HTTP")
    return broken(address)


def broken(address: Address) -> ServerError:
    """The error for an answer that ended before its end."""
    return ServerError(f"{address}: the connection broke before the answer ended.", "the connection broke")


def _told(body: bytes) -> _Told | None:
    try:
        given = json.loads(body)
    except ValueError:
        return None
    return _object(given) if isinstance(given, dict) else None


def _object(given: Mapping[str, Any]) -> _Told | None:
    """OpenAI's error object, or what other servers put in its place."""
    error = given.get("error", given if "message" in given else given.get("detail"))
    if error is None:
        return None
    if not isinstance(error, dict):
        return _Told(_one_line(error if isinstance(error, str) else json.dumps(error)), "", None)
    code, param = error.get("code"), error.get("param")
    kind = code if isinstance(code, str) and code else str(error.get("type") or "")
    return _Told(_one_line(str(error.get("message") or "")), kind, param if isinstance(param, str) else None)


def _hint(status: int, retry_after: str | None, key: ApiKey) -> str:
    if status in (401, 403):
        if key.value:
            return f"{key.variable} holds a key that is not let in; --api-key-env names another variable."
        return f"{key.variable} holds no key; --api-key-env names the variable that does."
    if status not in _MAY_PASS:
        return ""
    return f"try again in {retry_after} s." if retry_after and retry_after.isdigit() else "try again."


def _one_line(text: str) -> str:
    # What a server says is not for the terminal to act on.
    line = "".join(filter(str.isprintable, " ".join(text.split())))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
