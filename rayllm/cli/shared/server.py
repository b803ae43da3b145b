"""Requests to an OpenAI-compatible server, whose failures are one line and a hint."""

import difflib
import json
import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from http.client import responses
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from rayllm.cli.shared.terminal import first_names
from rayllm.core.errors import ConfigError, RayLLMError
from rayllm.core.hosts import is_loopback

if TYPE_CHECKING:
    from openai import APIConnectionError, APIStatusError, OpenAI

_URL_VARIABLES = ["RAYLLM_URL", "OPENAI_BASE_URL", "OPENAI_API_BASE"]
_DEFAULT_URL = "http://127.0.0.1:8000"
_VERSION = re.compile(r"/(v\d+)$")
_ERRNO = re.compile(r"^\[Errno -?\d+\] ")
# Seconds until there is a connection, and until a reply that is no completion has ended.
_CONNECT_S, _GET_S = 10.0, 30.0
_MAX_CHARS = 500
_HINT = "--url or RAYLLM_URL names another server; `rayllm run` starts one."
# With these, an OpenAI-compatible server sends an error object, any other web server a page.
_PAGE_STATUSES = (400, 404, 405, 501)
_TRANSIENT = (408, 429, 500, 502, 503, 504, 529)


class ServerError(RayLLMError):
    """A request to a server failed: what happened, what to do, and the HTTP status; 0 if there was no response."""

    def __init__(self, line: str, hint: str = "", status_code: int = 0) -> None:
        super().__init__(f"{line}\nhint: {hint}" if hint else line)
        self.line = line
        self.status_code = status_code


@dataclass(frozen=True)
class Model:
    """A model of `GET /v1/models`; only vLLM and RayLLM send all fields.

    Attributes:
        base: the base model of an adapter.
        root: the source of the weights, or the model that an alias stands for.
        context: most tokens of a sequence.
    """

    id: str
    base: str
    root: str
    context: int | None
    owner: str
    kind: str


@dataclass(frozen=True)
class Server:
    """An OpenAI-compatible server.

    Attributes:
        root: URL without the API's version.
        key: API key, or "".
        variable: name of the key's environment variable.
    """

    root: str
    version: str = "v1"
    key: str = field(default="", repr=False)
    variable: str = "OPENAI_API_KEY"

    def __str__(self) -> str:
        return self.root

    def get(self, path: str, **fields: type) -> dict[str, Any]:
        """Read a path of the API, such as `models`; raises ServerError if the response lacks `fields` of a type."""
        with self._connected() as openai:
            content = openai.get(f"/{path}", cast_to=object, options={"timeout": _GET_S})
        if not isinstance(content, dict) or not all(isinstance(content.get(name), fields[name]) for name in fields):
            raise ServerError(f"{self} is not an OpenAI-compatible server.", _HINT, 200)
        return content

    def models(self) -> list[Model]:
        """List the models and adapters; raises as `get`."""
        entries = [entry for entry in self.get("models", data=list)["data"] if isinstance(entry, dict)]
        entries = [entry for entry in entries if isinstance(name := entry.get("id"), str) and name.isprintable()]
        return [_model(entry, {each["id"] for each in entries}) for entry in entries]

    def stream(self, body: Mapping[str, Any], on_send: Callable[[], None] = lambda: None) -> Generator[Any]:
        """Request a completion, and yield the chunks of its stream. Closing the generator cancels the request.

        `on_send` is called right before the request is sent. Raises ServerError if the request or the stream fails, or
        the stream is cut off.
        """
        has_ended = False
        try:
            with self._connected() as openai:
                api: Any = openai.chat.completions if "messages" in body else openai.completions
                on_send()
                with api.create(**body, stream=True, stream_options={"include_usage": True}) as chunks:
                    kind = chunks.response.headers.get("content-type", "no content").partition(";")[0]
                    if kind != "text/event-stream":
                        raise self._foreign(f"answered 200 with {kind}")
                    for chunk in chunks:
                        if not isinstance(getattr(chunk, "choices", None), list):
                            raise self._foreign("sent an event without choices")
                        has_ended |= any(getattr(choice, "finish_reason", None) for choice in chunk.choices)
                        yield chunk
        except ServerError as error:
            raise self._with_model_hint(error, body["model"]) from None
        if not has_ended:
            raise self._lost()

    @contextmanager
    def _connected(self) -> "Iterator[OpenAI]":
        """A new connection, since servers close connections that are idle between two messages of a chat."""
        from openai import APIConnectionError, APIError, APIStatusError, DefaultHttpxClient, OpenAI, Timeout

        # Proxies of the environment are for other machines.
        http = DefaultHttpxClient(
            trust_env=not is_loopback(urlsplit(self.root).hostname or ""),
            follow_redirects=False,
            event_hooks={"request": [self._drop_headers]},
        )
        timeout = Timeout(None, connect=_CONNECT_S)
        # Compressed streams arrive in bursts.
        headers = {"accept-encoding": "identity"}
        url = f"{self.root}/{self.version}"
        try:
            options: dict[str, Any] = {"timeout": timeout, "max_retries": 0, "default_headers": headers}
            with OpenAI(api_key=self.key or "none", base_url=url, http_client=http, **options) as openai:
                yield openai
        except APIStatusError as error:
            raise self._refused(error) from None
        except APIConnectionError as error:
            raise self._unconnected(error) from None
        except APIError as error:
            raise ServerError(f"{self} failed during the stream: {_text(error.body)}") from None
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise ServerError(f"{self} is not an OpenAI-compatible server.", _HINT, 200) from None

    def _drop_headers(self, request: Any) -> None:
        """Leave out what the `openai` package sends to any server: a key, and names of OpenAI's own accounts."""
        for name in ("openai-organization", "openai-project", *([] if self.key else ["authorization"])):
            request.headers.pop(name, None)

    def _foreign(self, what: str, status: int = 200) -> ServerError:
        return ServerError(f"{self} {what}: it is not an OpenAI-compatible server.", _HINT, status)

    def _refused(self, error: "APIStatusError") -> ServerError:
        """The error for a status other than 200."""
        status, headers = error.status_code, error.response.headers
        kind = headers.get("content-type", "no content").partition(";")[0]
        if kind != "application/json" and (status < 400 or status in _PAGE_STATUSES):
            target = f" and a redirect to {headers['location'][:_MAX_CHARS]}" if "location" in headers else ""
            return self._foreign(f"answered {status} with {kind}{target}", status)
        text = _text(error.body) if kind == "application/json" else responses.get(status, "")
        return ServerError(f"{self} answered {status}: {text}", self._hint(status, headers.get("retry-after")), status)

    def _hint(self, status: int, retry_after: str | None) -> str:
        if status in (401, 403) and self.key:
            return f"the server rejects the key in {self.variable}; --api-key-env names another variable."
        if status in (401, 403):
            return f"{self.variable} holds no key; --api-key-env names the variable that does."
        if status not in _TRANSIENT:
            return ""
        return f"try again in {retry_after} s." if retry_after and retry_after.isdigit() else "try again."

    def _unconnected(self, error: "APIConnectionError") -> ServerError:
        from openai import APITimeoutError

        if isinstance(error, APITimeoutError):
            return ServerError(f"{self}: timed out.", _HINT)
        if type(error.__cause__).__name__ != "ConnectError":
            return self._lost()
        problem = _ERRNO.sub("", str(error.__cause__))
        return ServerError(f"{self}: cannot connect: {_line(problem)}.", _HINT)

    def _lost(self) -> ServerError:
        return ServerError(f"{self}: the connection was lost before the response ended.")

    def _with_model_hint(self, error: ServerError, model: str) -> ServerError:
        """Add the existing models to the error for an unknown model."""
        if error.status_code != 404:
            return error
        try:
            names = [each.id for each in self.models()]
        except ServerError:
            return error
        return error if model in names else ServerError(error.line, model_hint(model, names), 404)


def parse_address(text: str) -> tuple[str, str]:
    """The URL of a server without the API's version, and that version; the default scheme is `http`."""
    url = (text if "://" in text else f"http://{text}").strip().rstrip("/")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"`{text}` is not a valid address: {error}.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ConfigError(f"`{text}` is not an address such as http://127.0.0.1:8000.")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigError("an address must have no password and no query; --api-key-env names a key's variable.")
    version = _VERSION.search(parts.path)
    return (url[: -len(version[0])], version[1]) if version else (url, "v1")


def model_hint(name: str, names: list[str]) -> str:
    """A hint for an unknown model name: the most similar one, or the existing ones."""
    if similar := difflib.get_close_matches(name, names, n=1):
        return f"did you mean `{similar[0]}`?"
    return f"models here: {first_names([f'`{each}`' for each in names]) or 'none'}."


def _model(entry: Mapping[str, Any], ids: set[str]) -> Model:
    name, base, root = entry["id"], str(entry.get("parent") or ""), str(entry.get("root") or "")
    kind = f"adapter of {base}" if base else f"alias of {root}" if root != name and root in ids else "model"
    context = entry.get("max_model_len")
    owner = str(entry.get("owned_by") or "")
    return Model(name, base, root, context if isinstance(context, int) else None, owner, kind)


def _text(body: object) -> str:
    """The message of OpenAI's error object, or of what other servers send."""
    if isinstance(body, dict):
        body = body.get("message") or body.get("detail") or body
    return _line(body if isinstance(body, str) else json.dumps(body))


def _line(text: str) -> str:
    # Control characters from a server must not reach the terminal.
    line = "".join(filter(str.isprintable, " ".join(text.split())))
    return line if len(line) <= _MAX_CHARS else f"{line[:_MAX_CHARS]}…"


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--url` and `--api-key-env` to a command, as its argument `server: Server`."""

    @click.option(
        "--url",
        metavar="URL",
        default=_DEFAULT_URL,
        show_default=True,
        envvar=_URL_VARIABLES,
        show_envvar=True,
        callback=_address,
        help="Address of the server, with `/v1` or without.",
    )
    @click.option(
        "--api-key-env",
        "key",
        metavar="NAME",
        default=Server.variable,
        show_default=True,
        callback=_key,
        help="Environment variable that holds the server's key.",
    )
    @wraps(command)
    def with_server(url: tuple[str, str], key: tuple[str, str], **options: Any) -> Any:
        return command(server=Server(*url, *key), **options)

    return with_server


def _address(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, str]:
    try:
        return parse_address(value)
    except ConfigError as error:
        raise click.BadParameter(error.message) from None


def _key(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, str]:
    key = os.environ.get(value, "").strip()
    if not key and ctx.get_parameter_source("key") is not ParameterSource.DEFAULT:
        raise click.BadParameter(f"the environment has no {value}.")
    if not key.isprintable() or not key.isascii():
        raise click.BadParameter(f"{value} holds characters that cannot be sent in a header.")
    return key, value


def choose_model(server: Server, model: str | None) -> str:
    """The given model, else the server's first model, which is printed on standard error; raises ServerError."""
    if model:
        return model
    first = next((each.id for each in server.models() if not each.base), None)
    if first is None:
        raise ServerError(f"{server} has no models.")
    click.echo(f"model: {first}", err=True)
    return first
