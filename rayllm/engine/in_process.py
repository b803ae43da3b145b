"""Requests to an engine in the same process, without HTTP, for batches.

Names, defaults, stops, constraints and adapters have the same meaning as online.
"""

import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from rayllm.config import ModelConfig
from rayllm.config.engine_arguments import request_fields
from rayllm.config.faults import did_you_mean
from rayllm.core.endpoints import COMPLETIONS
from rayllm.core.errors import RequestError
from rayllm.engine.adapters.pool import AdapterPool, adapter_plan, use_adapter
from rayllm.engine.middleware.deprecated_fields import DEPRECATED_FIELDS
from rayllm.engine.middleware.request_rewriting import rewrite_request, with_one_bos
from rayllm.engine.request_plan import RequestPlan
from rayllm.engine.vllm import generation
from rayllm.engine.vllm.generation import Prompt
from rayllm.lora import resolve_adapter

Body = dict[str, Any]

# Fields that do not concern sampling.
_NOT_SAMPLING = {"model", "prompt", "prompt_embeds", "stream", "stream_options", "echo", "suffix", "user", "request_id"}
# OpenAI's aliases of fields of vLLM's completions.
_ALIASES = {"max_completion_tokens": "max_tokens", "max_output_tokens": "max_tokens", "top_logprobs": "logprobs"}
_POOLING = ("dimensions", "use_activation")
_CACHED_REQUESTS = 256
# vLLM parses no request without a prompt; the real prompt is passed beside the request.
_PLACEHOLDER_PROMPT = [0]


@dataclass(eq=False)
class InProcessClient:
    """Generates and pools with one engine.

    Attributes:
        engine: vLLM's AsyncLLM.
        plan: the base model's request plan.
        admit: checks and prepares the constraints in a body; raises a RequestError.
        adapter_pool: None if the model takes no adapters.
    """

    engine: Any
    model: ModelConfig
    plan: RequestPlan
    admit: Callable[[Body], Awaitable[Body]]
    adapter_pool: AdapterPool | None

    def __post_init__(self) -> None:
        self._ids = count()
        # Most rows of a job have the same parameters. The plan's id is in the key, so the plan is kept, too.
        self._parsed: OrderedDict[str, tuple[Any, RequestPlan]] = OrderedDict()

    @property
    def max_concurrent(self) -> int:
        """The number of sequences that the engine processes at once, over all pipeline stages."""
        config = self.engine.vllm_config
        return int(config.scheduler_config.max_num_seqs * config.parallel_config.pipeline_parallel_size)

    async def generate(self, prompt: Prompt, sampling: Body, model: str | None, detokenize: bool) -> Any:
        """Generate for one prompt; returns vLLM's `RequestOutput`.

        Args:
            sampling: fields of a completion request, such as `guided_choice`.
            model: name of the model or of an adapter; None for the model.
            detokenize: if false, the answer has a text only for a stop text.

        Raises:
            RequestError: a field or the prompt is invalid.
            ModelNotFoundError: the adapter does not exist.
            EngineError: the engine died.
        """
        async with self._using(model) as lora:
            request = await self._request(sampling)
            return await generation.generate(self.engine, self._with_bos(prompt), request, self._id(), lora, detokenize)

    async def pool(self, task: str, prompt: Prompt, pooling: Body, model: str | None) -> tuple[list[float], int]:
        """Pool one prompt; returns a vector or probabilities, and the number of prompt tokens.

        Args:
            task: `embed` or `classify`.
            pooling: `dimensions` or `use_activation`.
            model: as for `generate`.

        Raises:
            RequestError, ModelNotFoundError, EngineError: as `generate`.
        """
        for name in pooling.keys() - set(_POOLING):
            hint = did_you_mean(name, _POOLING) or f"; use {' or '.join(_POOLING)}."
            raise RequestError(f"`pooling_params.{name}` is not a supported parameter{hint}", "pooling_params")
        async with self._using(model) as lora:
            return await generation.pool(self.engine, self._with_bos(prompt), task, pooling, self._id(), lora)

    def labels(self) -> dict[int, str]:
        """The names of the model's classes by index; empty for other models."""
        named = getattr(self.engine.model_config.hf_config, "id2label", None) or {}
        return {int(index): str(label) for index, label in named.items()}

    @asynccontextmanager
    async def _using(self, model: str | None) -> AsyncIterator[Any]:
        adapter = resolve_adapter(self.model, model)
        if adapter is None:
            yield None
            return
        assert self.adapter_pool is not None  # noqa: S101  (it has a `lora_config`)
        async with use_adapter(self.adapter_pool, adapter, str(adapter)) as loaded:
            yield loaded.lora_request

    def _with_bos(self, prompt: Prompt) -> Prompt:
        """The prompt with exactly one BOS, unless a chat template has rendered it."""
        if prompt.token_ids is not None or prompt.is_rendered:
            return prompt
        return replace(prompt, text=with_one_bos(prompt.text, adapter_plan() or self.plan))

    async def _request(self, sampling: Body) -> Any:
        plan = adapter_plan() or self.plan
        key = json.dumps([sampling, id(plan)], sort_keys=True, default=str)
        if (cached := self._parsed.get(key)) is None:
            cached = self._parsed[key] = await self._parse(sampling, plan), plan
            if len(self._parsed) > _CACHED_REQUESTS:
                self._parsed.popitem(last=False)
        return cached[0]

    async def _parse(self, sampling: Body, plan: RequestPlan) -> Any:
        body = _normalize(sampling)
        rewritten = await self.admit(rewrite_request(COMPLETIONS, {"prompt": _PLACEHOLDER_PROMPT, **body}, plan))
        return generation.completion_request(rewritten)

    def _id(self) -> str:
        return f"row-{next(self._ids)}"


def _normalize(sampling: Body) -> Body:
    supported = request_fields(COMPLETIONS) - _NOT_SAMPLING | DEPRECATED_FIELDS | _ALIASES.keys()
    body: Body = {}
    for name, value in sampling.items():
        if name not in supported:
            hint = did_you_mean(name, supported) or "; docs/batch.md lists them."
            raise RequestError(f"`sampling_params.{name}` is not a supported parameter{hint}", "sampling_params")
        if value is not None:
            body[_ALIASES.get(name, name)] = value
    if body.get("logprobs") is True:
        # As in chat: `top_logprobs` alternatives to the chosen token.
        body["logprobs"] = sampling.get("top_logprobs") or 0
    elif body.get("logprobs") is False:
        del body["logprobs"]
    return body
