"""Count a prompt's tokens with the server's tokenizer."""

from __future__ import annotations

from rayllm.client.api.errors import ServerError
from rayllm.client.api.server import CHAT, Endpoint, Server
from rayllm.client.benchmark.dialect import Dialect


class TokenCounter:
    """Counts the tokens of prompts, including those of the chat template.

    Args:
        server: the server.
        endpoint: the endpoint that the prompts are for.
        model: the model that the prompts are for.
        dialect: the server's dialect.
    """

    def __init__(self, server: Server, endpoint: Endpoint, model: str, dialect: Dialect) -> None:
        self._server = server
        self._endpoint = endpoint
        self._model = model
        self._dialect = dialect

    async def detect(self) -> bool:
        """Whether the server has vLLM's `/tokenize`; else each count takes a request for one token."""
        try:
            self._has_tokenize = True
            await self.count("Hi")
        except ServerError:
            self._has_tokenize = False
        return self._has_tokenize

    async def count(self, prompt: str) -> int:
        """Count the tokens of a prompt.

        Raises:
            ServerError: the request fails, or the response has no count.
        """
        is_chat = self._endpoint == CHAT
        content = {"messages": [{"role": "user", "content": prompt}]} if is_chat else {"prompt": prompt}
        body = {"model": self._model, **content}
        try:
            if self._has_tokenize:
                return int((await self._server.post(f"{self._server.address}/tokenize", body))["count"])
            response = await self._server.post(
                self._server.address.api(self._endpoint), self._dialect.translate({**body, "max_tokens": 1})
            )
            return int(response["usage"]["prompt_tokens"])
        except (KeyError, TypeError, ValueError):
            raise ServerError(f"{self._server.address} does not count the tokens of prompts.", "no count") from None
