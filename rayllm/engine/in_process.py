"""Calls of an engine without HTTP: a prompt in, tokens or a vector out.

What a request means is what it means online: the same names, defaults, stops, constraints and adapters.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any

from rayllm.config import ModelConfig
from rayllm.config.engine_arguments import request_fields
from rayllm.config.faults import did_you_mean
from rayllm.endpoints import COMPLETIONS
from rayllm.engine.adapters.pool import AdapterPool
from rayllm.engine.middleware.adapter_loading import adapters_plan, use_adapter
from rayllm.engine.middleware.deprecated_fields import OLD_NAMES
from rayllm.engine.middleware.request_rewriting import shape, with_one_bos
from rayllm.engine.prompt import Prompt
from rayllm.engine.request_plan import RequestPlan
from rayllm.engine.vllm import generation
from rayllm.errors import RequestError
from rayllm.lora import adapter_of

Body = dict[str, Any]

# Fields of a request that say what is answered or how it is sent, instead of how tokens are chosen.
_NOT_SAMPLING = {"model", "prompt", "prompt_embeds", "stream", "stream_options", "echo", "suffix", "user", "request_id"}
# OpenAI's other names of fields that vLLM's completions take.
_ALSO = {"max_completion_tokens": "max_tokens", "max_output_tokens": "max_tokens", "top_logprobs": "logprobs"}
_POOLING = ("dimensions", "use_activation")
_REMEMBERED = 256
# vLLM reads no request without a prompt; the real one goes to the engine beside it.
_ANY_TOKEN = [0]


class InProcessClient:
    """The calls.

    Args:
        engine: vLLM's AsyncLLM.
        model: the model.
        plan: what the configuration means for a request.
        admit: refuses constraints that the engine should not see.
        adapter_pool: the adapters in the engine; None where it takes none.
    """

    def __init__(
        self,
        engine: Any,
        model: ModelConfig,
        plan: RequestPlan,
        admit: Callable[[Body], Awaitable[Body]],
        adapter_pool: AdapterPool | None,
    ) -> None:
        self._engine = engine
        self._model = model
        self._plan = plan
        self._admit = admit
        self._adapter_pool = adapter_pool
        self._ids = count()
        # Most rows of a job ask for the same: request → parsed request, and the plan whose id is in the key.
        self._parsed: OrderedDict[str, tuple[Any, RequestPlan]] = OrderedDict()

    @property
    def max_concurrent(self) -> int:
        """Requests that the engine works on at once."""
        return generation.max_num_seqs(self._engine)

    async def generate(self, prompt: Prompt, sampling: Body, model: str | None, detokenize: bool) -> Any:
        """vLLM's `RequestOutput` for one prompt.

        Args:
            prompt: what the model reads.
            sampling: fields of a completion request, such as `temperature` or `guided_choice`.
            model: the model's name or an adapter's; None is the model.
            detokenize: whether the engine writes the text; it does in any case where a stop is a text.

        Raises:
            RequestError: a field or the prompt is wrong.
            ModelNotFoundError: there is no such adapter.
            EngineError: the engine died.
        """
        async with self._using(model) as lora:
            request = await self._request(sampling)
            return await generation.generate(self._engine, self._seen(prompt), request, self._id(), lora, detokenize)

    async def pool(self, task: str, prompt: Prompt, pooling: Body, model: str | None) -> tuple[list[float], int]:
        """What the model's pooler gives for one prompt: a vector or probabilities, and the number of prompt tokens.

        Args:
            task: `embed` or `classify`.
            prompt: what the model reads.
            pooling: `dimensions` or `use_activation`.
            model: as for `generate`.

        Raises:
            RequestError, ModelNotFoundError, EngineError: as `generate`.
        """
        for name in pooling.keys() - set(_POOLING):
            known = did_you_mean(name, _POOLING) or f"; known are {', '.join(_POOLING)}."
            raise RequestError(f"`pooling_params.{name}` means nothing here{known}", "pooling_params")
        async with self._using(model) as lora:
            return await generation.pool(self._engine, self._seen(prompt), task, pooling, self._id(), lora)

    def labels(self) -> dict[int, str]:
        """Names of the classes by index, where the model has any."""
        return generation.labels(self._engine)

    @asynccontextmanager
    async def _using(self, model: str | None) -> AsyncIterator[Any]:
        adapter = adapter_of(self._model, model)
        if adapter is None:
            yield None
            return
        assert self._adapter_pool is not None  # noqa: S101  (it has a `lora_config`)
        async with use_adapter(self._adapter_pool, adapter, None, str(adapter)) as pooled:
            yield pooled.loaded

    def _seen(self, prompt: Prompt) -> Prompt:
        """`prompt` with exactly one BOS, where the engine makes tokens of a text that no template wrote."""
        if prompt.token_ids is not None or prompt.is_rendered:
            return prompt
        return replace(prompt, text=with_one_bos(prompt.text, adapters_plan() or self._plan))

    async def _request(self, sampling: Body) -> Any:
        plan = adapters_plan() or self._plan
        key = json.dumps([sampling, id(plan)], sort_keys=True, default=str)
        if (known := self._parsed.get(key)) is None:
            known = self._parsed[key] = await self._parse(sampling, plan), plan
            if len(self._parsed) > _REMEMBERED:
                self._parsed.popitem(last=False)
        return known[0]

    async def _parse(self, sampling: Body, plan: RequestPlan) -> Any:
        body = _todays(sampling)
        shaped = await self._admit(shape(COMPLETIONS, {"prompt": _ANY_TOKEN, **body}, plan))
        return generation.completion_request(shaped)

    def _id(self) -> str:
        return f"row-{next(self._ids)}"


def _todays(sampling: Body) -> Body:
    """Sampling values by the names of completions; unknown ones are refused."""
    known = request_fields(COMPLETIONS) - _NOT_SAMPLING | OLD_NAMES | _ALSO.keys()
    body: Body = {}
    for name, value in sampling.items():
        if name not in known:
            hint = did_you_mean(name, known) or "; docs/batch.md lists what may stand there."
            raise RequestError(f"`sampling_params.{name}` means nothing here{hint}", "sampling_params")
        if value is not None:
            body[_ALSO.get(name, name)] = value
    if body.get("logprobs") is True:
        # As in chat: so many beside the chosen one as `top_logprobs` says.
        body["logprobs"] = sampling.get("top_logprobs") or 0
    elif body.get("logprobs") is False:
        del body["logprobs"]
    return body
