"""vLLM's errors in OpenAI's shape, on their way out of vLLM's application.

vLLM answers `code` with the status number and names its own error types; OpenAI's clients expect a word or null. A
stream whose first event is an error never was a stream: it becomes a plain reply with the error's status.
"""

from __future__ import annotations

import json
import logging
import re
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayllm.config.engine_arguments import vllm_names
from rayllm.errors import EngineError, ModelNotFoundError, RayLLMError, RequestError, UnavailableError

logger = logging.getLogger(__name__)

_EVENT = b'data: {"error"'
_PROMPT_FIELD = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}
# vLLM's names for the length of the prompt, which is no field that a client sent.
_FINDING = re.compile(r"'loc': \(([^)]*)\), 'msg': (?:'|\")(.*?)(?:'|\")(?:, 'input'|, 'ctx'|\})")
_REPETITION = re.compile(r" \(parameter=\w+(, value=.*)?\)$", re.DOTALL)
_LENGTH_PARAMS = {"input_tokens", "input_text", "prompt_token_ids", "prompt_len"}


def translate(error: dict[str, Any], status: int, path: str, request_id: str = "") -> RayLLMError:
    """The error of ours that stands for one of vLLM's.

    Args:
        error: vLLM's error object: message, type, param, code.
        status: the HTTP status that vLLM gave.
        path: the endpoint.
        request_id: the request's id, for the log.
    """
    message = _sentence(str(error.get("message") or "The request failed."))
    if status in (503, 429):
        return UnavailableError(message)
    if status >= 500 and status != 501:
        # The text may hold paths or addresses; it belongs into the log.
        logger.error("The engine failed on request %s to %s: %s", request_id, path, message)
        return EngineError("The engine failed on this request; the server's log says why.")
    if status == 404 and "model" in message.lower():
        return ModelNotFoundError(message, "model")
    if "default chat template is no longer allowed" in message:
        return RequestError(
            "This model has no chat template, so it takes no messages. Use /v1/completions, or give the model a "
            "`prompt_format` or a `chat_template`.",
            "messages",
        )
    if status == 404:
        # vLLM has no route for what the model cannot do.
        return RequestError(f"This model does not do {path}.", "model")
    return RequestError(message, _param(error.get("param"), message, path))


def _sentence(message: str) -> str:
    """vLLM's message without its repetition of the parameter, and pydantic's list of findings as sentences."""
    findings = _FINDING.findall(message)
    if findings:
        return "; ".join(dict.fromkeys(f"{_field(loc)}: {msg}" for loc, msg in findings[:5])) + "."
    return _REPETITION.sub("", re.sub(r"^\d+ validation errors?:\s+", "", message))


def _field(loc: str) -> str:
    parts = [part.strip(" '\"") for part in loc.split(",")]
    return ".".join(part for part in parts if part and part != "body" and "[" not in part)


def _param(param: Any, message: str, path: str) -> str | None:
    field = _PROMPT_FIELD.get(path)
    if isinstance(param, str) and param:
        name = param.removeprefix("body.")
        return field if name in _LENGTH_PARAMS else name
    first = re.match(r"\w*", message)
    if first and first[0] in vllm_names()["request"]:
        return first[0]
    if "LoRA adapter" in message:
        return "model"
    about_prompt = ("context length", "role", "message", "prompt", "maximum model length", "chat template")
    return field if any(word in message for word in about_prompt) else None


class ErrorTranslator:
    """ASGI middleware that rewrites error replies and error events; all else passes untouched."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = next((value.decode("latin-1") for key, value in scope["headers"] if key == b"x-request-id"), "")
        await self._app(scope, receive, _Reply(scope["path"], request_id, send).send)


class _Reply:
    """One reply. The start is held until the first body message shows what it is."""

    def __init__(self, path: str, request_id: str, send: Send) -> None:
        self._path = path
        self._request_id = request_id
        self._send = send
        self._start: Message | None = None
        self._failed = bytearray()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
        elif message["type"] != "http.response.body":
            await self._send(message)
        elif self._start is not None and self._start["status"] >= 400:
            await self._collect(message)
        elif self._start is not None:
            await self._begin(message)
        else:
            await self._send(self._event(message))

    async def _begin(self, message: Message) -> None:
        body = message.get("body", b"")
        if not body and message.get("more_body"):
            return
        if body.startswith(_EVENT):
            error = json.loads(body.split(b"\n", 1)[0].removeprefix(b"data: "))["error"]
            await self._fail(error, _status(error))
            return
        start, self._start = self._start, None
        assert start is not None  # noqa: S101  (told by the caller)
        await self._send(start)
        await self._send(message)

    async def _collect(self, message: Message) -> None:
        self._failed += message.get("body", b"")
        if message.get("more_body"):
            return
        assert self._start is not None  # noqa: S101  (told by the caller)
        await self._fail(_error_object(bytes(self._failed)), self._start["status"])

    async def _fail(self, error: dict[str, Any], status: int) -> None:
        found = translate(error, status, self._path, self._request_id)
        body = json.dumps(found.body()).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), **found.headers()}
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        self._start = None
        await self._send({"type": "http.response.start", "status": found.status, "headers": raw})
        await self._send({"type": "http.response.body", "body": body})
        self._send = _swallow

    def _event(self, message: Message) -> Message:
        body = message.get("body", b"")
        if not body.startswith(_EVENT):
            return message
        line, _, rest = body.partition(b"\n")
        error = json.loads(line.removeprefix(b"data: "))["error"]
        ours = json.dumps(translate(error, _status(error), self._path, self._request_id).body()).encode()
        return {**message, "body": b"data: " + ours + b"\n" + rest}


def _status(error: dict[str, Any]) -> int:
    code = error.get("code")
    return code if isinstance(code, int) else 500


def _error_object(body: bytes) -> dict[str, Any]:
    """The error in a failed reply: vLLM's own object, FastAPI's `detail`, or none."""
    try:
        parsed = json.loads(body)
    except ValueError:
        return {"message": body.decode(errors="replace")[:500]}
    if not isinstance(parsed, dict):
        return {}
    error = parsed.get("error", parsed.get("detail"))
    return error if isinstance(error, dict) else {"message": error}


async def _swallow(message: Message) -> None:
    """What vLLM still sends after a reply was replaced: the rest of a stream that failed."""
