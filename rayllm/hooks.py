"""What the functions in `router.hooks` are called with, and how they refuse a request.

This module imports nothing but the standard library, as hooks run in a process of their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_LONGEST_MESSAGE = 2000
_LONGEST_CODE = 100


@dataclass(frozen=True)
class HookRequest:
    """A request before it is routed.

    `id` is its `x-request-id`, `path` the endpoint, and `model` the name as in the request. `key` is the name of the
    caller's key and `tenant` the key's tenant; both are empty without keys. `headers` are the client's by lower-case
    name, without those that may hold credentials. `body` is the JSON object, None for multipart forms.
    """

    id: str
    path: str
    model: str
    key: str = ""
    tenant: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: dict[str, Any] | None = None


@dataclass(frozen=True)
class HookUsage:
    """A request after its end.

    `model` and `adapter` are empty if the request ended before they were known. `status` is 499 if the client left
    before the reply began, `error` is what the router refused the request for, and "" if it did not. Times are in
    seconds, `created` since the epoch; `first_token_s` is None if no token was generated.
    """

    id: str
    path: str
    model: str
    adapter: str
    key: str
    tenant: str
    status: int
    error: str
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    created: float
    total_s: float
    first_token_s: float | None


class Refuse(Exception):  # noqa: N818  (it is no fault)
    """Raised by a hook to refuse a request.

    Args:
        message: for the client.
        status: HTTP status, from 400 to 499.
        code: machine-readable code in the error.
    """

    def __init__(self, message: str, status: int = 403, code: str = "request_refused") -> None:
        super().__init__(message, status, code)
        if not isinstance(status, int) or not 400 <= status <= 499:
            raise ValueError(f"the status of a refusal must be from 400 to 499, not {status!r}")
        self.message = str(message)[:_LONGEST_MESSAGE]
        self.status = status
        self.code = str(code)[:_LONGEST_CODE]
