"""The exception hierarchy. The class of an exception determines the HTTP status, except of refusals by hooks.

RayLLMError                      500  server_error
├── ConfigError                        invalid configuration; raised at load time, never over HTTP
├── SourceError                        weights or a tokenizer cannot be fetched
├── ClusterError                       the cluster lacks resources for a model
├── StorageError                       a storage folder cannot be read or written
├── RequestError                 400  invalid_request_error
│   ├── AuthenticationError      401  invalid_api_key
│   ├── PermissionDeniedError    403  permission_denied
│   ├── ModelNotFoundError       404  model_not_found
│   ├── RouteNotFoundError       404  not_found
│   ├── ObjectNotFoundError      404  not_found
│   ├── MethodNotAllowedError    405  method_not_allowed
│   ├── RequestTimeoutError      408  timeout
│   ├── ConflictError            409  conflict
│   ├── BodyTooLargeError        413  request_too_large
│   ├── QuotaError               429  insufficient_quota, with Retry-After
│   ├── RateLimitError           429  rate_limit_exceeded, with Retry-After and x-ratelimit-…
│   ├── HeadersTooLargeError     431  headers_too_large
│   └── RefusedError             403  request_refused, by a guard or a hook, which chooses status and code
├── UnavailableError             503  overloaded_error, with Retry-After
│   └── ConstraintNotCheckedError 503 constraint_not_checked
├── HookError                    500  hook_failed
├── GuardError                   503  guard_failed
└── EngineError                  500  server_error
    └── QuarantineError          500  request_quarantined

Constructors take positional arguments, so that exceptions survive pickling between Ray processes.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
"""Code of a RequestError: the prompt, or prompt and answer together, are longer than the context."""
ADAPTER_UNAVAILABLE = "adapter_unavailable"
"""Code of an UnavailableError: the model is available, but an adapter cannot be fetched."""


class RayLLMError(Exception):
    """Base class of this package's exceptions.

    Args:
        message: what is wrong and, if possible, how to fix it.
        param: the request field at fault.
        code: machine-readable code; overrides the class's own.
        more: what a class's constructor takes besides.
    """

    status: int = 500
    type: ClassVar[str] = "server_error"
    default_code: ClassVar[str | None] = None
    retry_helps: ClassVar[bool] = True
    """Else a header keeps clients from repeating the request, as OpenAI's and Anthropic's do at some statuses."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None, *more: object) -> None:
        super().__init__(message, param, code, *more)
        self.message = message
        self.param = param
        self.code = code or self.default_code

    def __str__(self) -> str:
        return self.message

    # Not `cause`: Ray sets that on errors of other processes.
    @property
    def log_name(self) -> str:
        """What logs and metrics call this error: its code."""
        return self.code or self.type

    def headers(self) -> dict[str, str]:
        """HTTP headers of the error reply."""
        return {} if self.retry_helps else {"x-should-retry": "false"}

    def body(self) -> dict[str, dict[str, Any]]:
        """OpenAI's error object, always with all four keys.

        Source: https://platform.openai.com/docs/guides/error-codes
        """
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class ConfigError(RayLLMError, ValueError):
    """The configuration is invalid. The message lists every error, one per line."""


class SourceError(RayLLMError):
    """Weights or a tokenizer cannot be fetched from their configured source."""


class ClusterError(RayLLMError):
    """The Ray cluster cannot hold what the configuration asks for."""


class StorageError(RayLLMError):
    """A storage folder cannot be read or written. The message names it, so it is for logs only."""


class RequestError(RayLLMError):
    """The request is invalid; sending it again does not help."""

    status = 400
    retry_helps = False
    type = "invalid_request_error"


class AuthenticationError(RequestError):
    status = 401
    default_code = "invalid_api_key"


class PermissionDeniedError(RequestError):
    status = 403
    default_code = "permission_denied"


class ModelNotFoundError(RequestError):
    status = 404
    default_code = "model_not_found"


class RouteNotFoundError(RequestError):
    status = 404
    default_code = "not_found"


class ObjectNotFoundError(RequestError):
    """There is no file or batch with that id."""

    status = 404
    default_code = "not_found"


class MethodNotAllowedError(RequestError):
    status = 405
    default_code = "method_not_allowed"


class RequestTimeoutError(RequestError):
    status = 408
    retry_helps = True
    type = "timeout_error"
    default_code = "timeout"


class ConflictError(RequestError):
    """The request conflicts with the state of an object; retrying does not help."""

    status = 409
    default_code = "conflict"


class BodyTooLargeError(RequestError):
    status = 413
    default_code = "request_too_large"


class HeadersTooLargeError(RequestError):
    status = 431
    default_code = "headers_too_large"


class QuotaError(RequestError):
    """A storage quota is exhausted; deleting helps, retrying does not."""

    status = 429
    type = "insufficient_quota"
    default_code = "insufficient_quota"

    def headers(self) -> dict[str, str]:
        return {"retry-after": "60", **super().headers()}


class RateLimitError(RequestError):
    """A limit of the key's has been reached; `reply_headers` say which, and when to try again."""

    status = 429
    type = "rate_limit_error"
    default_code = "rate_limit_exceeded"

    def __init__(
        self,
        message: str,
        param: str | None = None,
        code: str | None = None,
        reply_headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, param, code, reply_headers)
        self.reply_headers = dict(reply_headers or {})

    def headers(self) -> dict[str, str]:
        return {"x-should-retry": "true", **self.reply_headers}


class RefusedError(RequestError):
    """The policy of the service refuses the request: `by` a hook, which may choose another status, or by a guard."""

    status = 403
    default_code = "request_refused"

    def __init__(
        self, message: str, param: str | None = None, code: str | None = None, status: int = 403, by: str = "hook"
    ) -> None:
        super().__init__(message, param, code, status, by)
        self.status = status
        self._by = by

    @property
    def log_name(self) -> str:
        return self._by


class HookError(RayLLMError):
    """A hook failed on the request, or took too long."""

    default_code = "hook_failed"


class GuardError(RayLLMError):
    """A guard does not say whether a request or a reply is safe; the client may retry."""

    status = 503
    type = "overloaded_error"
    default_code = "guard_failed"


class UnavailableError(RayLLMError):
    """No replica can take the request now; the client may retry after `retry_after_s` seconds."""

    status = 503
    type = "overloaded_error"
    default_code = "overloaded"
    default_retry_s: ClassVar[int] = 1

    def __init__(self, message: str, param: str | None = None, code: str | None = None, retry_after_s: int = 0) -> None:
        super().__init__(message, param, code, retry_after_s)
        self.retry_after_s = retry_after_s or self.default_retry_s

    def headers(self) -> dict[str, str]:
        return {"retry-after": str(self.retry_after_s), "x-should-retry": "true"}


class ConstraintNotCheckedError(UnavailableError):
    """The machine is too busy to check the request's structured-output constraint, which may be valid."""

    default_code = "constraint_not_checked"
    default_retry_s = 5


class EngineError(RayLLMError):
    """The engine failed. The message never contains internals."""


class QuarantineError(EngineError):
    """Replicas have died of this request."""

    default_code = "request_quarantined"
    retry_helps = False
