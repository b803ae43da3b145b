"""A benchmark of a server: what is prepared before its load, and the load."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rayllm.client.api.errors import ServerError
from rayllm.client.api.request import RequestTemplate
from rayllm.client.api.server import Endpoint, Server
from rayllm.client.benchmark.dialect import Dialect, learn
from rayllm.client.benchmark.load import Load, RequestTrace, poisson_arrivals
from rayllm.client.benchmark.prompts import PromptGenerator
from rayllm.client.benchmark.token_counter import TokenCounter
from rayllm.client.prompt_file import Line


@dataclass(frozen=True)
class TokenRange:
    """Numbers of tokens, of which each is as likely."""

    least: int
    most: int

    def draw(self, chance: random.Random) -> int:
        """One of them."""
        return chance.randint(self.least, self.most)

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least}:{self.most}"


@dataclass(frozen=True)
class LoadSpec:
    """The load that is wished for."""

    endpoint: Endpoint
    requests: int
    concurrency: int | None
    """Requests under way at once; None is no limit."""
    rate: float | None
    """Requests a second, at the times of a Poisson process; None sends each as soon as there is room."""
    prompt_tokens: TokenRange
    shared_prefix_tokens: int
    output_tokens: TokenRange | None
    """None leaves the end of each answer to the model."""
    dataset: Sequence[Line]
    """Prompts to take in turn; where there are none, they are made up."""
    warmup: int
    seed: int


class Benchmark:
    """Runs a load against a server.

    Args:
        server: that is measured.
        model: that is asked.
        wish: the load.
        tell: gets a line of what is going on, for a person.
        on_done: called after each request of the load.
    """

    def __init__(
        self,
        server: Server,
        model: str,
        wish: LoadSpec,
        tell: Callable[[str], None],
        on_done: Callable[[RequestTrace], None],
    ) -> None:
        self._server = server
        self.model = model
        self.wish = wish
        self._tell = tell
        self._on_done = on_done
        self._chance = random.Random(wish.seed)
        self._form = RequestTemplate(wish.endpoint)
        self.load = Load(server, wish.endpoint, [], None)
        """The load that counts; an empty one until it begins."""
        self.has_begun = False
        self.are_counted = True
        """The server counted each prompt that was made up, which then has the tokens that it should have."""

    async def run(self) -> None:
        """Prepare the load and run it.

        Raises:
            ServerError: the server does not answer a first request.
            ConfigError: the prompts cannot be made as they are wished for.
        """
        wish = self.wish
        self._dialect = await self._learn()
        givens = await self._givens(wish.requests + wish.warmup)
        bodies = [json.dumps(self._body(given)).encode() for given in givens]
        if wish.warmup:
            await self._warm_up(bodies[wish.requests :])
        arrivals = None if wish.rate is None else poisson_arrivals(wish.requests, wish.rate, wish.seed)
        measured = bodies[: wish.requests]
        self.load = Load(self._server, wish.endpoint, measured, wish.concurrency, arrivals, self._on_done)
        self.has_begun = True
        await self.load.run()

    async def _learn(self) -> Dialect:
        body = self._form.fill(self.model, {"prompt": "Hi", **self._length(1)})
        try:
            dialect = await learn(self._server, self.wish.endpoint, body)
        except ServerError as error:
            raise await self._server.explained(error, self.model) from None
        if dialect.without:
            self._tell(f"the server refuses {', '.join(dialect.without)}: answers may be shorter, or not be counted.")
        return dialect

    async def _givens(self, count: int) -> list[dict[str, Any]]:
        """What is particular to each request."""
        if lines := self.wish.dataset:
            return [self._lengthened(lines[index % len(lines)].request) for index in range(count)]
        sizes = [self.wish.prompt_tokens.draw(self._chance) for _ in range(count)]
        counter = TokenCounter(self._server, self.wish.endpoint, self.model, self._dialect)
        self.are_counted = await counter.find_out()
        self._tell(f"making {count} prompts…")
        prompter = PromptGenerator(counter.count, self.are_counted, self.wish.seed)
        prompts = await prompter.write(sizes, self.wish.shared_prefix_tokens)
        return [self._lengthened({"prompt": prompt}) for prompt in prompts]

    def _lengthened(self, given: dict[str, Any]) -> dict[str, Any]:
        wished = self.wish.output_tokens
        has_own = not {"max_tokens", "max_completion_tokens"}.isdisjoint(given)
        return {**self._length(wished.draw(self._chance)), **given} if wished and not has_own else given

    def _length(self, tokens: int) -> dict[str, Any]:
        """Fields for an answer of exactly so many tokens."""
        return {"max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True}

    def _body(self, given: dict[str, Any]) -> dict[str, Any]:
        return self._dialect.say(self._form.fill(self.model, given))

    async def _warm_up(self, bodies: list[bytes]) -> None:
        self._tell(f"warming up with {len(bodies)} requests…")
        load = Load(self._server, self.wish.endpoint, bodies, self.wish.concurrency)
        await load.run()
        if failed := sum(seen.failure is not None for seen in load.seen):
            self._tell(f"{failed} of them failed.")

    def settings(self) -> dict[str, Any]:
        """What was measured, as JSON knows it."""
        wish = self.wish
        made_up = {
            "prompt_tokens": str(wish.prompt_tokens),
            "prompt_tokens_are_counted": self.are_counted,
            "shared_prefix_tokens": wish.shared_prefix_tokens,
        }
        return {
            "model": self.model,
            "endpoint": wish.endpoint,
            "requests": wish.requests,
            "concurrency": wish.concurrency,
            "rate": wish.rate,
            **({"dataset_lines": len(wish.dataset)} if wish.dataset else made_up),
            "output_tokens": str(wish.output_tokens) if wish.output_tokens else None,
            "warmup": wish.warmup,
            "seed": wish.seed,
        }
