"""What a server refuses is left out, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from rayllm.client.api.address import Address
from rayllm.client.api.errors import ServerError
from rayllm.client.api.server import CHAT, Server
from rayllm.client.benchmark.dialect import Dialect, detect
from tests.servers.openai import OpenAIServer, Script

BODY: dict[str, Any] = {
    "model": "small",
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": 1,
    "min_tokens": 1,
    "ignore_eos": True,
    "stream": True,
    "stream_options": {"include_usage": True},
}


async def learned(served: OpenAIServer) -> Dialect:
    async with Server(Address.parse(served.url)) as server:
        return await detect(server, CHAT, BODY)


async def test_a_server_that_takes_all_is_sent_all(served: OpenAIServer) -> None:
    assert (await learned(served)).translate(BODY) == BODY
    assert served.asked == [BODY]


async def test_fields_that_are_refused_are_left_out(served: OpenAIServer) -> None:
    served.refuses = ("ignore_eos", "min_tokens")
    dialect = await learned(served)
    assert set(dialect.without) == set(served.refuses)
    assert dialect.translate(BODY) == {name: value for name, value in BODY.items() if name not in served.refuses}


async def test_a_server_may_want_the_new_name_of_the_limit(served: OpenAIServer) -> None:
    message = "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead."
    served.script(Script(400, {"error": {"message": message, "param": "max_tokens"}}))
    body = (await learned(served)).translate(BODY)
    assert (body["max_completion_tokens"], "max_tokens" in body) == (1, False)


@pytest.mark.parametrize("status", [400, 500])
async def test_other_refusals_are_the_servers_word(served: OpenAIServer, status: int) -> None:
    served.script(Script(status, {"error": {"message": "The prompt is bad."}}))
    with pytest.raises(ServerError, match="The prompt is bad"):
        await learned(served)
    assert len(served.asked) == 1
