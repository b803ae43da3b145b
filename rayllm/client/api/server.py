"""An OpenAI-compatible server."""

from __future__ import annotations

import difflib
import json
from collections.abc import AsyncGenerator, Mapping
from types import TracebackType
from typing import Any, Literal, Self

import aiohttp

from rayllm.client.api.address import Address
from rayllm.client.api.api_key import ApiKey
from rayllm.client.api.error_responses import broken, failed_stream, foreign, refusal, unreachable
from rayllm.client.api.errors import ServerError
from rayllm.client.api.model_card import ModelCard
from rayllm.client.api.sse import EventReader

Endpoint = Literal["chat/completions", "completions"]
CHAT: Endpoint = "chat/completions"
COMPLETIONS: Endpoint = "completions"

_CONNECT_S = 10.0
_LIST_S = 30.0
# Shorter than servers keep idle connections (Uvicorn 5 s), so that none is used that is being closed.
_KEEP_S = 3.0
_LONGEST_ERROR = 65536
_SHOWN = 10


class Server:
    """A context manager around the connections to a server.

    Args:
        address: where it is.
        key: what it is shown.
    """

    def __init__(self, address: Address, key: ApiKey | None = None) -> None:
        self.address = address
        self._key = key or ApiKey()
        self._proxy = address.proxy

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_S),
            # Compressed streams come in lumps.
            headers={"accept-encoding": "identity", "content-type": "application/json", **self._key.headers()},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self._session.close()

    async def models(self) -> list[ModelCard]:
        """The models and adapters that it lists.

        Raises:
            ServerError: it does not answer, or not as OpenAI's API says.
        """
        timeout = aiohttp.ClientTimeout(total=_LIST_S, sock_connect=_CONNECT_S)
        try:
            async with self._request("GET", self.address.api("models"), timeout=timeout) as response:
                listed = await self._json(response)
                if not isinstance(listed, dict) or not isinstance(listed.get("data"), list):
                    raise foreign(self.address, response.status, response.headers)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise unreachable(self.address, error) from None
        return [card for given in listed["data"] if (card := ModelCard.read(given))]

    async def ask(self, url: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request to a URL of this server, and return the object that comes back.

        Raises:
            ServerError: it refuses, or does not answer with an object.
        """
        try:
            async with self._request("POST", url, data=json.dumps(body).encode()) as response:
                answer = await self._json(response)
                if not isinstance(answer, dict):
                    raise foreign(self.address, response.status, response.headers)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise unreachable(self.address, error) from None
        return answer

    async def events(self, endpoint: Endpoint, body: bytes) -> AsyncGenerator[dict[str, Any], None]:
        """Send a request for a stream, and give its events as they come.

        Who stops before the end ends the server's work; the iterator has to be closed then.

        Args:
            endpoint: which one is asked.
            body: the request as JSON, with `stream` in it.

        Raises:
            ServerError: the server refuses, fails within the answer, or breaks it off.
        """
        reader, has_ended = EventReader(), False
        try:
            async with self._request("POST", self.address.api(endpoint), data=body) as response:
                if response.status != 200 or response.content_type != "text/event-stream":
                    raise await self._refusal(response)
                while data := await response.content.readany():
                    for raw in reader.feed(data):
                        if raw == b"[DONE]":
                            has_ended = True
                            continue
                        event = self._event(raw, response)
                        has_ended |= any(choice.get("finish_reason") for choice in event.get("choices") or ())
                        yield event
        except (aiohttp.ClientError, TimeoutError) as error:
            raise unreachable(self.address, error) from None
        if not has_ended:
            raise broken(self.address)

    async def explained(self, error: ServerError, model: str) -> ServerError:
        """An error with the models that there are, where it says that there is no such model."""
        if error.answered != 404:
            return error
        try:
            names = [card.id for card in await self.models()]
        except ServerError:
            return error
        return error if model in names else error.with_hint(named_instead(model, names))

    def _request(self, method: str, url: str, **how: Any) -> Any:
        return self._session.request(method, url, proxy=self._proxy, allow_redirects=False, **how)

    async def _json(self, response: aiohttp.ClientResponse) -> Any:
        if response.status != 200:
            raise await self._refusal(response)
        try:
            return json.loads(await response.read())
        except ValueError:
            raise foreign(self.address, response.status, response.headers) from None

    async def _refusal(self, response: aiohttp.ClientResponse) -> ServerError:
        if response.status == 200:
            return foreign(self.address, response.status, response.headers)
        body = await response.content.read(_LONGEST_ERROR)
        return refusal(self.address, response.status, response.headers, body, self._key)

    def _event(self, raw: bytes, response: aiohttp.ClientResponse) -> dict[str, Any]:
        try:
            event: dict[str, Any] = json.loads(raw)
        except ValueError:
            raise foreign(self.address, response.status, response.headers) from None
        choices = event.get("choices") or [] if isinstance(event, dict) else None
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise foreign(self.address, response.status, response.headers)
        if event.get("error") or event.get("object") == "error":
            raise failed_stream(self.address, event)
        return event


def named_instead(name: str, names: list[str]) -> str:
    """What to say of models to one who named one that there is not."""
    if close := difflib.get_close_matches(name, names, n=1):
        return f"did you mean `{close[0]}`?"
    shown = ", ".join(f"`{each}`" for each in names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"models here: {shown or 'none'}{more}."
