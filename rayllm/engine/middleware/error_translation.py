"""Translates vLLM's errors to OpenAI's shape, in replies that are corrected on the way.

vLLM puts the status into `code`, where OpenAI's clients expect a string or null. A stream whose first event is an error
becomes a plain reply with the error's status.
"""

import json
import logging
import re
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayllm.config.engine_arguments import vllm_names
from rayllm.core.asgi import header
from rayllm.core.endpoints import BY_PATH, CHAT, CHAT_BATCH, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES, TOKENIZE
from rayllm.core.error_shapes import error_event, error_response
from rayllm.core.errors import (
    CONTEXT_LENGTH_EXCEEDED,
    ConstraintNotCheckedError,
    EngineError,
    ModelNotFoundError,
    RayLLMError,
    RequestError,
    UnavailableError,
)
from rayllm.core.headers import REQUEST_ID
from rayllm.engine.guided import ERROR_TYPE
from rayllm.engine.middleware.chat_events import corrected_chat
from rayllm.engine.middleware.response_events import corrected_response

logger = logging.getLogger(__name__)

# An error event, in OpenAI's or Anthropic's form.
_EVENT = re.compile(rb'(?:event: error\n)?data: (\{(?:"type":\s*"error",\s*)?"error".*)')
# Events of the Responses API sent before the engine has the request.
_ANNOUNCEMENTS = (b"event: response.created\n", b"event: response.in_progress\n")
_NUMBER = re.compile(rb'"sequence_number":\s*(\d+)')
_PROMPT_FIELD = {CHAT: "messages", CHAT_BATCH: "messages", MESSAGES: "messages", RESPONSES: "input"}
_PROMPT_FIELD |= {COMPLETIONS: "prompt", EMBEDDINGS: "input", "/classify": "input", "/pooling": "input"}
_PROMPT_FIELD |= {TOKENIZE: "prompt", "/detokenize": "tokens"}
_SPEECH = tuple(path for path, endpoint in BY_PATH.items() if endpoint.is_form)
# Fields that vLLM's messages do not name: endpoints → part of a message → field.
_FIELD_BY_MESSAGE = (
    (_SPEECH, "Unsupported language", "language"),
    (_SPEECH, "udio", "file"),
    (_SPEECH, "'file'", "file"),
    ((EMBEDDINGS, "/pooling"), "atryoshka", "dimensions"),
    (("/score", "/v1/score"), "text element", "text_1"),
    (("/score", "/v1/score"), "text_pair element", "text_2"),
    (("/score", "/v1/score"), "Input lengths", "text_2"),
    (("/rerank", "/v1/rerank", "/v2/rerank"), "text_pair element", "documents"),
)
_ABOUT_PROMPT = re.compile(
    r"context length|role|message|prompt|maximum model length|chat template|vocabulary|\bURL"
    r"|\b(image|audio|video|multimodal)\b"
)
# Flags of vLLM's command line, as keys of a model's file.
_FLAGS = {"--enable-auto-tool-choice": "`tool_calling.auto`", "--tool-call-parser": "`tool_calling.parser`"}
_FLAGS |= {"--reasoning-parser": "`reasoning_parser`", "--reasoning-config": "`engine_kwargs.reasoning_config`"}
_NO_TEMPLATE = (
    "This model has no chat template, so it takes no messages. Use /v1/completions, or give the model a "
    "`prompt_format` or a `chat_template`."
)
_UNTRUSTED = (
    "This model takes no chat template from a request; `engine_kwargs: {trust_request_chat_template: true}` in its "
    "file would let it."
)
# Part of vLLM's message → our message, since vLLM addresses the server's operator, and the field.
_MESSAGES = (
    ("default chat template is no longer allowed", _NO_TEMPLATE, "messages"),
    ("--trust-request-chat-template", _UNTRUSTED, "chat_template"),
    ("untrusted chat template", _UNTRUSTED, "chat_template"),
)
# Names for the content of the prompt's field: vLLM's, and `media` of `rayllm.engine.vllm.application`.
_PROMPT_PARAMS = {"input_tokens", "input_text", "prompt_token_ids", "prompt_len", "media"}
# Of these, what vLLM has when the prompt is longer than the context: counted in tokens, and in characters.
_TOO_LONG = ("input_tokens", "input_text")


def translate_error(error: dict[str, Any], status: int, path: str, request_id: str = "") -> RayLLMError:
    """Translate vLLM's error object, which has a message, type, param and code, to an exception of RayLLM."""
    message = str(error.get("message") or "The request failed.")
    if error.get("code") == ConstraintNotCheckedError.default_code:
        return ConstraintNotCheckedError(message)
    if status in (503, 429):
        return UnavailableError(message)
    if error.get("type") == ERROR_TYPE:
        return EngineError(message)
    if status >= 500 and status != 501:
        # The message may contain paths or addresses: for the log only.
        logger.error("The engine failed on request %s to %s: %s", request_id, path, message)
        return EngineError("The engine failed on this request; the server's log says why.")
    # vLLM has this type only for models and adapters.
    if status == 404 and error.get("type") == "NotFoundError":
        return ModelNotFoundError(message, "model")
    for part, message_for_client, param in _MESSAGES:
        if part in message:
            return RequestError(message_for_client, param)
    for flag, key in _FLAGS.items():
        message = message.replace(flag, key)
    code = CONTEXT_LENGTH_EXCEEDED if error.get("param") in _TOO_LONG else None
    return RequestError(message, _param(error, message, path), code)


def _param(error: dict[str, Any], message: str, path: str) -> str | None:
    param = error.get("param")
    if isinstance(param, str) and param not in ("", "body"):
        name = param.removeprefix("body.")
        return _PROMPT_FIELD.get(path) if name in _PROMPT_PARAMS else name
    return _named_in(message, path)


def _named_in(message: str, path: str) -> str | None:
    # vLLM's messages begin with a field's name, or quote it; RayLLM's name the formats.
    for name in (message.split("=")[0].split(" ")[0].strip("`'\",:"), *re.findall(r"`([\w.]+)`", message)):
        if name in vllm_names()["request"] or name in ("text.format", "output_config.format"):
            return str(name)
    if "tool choice" in message:
        return "tool_choice"
    if "LoRA adapter" in message:
        return "model"
    for paths, part, field in _FIELD_BY_MESSAGE:
        if path in paths and part in message:
            return field
    return _PROMPT_FIELD.get(path) if _ABOUT_PROMPT.search(message) else None


class ErrorMiddleware:
    """ASGI middleware that translates error replies, error events and exceptions, and corrects all other replies.

    `error_object` returns vLLM's error object for an exception caused by the request, else None.
    """

    def __init__(
        self, app: ASGIApp, error_object: Callable[[BaseException], dict[str, Any] | None] = lambda error: None
    ) -> None:
        self._app = app
        self._error_object = error_object

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id = header(scope, REQUEST_ID)
        reply = _Reply(scope, receive, request_id, send)
        try:
            await self._app(scope, receive, reply.send)
        except RayLLMError as error:
            await reply.fail(error)
        except Exception as error:
            if error_object := self._error_object(error):
                await reply.fail(translate_error(error_object, _status(error_object), scope["path"], request_id))
            else:
                logger.exception("The engine failed on request %s to %s.", request_id, scope["path"])
                await reply.fail(EngineError("The engine failed on this request; the server's log says why."))


class _Reply:
    """A reply, which starts once the first part of the body shows whether the reply is an error."""

    def __init__(self, scope: Scope, receive: Receive, request_id: str, send: Send) -> None:
        self._scope, self._receive, self._path = scope, receive, scope["path"]
        self._request_id = request_id
        self._send = send
        self._start: Message | None = None
        self._failed = bytearray()
        self._pending = self._last = self._held = b""
        self._started = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
        elif message["type"] != "http.response.body":
            await self._send(message)
        elif self._start is not None and self._start["status"] >= 400:
            await self._collect(message)
        else:
            await self._pass_on(message)

    async def fail(self, error: RayLLMError) -> None:
        """End the reply with `error`: as the whole reply, or as the last event of a stream.

        Clients take `[DONE]` for success, so the error is followed by nothing.
        """
        self._start = None
        if self._started:
            body = self._held + error_event(error, self._path, self._next_number())
            await self._send({"type": "http.response.body", "body": body, "more_body": False})
        else:
            await error_response(error, self._path)(self._scope, self._receive, self._send)
        self._send = _swallow

    async def _pass_on(self, message: Message) -> None:
        body = message.get("body", b"")
        if error := _error_in(body):
            await self.fail(translate_error(error, _status(error), self._path, self._request_id))
            return
        if self._path == CHAT:
            body = corrected_chat(body)
        elif self._path == RESPONSES:
            body, self._held = corrected_response(self._held, body)
        if not self._started:
            self._pending += body
            if message.get("more_body") and (not body or body.startswith(_ANNOUNCEMENTS)):
                return
            body, self._pending = self._pending, b""
            start, self._start = self._start, None
            assert start is not None  # noqa: S101  (checked by the caller)
            self._started = True
            headers = [header for header in start["headers"] if header[0] != b"content-length"]
            if not message.get("more_body"):
                headers.append((b"content-length", str(len(body)).encode()))
            await self._send({**start, "headers": headers})
        self._last = body or self._last
        await self._send({**message, "body": body})

    async def _collect(self, message: Message) -> None:
        self._failed += message.get("body", b"")
        if message.get("more_body"):
            return
        assert self._start is not None  # noqa: S101  (checked by the caller)
        error, status = _error_object(bytes(self._failed)), self._start["status"]
        await self.fail(translate_error(error, status, self._path, self._request_id))

    def _next_number(self) -> int:
        numbers = _NUMBER.findall(self._held or self._last)
        return int(numbers[-1]) + 1 if numbers else 0


def _error_in(chunk: bytes) -> dict[str, Any] | None:
    match = _EVENT.match(chunk) if chunk.startswith((b"data: {", b"event: error")) else None
    if match is None:
        return None
    error = json.loads(match[1])["error"]
    return error if isinstance(error, dict) else {"message": str(error)}


def _status(error: dict[str, Any]) -> int:
    code = error.get("code")
    return code if isinstance(code, int) else 500


def _error_object(body: bytes) -> dict[str, Any]:
    """The error in a failed reply: vLLM's own object, or FastAPI's `detail`; empty without either."""
    try:
        parsed = json.loads(body)
    except ValueError:
        return {"message": body.decode(errors="replace")[:500]}
    if not isinstance(parsed, dict):
        return {}
    error = parsed.get("error", parsed.get("detail"))
    return error if isinstance(error, dict) else {"message": error}


async def _swallow(message: Message) -> None:
    """Discard what vLLM still sends after a reply was replaced."""
