"""Generate docs/errors.md from the exceptions and the codes that the code gives them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from rayllm.core import errors
from rayllm.core.errors import RayLLMError

_PACKAGE = Path(errors.__file__).parents[1]
_CLASSES = {
    name: found for name, found in vars(errors).items() if isinstance(found, type) and issubclass(found, RayLLMError)
}
# What each code means, or a type without one, and what helps.
_MEANINGS = {
    "invalid_request_error": "The request is invalid; the message says what, and `param` which field.",
    "adapter_broken": "The [adapter](adapters.md) is broken, does not fit the model, or needs what vLLM does not "
    "support; the message says which.",
    "adapter_unavailable": "The [adapter](adapters.md) cannot be fetched or loaded now. Try again.",
    "constraint_not_checked": "The server is too busy to check the structured-output constraint. Try again.",
    "conflict": "The object's state does not allow this, such as cancelling a batch that has ended.",
    "context_length_exceeded": "The prompt, or prompt and answer together, are longer than the model's context.",
    "content_policy_violation": "A [guard](hooks.md#guards) blocks the prompt or the answer.",
    "guard_failed": "A guard did not answer, or not with a verdict. See [hooks](hooks.md#guards).",
    "headers_too_large": "The request's headers are too large.",
    "hook_failed": "A [hook](hooks.md) failed, took too long or broke its process; the router's log says which.",
    "insufficient_quota": "The storage of [files and batches](batch-api.md) is full; delete some.",
    "invalid_api_key": "There is no key, or it is unknown, revoked or expired. See [API keys](access.md#errors).",
    "keys_unavailable": "The file of keys, or the issuer of tokens, has not been readable since the router's start.",
    "limits_unavailable": "The limits of keys cannot be counted at the moment. Try again.",
    "method_not_allowed": "The path has no such method.",
    "model_not_found": "No model, alias or adapter has this name; the message lists similar ones.",
    "not_found": "There is no such path, file or batch.",
    "not_ready": "`/ready`, or the service while it starts: the message has the reason for each model.",
    "overloaded": "No replica has a free slot, or the queue is full. Try again after `Retry-After` seconds.",
    "permission_denied": "The key may not do this, or it came "
    "[from a web page](access.md#web-pages-and-services-on-loopback) without one.",
    "rate_limit_exceeded": "A [limit](access.md#limits) of the key, or its tenant's share of a router, has been "
    "reached; try again after `Retry-After` seconds.",
    "request_quarantined": "Replicas have [died of this request](reliability.md), so it is not sent to another.",
    "request_refused": "A [hook](hooks.md) refused the request; the hook may choose another status and code.",
    "request_too_large": "The body is larger than `router.max_body_bytes`.",
    "server_error": "The engine failed. The replica's log has details; the message has no internals.",
    "timeout": "The request was not received, or not answered, in time.",
    "usage_unavailable": "The usage ledger cannot be read at the moment.",
}
_HEAD = """\
# Errors

Generated from the exceptions by `make generate`. [The HTTP API](api.md#errors) has the form of errors, and
[troubleshooting](troubleshooting.md) explains messages that operators see.

| status | `type` | `code` | meaning |
|---|---|---|---|
"""
_TAIL = """
At Anthropic's paths, the `type` is Anthropic's: `authentication_error` for 401, `permission_error` for 403,
`not_found_error` for 404, `request_too_large` for 413, `rate_limit_error` for 429 and `api_error` for 500. vLLM's own
refusals of a request have status 400 and vLLM's message. `x-should-retry`, which OpenAI's and Anthropic's clients obey,
is `false` where repeating the request cannot help, and `true` where it will.

Commands exit with 2 for a usage error and with 1 for a failure; the message on standard error names the file, key or
option. `ConfigError`, `SourceError`, `ClusterError` and `StorageError` end a command or a start; they never answer
requests.
"""


def reference() -> str:
    """The page docs/errors.md."""
    rows = sorted({*_defaults(), *_given()})
    named = {code or kind for _, kind, code in rows}
    if named != _MEANINGS.keys():
        missing, unused = sorted(named - _MEANINGS.keys()), sorted(_MEANINGS.keys() - named)
        raise SystemExit(
            f"scripts/error_codes.py: codes without a meaning {missing}, meanings without a code {unused}."
        )
    table = "\n".join(_row(*row) for row in rows)
    return f"{_HEAD}{table}\n{_TAIL}"


def _row(status: int, kind: str, code: str) -> str:
    return f"| {status} | `{kind}` | {f'`{code}`' if code else 'null'} | {_MEANINGS[code or kind]} |"


def _defaults() -> Iterator[tuple[int, str, str]]:
    for found in _CLASSES.values():
        if found.default_code:
            yield found.status, found.type, found.default_code
    yield errors.RequestError.status, errors.RequestError.type, ""
    yield errors.EngineError.status, errors.EngineError.type, ""


def _given() -> Iterator[tuple[int, str, str]]:
    """The codes that calls of the constructors name."""
    for path in _PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CLASSES:
                code = next((one.value for one in node.keywords if one.arg == "code"), (node.args[2:3] or [None])[0])
                if text := _text(code):
                    found = _CLASSES[node.func.id]
                    yield found.status, found.type, text


def _text(code: ast.expr | None) -> str | None:
    if isinstance(code, ast.Name):
        value = getattr(errors, code.id, None)
        return value if isinstance(value, str) else None
    return code.value if isinstance(code, ast.Constant) and isinstance(code.value, str) else None
