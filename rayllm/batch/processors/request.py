"""Processor for rows that are OpenAI-style requests."""

from __future__ import annotations

import json
from typing import Any

from rayllm.batch.config import RequestProcessorConfig, pool_size
from rayllm.batch.execution.placement import EnginePlacement
from rayllm.batch.processors.builder import ProcessorBuilder
from rayllm.batch.processors.model import model_config
from rayllm.batch.processors.processor import Processor, client_options, engine_options
from rayllm.batch.rows import Row
from rayllm.batch.stages.examples import ANSWER
from rayllm.batch.stages.request import DeployedRequestStage, EngineRequestStage
from rayllm.batch.stages.stage import ActorStage

STAGE = "RequestStage"
_DEFAULT_MAX_PENDING = 64


class RequestProcessor(Processor[RequestProcessorConfig]):
    """Sends rows with `url`, such as `/v1/chat/completions`, and `body`; adds `status_code` and `response`."""

    name = "requests"
    takes = frozenset({"url", "body"})
    hidden = frozenset({"url", "body"})

    def __init__(self, config: RequestProcessorConfig, **kwargs: Any) -> None:
        super().__init__(config, **{**kwargs, "postprocess_fn": kwargs.get("postprocess_fn") or _with_text})
        self.results = {"status_code": 0, "response": ANSWER}
        self.append_stage(STAGE, self._deployed_stage() if self.config.app_name else self._engine_stage())
        self.arrange_before(STAGE, self.in_batches)

    def _engine_stage(self) -> ActorStage:
        config = self.config
        assert config.model is not None  # noqa: S101  (the configuration requires it without `app_name`)
        model = model_config(config.model, runtime_env=config.runtime_env, accelerator_type=config.accelerator_type)
        self.placement = EnginePlacement(model)
        return ActorStage(
            fn=EngineRequestStage,
            fn_constructor_kwargs={
                "model": model,
                "workers": self.placement.workers,
                "gpu_share": self.placement.gpu_share,
                "max_pending": config.max_pending_requests,
                "engines": pool_size(config.concurrency)[0],
                "caller": config.caller,
            },
            map_kwargs=engine_options(config, model, self.placement),
            max_deaths=config.max_engine_restarts,
        )

    def _deployed_stage(self) -> ActorStage:
        max_pending = self.config.max_pending_requests or _DEFAULT_MAX_PENDING
        return ActorStage(
            fn=DeployedRequestStage,
            fn_constructor_kwargs={
                "app_name": self.config.app_name,
                "max_pending": max_pending,
                "caller": self.config.caller,
            },
            map_kwargs=client_options(self.config, max_pending),
        )


def _with_text(row: Row) -> Row:
    """The default postprocess: all results, with the response as JSON, since responses have no type in common."""
    return {**row["_outputs"], "response": json.dumps(row["response"])}


@ProcessorBuilder.register(RequestProcessorConfig)
def build_request_processor(config: RequestProcessorConfig, **kwargs: Any) -> RequestProcessor:
    """Build the processor with its one stage."""
    return RequestProcessor(config, **kwargs)
