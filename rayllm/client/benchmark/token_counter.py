"""How many tokens a server makes of a prompt."""

from __future__ import annotations

from rayllm.client.api.errors import ServerError
from rayllm.client.api.server import CHAT, Endpoint, Server
from rayllm.client.benchmark.dialect import Dialect


class TokenCounter:
    """Counts the tokens of prompts as the server does, with all that it puts around them.

    Args:
        server: that is asked.
        endpoint: that the prompts are for.
        model: that they are for.
        dialect: of the server.
    """

    def __init__(self, server: Server, endpoint: Endpoint, model: str, dialect: Dialect) -> None:
        self._server = server
        self._endpoint = endpoint
        self._model = model
        self._dialect = dialect

    async def find_out(self) -> bool:
        """Whether the server has vLLM's `/tokenize`; else each count has it answer, if with one token only."""
        try:
            self._has_tokenize = True
            await self.count("Hi")
        except ServerError:
            self._has_tokenize = False
        return self._has_tokenize

    async def count(self, prompt: str) -> int:
        """The tokens of a prompt.

        Raises:
            ServerError: the server does not tell.
        """
        is_chat = self._endpoint == CHAT
        asked = {"messages": [{"role": "user", "content": prompt}]} if is_chat else {"prompt": prompt}
        body = {"model": self._model, **asked}
        try:
            if self._has_tokenize:
                return int((await self._server.ask(f"{self._server.address}/tokenize", body))["count"])
            answer = await self._server.ask(
                self._server.address.api(self._endpoint), self._dialect.say({**body, "max_tokens": 1})
            )
            return int(answer["usage"]["prompt_tokens"])
        except (KeyError, TypeError, ValueError):
            raise ServerError(f"{self._server.address} does not tell the tokens of a prompt.", "no count") from None
