"""Prompts have the tokens that were wished for, as the server counts them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import takewhile

import pytest

from rayllm.client.api.address import Address
from rayllm.client.api.server import CHAT, COMPLETIONS, Endpoint, Server
from rayllm.client.benchmark.dialect import Dialect
from rayllm.client.benchmark.prompts import PromptGenerator
from rayllm.client.benchmark.token_counter import TokenCounter
from rayllm.errors import ConfigError
from tests.servers.openai import AROUND, OpenAIServer


@pytest.fixture
async def server(served: OpenAIServer) -> AsyncIterator[Server]:
    async with Server(Address.parse(served.url)) as opened:
        yield opened


async def counter(server: Server, endpoint: Endpoint = CHAT) -> tuple[TokenCounter, bool]:
    made = TokenCounter(server, endpoint, "small", Dialect(limit="max_completion_tokens"))
    return made, await made.detect()


async def prompts(server: Server, sizes: list[int], shared: int = 0, endpoint: Endpoint = CHAT) -> list[str]:
    counting, is_exact = await counter(server, endpoint)
    return await PromptGenerator(counting.count, is_exact, 7).generate(sizes, shared)


@pytest.mark.parametrize(("endpoint", "around"), [(CHAT, AROUND), (COMPLETIONS, 0)])
async def test_prompts_have_the_tokens_that_are_wished(server: Server, endpoint: Endpoint, around: int) -> None:
    sizes = [around + 1, around + 2, 50, 333, 1000]
    written = await prompts(server, sizes, endpoint=endpoint)
    counting, is_exact = await counter(server, endpoint)
    assert is_exact
    assert [await counting.count(prompt) for prompt in written] == sizes


async def test_a_shared_beginning_is_in_all_and_the_rest_in_one(server: Server) -> None:
    written = await prompts(server, [200] * 6, shared=80)
    columns = zip(*(prompt.split() for prompt in written), strict=False)
    shared = " ".join(words[0] for words in takewhile(lambda words: len(set(words)) == 1, columns))
    counting, _ = await counter(server)
    # By chance, the words after it may begin alike.
    assert 80 <= await counting.count(shared) - AROUND <= 84
    assert {await counting.count(prompt) for prompt in written} == {200}
    assert len(set(written)) == 6


async def test_the_seed_decides_the_words(server: Server) -> None:
    assert await prompts(server, [60, 70], 10) == await prompts(server, [60, 70], 10)


async def test_without_tokenize_the_length_is_by_proportion(served: OpenAIServer, server: Server) -> None:
    served.has_tokenize = False
    counting, is_exact = await counter(server)
    assert not is_exact
    written = await PromptGenerator(counting.count, is_exact, 7).generate([1000] * 3)
    probes = len(served.asked)
    assert probes == 2
    assert all(body["max_completion_tokens"] == 1 for body in served.asked)
    counts = [await counting.count(prompt) for prompt in written]
    assert all(abs(count - 1000) < 50 for count in counts)


@pytest.mark.parametrize(
    ("sizes", "shared", "expected"),
    [
        ([100, 7], 0, "7 are the chat template's, so the minimum is 8"),
        ([100], 95, "and 95 are shared, so the minimum is 103"),
    ],
)
async def test_prompts_that_cannot_be_are_refused(server: Server, sizes: list[int], shared: int, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        await prompts(server, sizes, shared)


async def test_a_server_that_does_not_count_makes_no_prompts() -> None:
    async def count(prompt: str) -> int:
        return 5

    with pytest.raises(ConfigError, match="counts no more tokens for longer prompts"):
        await PromptGenerator(count, True, 0).generate([100])
