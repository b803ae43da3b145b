"""HTTP client for an OpenAI-compatible server."""

from __future__ import annotations

import difflib
import json
from collections.abc import AsyncGenerator, Mapping
from types import TracebackType
from typing import Any, Literal, Self

import aiohttp

from rayllm.client.api.address import Address
from rayllm.client.api.api_key import ApiKey
from rayllm.client.api.error_responses import (
    connection_error,
    connection_lost,
    error_event,
    error_response,
    not_openai,
)
from rayllm.client.api.errors import ServerError
from rayllm.client.api.model_card import ModelCard
from rayllm.client.api.sse import EventReader

Endpoint = Literal["chat/completions", "completions"]
CHAT: Endpoint = "chat/completions"
COMPLETIONS: Endpoint = "completions"

_CONNECT_S = 10.0
_GET_S = 30.0
# Below the keep-alive of servers (Uvicorn 5 s), so that no connection is reused while the server closes it.
_KEEP_ALIVE_S = 3.0
_MAX_ERROR_BYTES = 65536
_MAX_NAMES = 10


class Server:
    """Connections to a server, as a context manager.

    Args:
        address: the server's address.
        key: the API key.
    """

    def __init__(self, address: Address, key: ApiKey | None = None) -> None:
        self.address = address
        self._key = key or ApiKey()
        self._proxy = address.proxy

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            # Compressed streams arrive in bursts.
            headers={"accept-encoding": "identity", "content-type": "application/json", **self._key.headers()},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._session.close()

    async def models(self) -> list[ModelCard]:
        """List the models and adapters.

        Raises:
            ServerError: the request fails, or the response is invalid.
        """
        listed = await self.get("models", data=list)
        return [card for entry in listed["data"] if (card := ModelCard.parse(entry))]

    async def get(self, path: str, **fields: type) -> dict[str, Any]:
        """Read a path of the API, such as `models`, and return the JSON object of the response.

        Args:
            path: the path.
            fields: types of fields that the object must have.

        Raises:
            ServerError: the request fails, or the response is not such an object.
        """
        timeout = aiohttp.ClientTimeout(total=_GET_S, sock_connect=_CONNECT_S)
        try:
            async with self._request("GET", self.address.api(path), timeout=timeout) as response:
                content = await self._json(response)
                if not isinstance(content, dict) or not all(
                    isinstance(content.get(name), kind) for name, kind in fields.items()
                ):
                    raise not_openai(self.address, response.status, response.headers)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise connection_error(self.address, error) from None
        return content

    async def post(self, url: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request to a URL of this server, and return the JSON object of the response.

        Raises:
            ServerError: the request fails, or the response is not an object.
        """
        try:
            async with self._request("POST", url, data=json.dumps(body).encode()) as response:
                content = await self._json(response)
                if not isinstance(content, dict):
                    raise not_openai(self.address, response.status, response.headers)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise connection_error(self.address, error) from None
        return content

    async def events(self, endpoint: Endpoint, body: bytes) -> AsyncGenerator[dict[str, Any], None]:
        """Send a streamed request and yield its events.

        Closing the iterator early cancels the request on the server.

        Args:
            endpoint: the endpoint.
            body: the request as JSON, with `stream`.

        Raises:
            ServerError: the request fails, or the stream fails or is cut off.
        """
        reader, has_ended = EventReader(), False
        try:
            async with self._request("POST", self.address.api(endpoint), data=body) as response:
                if response.status != 200 or response.content_type != "text/event-stream":
                    raise await self._error(response)
                while data := await response.content.readany():
                    for raw in reader.feed(data):
                        if raw == b"[DONE]":
                            has_ended = True
                            continue
                        event = self._event(raw, response)
                        has_ended |= any(choice.get("finish_reason") for choice in event.get("choices") or ())
                        yield event
        except (aiohttp.ClientError, TimeoutError) as error:
            raise connection_error(self.address, error) from None
        if not has_ended:
            raise connection_lost(self.address)

    async def with_model_hint(self, error: ServerError, model: str) -> ServerError:
        """Add a hint at the existing models to an error for an unknown model."""
        if error.status_code != 404:
            return error
        try:
            names = [card.id for card in await self.models()]
        except ServerError:
            return error
        return error if model in names else error.with_hint(model_hint(model, names))

    def _request(self, method: str, url: str, **options: Any) -> Any:
        return self._session.request(method, url, proxy=self._proxy, allow_redirects=False, **options)

    async def _json(self, response: aiohttp.ClientResponse) -> Any:
        if response.status != 200:
            raise await self._error(response)
        try:
            return json.loads(await response.read())
        except ValueError:
            raise not_openai(self.address, response.status, response.headers) from None

    async def _error(self, response: aiohttp.ClientResponse) -> ServerError:
        if response.status == 200:
            return not_openai(self.address, response.status, response.headers)
        body = await response.content.read(_MAX_ERROR_BYTES)
        return error_response(self.address, response.status, response.headers, body, self._key)

    def _event(self, raw: bytes, response: aiohttp.ClientResponse) -> dict[str, Any]:
        try:
            event: dict[str, Any] = json.loads(raw)
        except ValueError:
            raise not_openai(self.address, response.status, response.headers) from None
        choices = event.get("choices") or [] if isinstance(event, dict) else None
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise not_openai(self.address, response.status, response.headers)
        if event.get("error") or event.get("object") == "error":
            raise error_event(self.address, event)
        return event


def model_hint(name: str, names: list[str]) -> str:
    """A hint for an unknown model name: the most similar one, or the existing ones."""
    if similar := difflib.get_close_matches(name, names, n=1):
        return f"did you mean `{similar[0]}`?"
    shown = ", ".join(f"`{each}`" for each in names[:_MAX_NAMES])
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"models here: {shown or 'none'}{more}."
