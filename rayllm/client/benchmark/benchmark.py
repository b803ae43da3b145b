"""Prepare and run a load test of a server."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rayllm.client.api.errors import ServerError
from rayllm.client.api.request import RequestTemplate
from rayllm.client.api.server import Endpoint, Server
from rayllm.client.benchmark.dialect import Dialect, detect
from rayllm.client.benchmark.load import Load, RequestTrace, poisson_arrivals
from rayllm.client.benchmark.prompts import PromptGenerator
from rayllm.client.benchmark.token_counter import TokenCounter
from rayllm.client.prompt_file import Line


@dataclass(frozen=True)
class TokenRange:
    """A uniform distribution of numbers of tokens."""

    minimum: int
    maximum: int

    def draw(self, rng: random.Random) -> int:
        """Draw a number."""
        return rng.randint(self.minimum, self.maximum)

    def __str__(self) -> str:
        return str(self.minimum) if self.minimum == self.maximum else f"{self.minimum}:{self.maximum}"


@dataclass(frozen=True)
class LoadSpec:
    """Parameters of a load test."""

    endpoint: Endpoint
    requests: int
    concurrency: int | None
    """Requests in flight at once; None is no limit."""
    rate: float | None
    """Requests per second, as a Poisson process; None sends each as soon as `concurrency` allows."""
    prompt_tokens: TokenRange
    shared_prefix_tokens: int
    output_tokens: TokenRange | None
    """None lets the model end each completion."""
    dataset: Sequence[Line]
    """Prompts to use in turn; if empty, they are generated."""
    warmup: int
    seed: int


class Benchmark:
    """Load test of a server.

    Args:
        server: the server.
        model: the model.
        spec: parameters of the load.
        log: called with lines about the progress of the preparation.
        on_done: called after each measured request.
    """

    def __init__(
        self,
        server: Server,
        model: str,
        spec: LoadSpec,
        log: Callable[[str], None],
        on_done: Callable[[RequestTrace], None],
    ) -> None:
        self._server = server
        self.model = model
        self.spec = spec
        self._log = log
        self._on_done = on_done
        self._random = random.Random(spec.seed)
        self._template = RequestTemplate(spec.endpoint)
        self.load = Load(server, spec.endpoint, [], None)
        """The measured load; empty until it starts."""
        self.has_started = False
        self.are_counted = True
        """Whether the server counted each generated prompt, so that their lengths are exact."""

    async def run(self) -> None:
        """Prepare the load and run it.

        Raises:
            ServerError: a first request fails.
            ConfigError: prompts of these lengths cannot be generated.
        """
        spec = self.spec
        self._dialect = await self._detect_dialect()
        requests = await self._requests(spec.requests + spec.warmup)
        bodies = [json.dumps(self._body(request)).encode() for request in requests]
        if spec.warmup:
            await self._warm_up(bodies[spec.requests :])
        arrivals = None if spec.rate is None else poisson_arrivals(spec.requests, spec.rate, spec.seed)
        measured = bodies[: spec.requests]
        self.load = Load(self._server, spec.endpoint, measured, spec.concurrency, arrivals, self._on_done)
        self.has_started = True
        await self.load.run()

    async def _detect_dialect(self) -> Dialect:
        body = self._template.fill(self.model, {"prompt": "Hi", **self._exact_length(1)})
        try:
            dialect = await detect(self._server, self.spec.endpoint, body)
        except ServerError as error:
            raise await self._server.with_model_hint(error, self.model) from None
        if dialect.without:
            fields = ", ".join(dialect.without)
            self._log(f"the server refuses {fields}: completions may be shorter, or not be counted.")
        return dialect

    async def _requests(self, count: int) -> list[dict[str, Any]]:
        """The fields of each request that are its own."""
        if lines := self.spec.dataset:
            return [self._with_length(lines[index % len(lines)].request) for index in range(count)]
        sizes = [self.spec.prompt_tokens.draw(self._random) for _ in range(count)]
        counter = TokenCounter(self._server, self.spec.endpoint, self.model, self._dialect)
        self.are_counted = await counter.detect()
        self._log(f"generating {count} prompts…")
        generator = PromptGenerator(counter.count, self.are_counted, self.spec.seed)
        prompts = await generator.generate(sizes, self.spec.shared_prefix_tokens)
        return [self._with_length({"prompt": prompt}) for prompt in prompts]

    def _with_length(self, request: dict[str, Any]) -> dict[str, Any]:
        output_tokens = self.spec.output_tokens
        if output_tokens is None or not {"max_tokens", "max_completion_tokens"}.isdisjoint(request):
            return request
        return {**self._exact_length(output_tokens.draw(self._random)), **request}

    def _exact_length(self, tokens: int) -> dict[str, Any]:
        return {"max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True}

    def _body(self, request: dict[str, Any]) -> dict[str, Any]:
        return self._dialect.translate(self._template.fill(self.model, request))

    async def _warm_up(self, bodies: list[bytes]) -> None:
        self._log(f"warming up with {len(bodies)} requests…")
        load = Load(self._server, self.spec.endpoint, bodies, self.spec.concurrency)
        await load.run()
        if failed := sum(trace.failure is not None for trace in load.traces):
            self._log(f"{failed} of them failed.")

    def settings(self) -> dict[str, Any]:
        """The parameters as JSON."""
        spec = self.spec
        generated = {
            "prompt_tokens": str(spec.prompt_tokens),
            "prompt_tokens_are_counted": self.are_counted,
            "shared_prefix_tokens": spec.shared_prefix_tokens,
        }
        return {
            "model": self.model,
            "endpoint": spec.endpoint,
            "requests": spec.requests,
            "concurrency": spec.concurrency,
            "rate": spec.rate,
            **({"dataset_lines": len(spec.dataset)} if spec.dataset else generated),
            "output_tokens": str(spec.output_tokens) if spec.output_tokens else None,
            "warmup": spec.warmup,
            "seed": spec.seed,
        }
