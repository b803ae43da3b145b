"""Convert error responses and connection errors to ServerError."""

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

_MAX_CHARS = 500
_HINT = "--url or RAYLLM_URL names another server; `rayllm run` starts one."
# With these, an OpenAI-compatible server sends an error object, any other web server a page.
_PAGE_STATUSES = (400, 404, 405, 501)
_TRANSIENT = (408, 429, 500, 502, 503, 504, 529)


class _ErrorObject(NamedTuple):
    """OpenAI's error object."""

    message: str = ""
    type: str = ""
    param: str | None = None


def error_response(address: Address, status: int, headers: Mapping[str, str], body: bytes, key: ApiKey) -> ServerError:
    """The error for a response with a status other than 200."""
    error_object = _parse(body)
    if error_object is None and (status < 400 or status in _PAGE_STATUSES):
        return not_openai(address, status, headers)
    message, error_type, param = error_object or _ErrorObject()
    phrase = responses.get(status, "")
    reason = f"{status} {error_type or phrase}".strip()
    error = ServerError(f"{address} answered {status}: {message or phrase}", reason, status, param)
    hint = _hint(status, headers.get("retry-after"), key)
    return error.with_hint(hint) if hint else error


def not_openai(address: Address, status: int, headers: Mapping[str, str]) -> ServerError:
    """The error for a response that no OpenAI-compatible server sends."""
    content_type = headers.get("content-type", "").partition(";")[0] or "no content"
    redirect = f" and a redirect to {headers['location'][:_MAX_CHARS]}" if "location" in headers else ""
    line = f"{address} answered {status} with {content_type}{redirect}: it is not an OpenAI-compatible server."
    return ServerError(f"{line}\nhint: {_HINT}", f"{status} {content_type}", status)


def error_event(address: Address, event: Mapping[str, Any]) -> ServerError:
    """The error for an error event in a stream."""
    error = _error_object(event) or _ErrorObject()
    message = f"{address} failed during the stream: {error.message or 'it does not say why'}"
    return ServerError(message, f"failed during the stream: {error.type}", 0, error.param)


def connection_error(address: Address, error: Exception) -> ServerError:
    """The error for a connection that failed or was lost."""
    if isinstance(error, aiohttp.ClientSSLError):
        return ServerError(f"{address}: TLS failed: {_one_line(str(error))}", "TLS failed")
    if isinstance(error, aiohttp.ClientConnectorError):
        code = error.os_error.errno or 0
        # The resolver's codes are negative; for others asyncio's text is less clear than the system's.
        problem = os.strerror(code) if code > 0 else error.os_error.strerror or str(error.os_error)
        return ServerError(f"{address}: cannot connect: {problem}.\nhint: {_HINT}", f"cannot connect: {problem}")
    if isinstance(error, TimeoutError):
        return ServerError(f"{address}: timed out.\nhint: {_HINT}", "timed out")
    if isinstance(error, aiohttp.InvalidURL):
        return ServerError(f"{address} is not a valid address.", "invalid address")
    if isinstance(error, aiohttp.ClientResponseError):
        return ServerError(f"{address}: the response is not HTTP.\nhint: {_HINT}", "not HTTP")
    return connection_lost(address)


def connection_lost(address: Address) -> ServerError:
    """The error for a response that was cut off."""
    return ServerError(f"{address}: the connection was lost before the response ended.", "the connection was lost")


def _parse(body: bytes) -> _ErrorObject | None:
    try:
        content = json.loads(body)
    except ValueError:
        return None
    return _error_object(content) if isinstance(content, dict) else None


def _error_object(content: Mapping[str, Any]) -> _ErrorObject | None:
    """OpenAI's error object, or the equivalent of other servers."""
    error = content.get("error", content if "message" in content else content.get("detail"))
    if error is None:
        return None
    if not isinstance(error, dict):
        return _ErrorObject(_one_line(error if isinstance(error, str) else json.dumps(error)))
    code, param = error.get("code"), error.get("param")
    error_type = code if isinstance(code, str) and code else str(error.get("type") or "")
    message = _one_line(str(error.get("message") or ""))
    return _ErrorObject(message, error_type, param if isinstance(param, str) else None)


def _hint(status: int, retry_after: str | None, key: ApiKey) -> str:
    if status in (401, 403):
        if key.value:
            return f"the server rejects the key in {key.variable}; --api-key-env names another variable."
        return f"{key.variable} holds no key; --api-key-env names the variable that does."
    if status not in _TRANSIENT:
        return ""
    return f"try again in {retry_after} s." if retry_after and retry_after.isdigit() else "try again."


def _one_line(text: str) -> str:
    # Control characters from a server must not reach the terminal.
    line = "".join(filter(str.isprintable, " ".join(text.split())))
    return line if len(line) <= _MAX_CHARS else f"{line[:_MAX_CHARS]}…"
