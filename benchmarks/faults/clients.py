"""Clients: each asks one question after another through OpenAI's own client, and judges the answers."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import httpx2
import openai

from benchmarks.faults.answers import QUESTIONS, Answer, Ending, Question, StreamedAnswer, compare, whole_answer
from benchmarks.faults.application import Address
from benchmarks.faults.tally import Tally

# One request of so many is not streamed.
_WHOLE = 4
_LONGEST_S = 120.0
# A server that is not there refuses at once: asking again without a pause would only count that.
_AFTER_FAILURE_S = 0.1


def openai_client(address: Address, keeps_connections: bool = True) -> openai.AsyncOpenAI:
    """OpenAI's client, which asks everything once, so that what is seen is what was answered."""
    limits = httpx2.Limits(max_keepalive_connections=None if keeps_connections else 0)
    http = openai.DefaultAsyncHttpxClient(limits=limits, trust_env=False)
    return openai.AsyncOpenAI(
        base_url=f"{address.url}/v1", api_key=address.key, max_retries=0, timeout=_LONGEST_S, http_client=http
    )


async def right_answers(address: Address) -> dict[Question, Answer]:
    """What the application answers while nothing is at fault.

    Raises:
        RuntimeError: an answer is another one the second time.
    """
    async with openai_client(address) as client:
        first, again = [await asyncio.gather(*(_whole(client, question) for question in QUESTIONS)) for _ in range(2)]
    if first != again:
        raise RuntimeError(f"the same questions have other answers the second time: {first} and {again}")
    return dict(zip(QUESTIONS, first, strict=True))


async def _whole(client: openai.AsyncOpenAI, question: Question) -> Answer:
    answer = await client.chat.completions.create(**question.body())
    return whole_answer(answer.model_dump())


class Client:
    """Asks until told to stop.

    Args:
        address: the service's.
        right: the right answer to each question.
        tally: takes in how each request ended.
        number: of the client; one of four opens a connection for every request.
        pause_s: seconds between two questions.
    """

    def __init__(
        self,
        address: Address,
        right: Mapping[Question, Answer],
        tally: Callable[[], Tally],
        number: int,
        pause_s: float,
    ) -> None:
        self._client = openai_client(address, keeps_connections=number % 4 != 0)
        self._questions = list(right.items())
        self._tally = tally
        self._turns = itertools.count(number)
        self._pause_s = pause_s
        self._is_stopped = False

    def stop(self) -> None:
        """Ask no more."""
        self._is_stopped = True

    async def run(self) -> None:
        """Ask until told to stop."""
        async with self._client:
            while not self._is_stopped:
                await self._ask(next(self._turns))
                await asyncio.sleep(self._pause_s)

    async def _ask(self, turn: int) -> None:
        question, right = self._questions[turn % len(self._questions)]
        streamed, begun_at = StreamedAnswer(), float("inf")
        try:
            if turn // len(self._questions) % _WHOLE == 0:
                ending, reason = compare(await _whole(self._client, question), right)
            else:
                async with self._lines(question) as lines:
                    begun_at = time.monotonic()
                    async for line in lines:
                        streamed.take(line)
                ending, reason = streamed.ending(right)
        except openai.APIStatusError as error:
            ending, reason = Ending.REFUSED, f"{error.status_code} {error.response.text[:200]}"
        except (openai.APIConnectionError, httpx2.HTTPError) as error:
            ending, reason = streamed.ending(right) if begun_at < float("inf") else (Ending.LOST, repr(error.__cause__))
        self._tally().add(ending, reason, begun_at)
        if ending is not Ending.RIGHT:
            await asyncio.sleep(_AFTER_FAILURE_S)

    @asynccontextmanager
    async def _lines(self, question: Question) -> AsyncIterator[AsyncIterator[str]]:
        """The lines of a streamed reply, as they are: the client's own stream does not tell whether it had an end."""
        streamed = self._client.chat.completions.with_streaming_response
        options = {"stream": True, "stream_options": {"include_usage": True}}
        async with streamed.create(**question.body(), **options) as reply:
            yield reply.iter_lines()
