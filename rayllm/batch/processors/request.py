"""Processors of requests in OpenAI's form."""

from __future__ import annotations

from typing import Any

from ray.data import Dataset

from rayllm.batch.config import RequestProcessorConfig
from rayllm.batch.execution.placement import EnginePlace
from rayllm.batch.processors.builder import ProcessorBuilder
from rayllm.batch.processors.model import model_config
from rayllm.batch.processors.processor import Processor
from rayllm.batch.processors.vllm import engine_options
from rayllm.batch.stages.request import DeployedRequestStage, EngineRequestStage
from rayllm.batch.stages.stage import ActorStage

STAGE = "RequestStage"
_WINDOW = 64


class RequestProcessor(Processor[RequestProcessorConfig]):
    """Takes rows with `url`, such as `/v1/chat/completions`, and `body`; gives `status_code` and `response`."""

    name = "requests"
    takes = frozenset({"url", "body"})
    hidden = frozenset({"url", "body"})

    def __init__(self, config: RequestProcessorConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self.place: EnginePlace | None = None
        stage = self._deployed() if self.config.app_name else self._own_engine()
        self.append_stage(STAGE, stage)
        size = self.config.batch_size
        self.arrange_before(STAGE, lambda dataset: dataset.repartition(target_num_rows_per_block=size))

    def __call__(self, dataset: Dataset) -> Dataset:
        if self.place is not None:
            self.place.check()
        return super().__call__(dataset)

    def leave(self) -> None:
        if self.place is not None:
            self.place.leave()

    def _own_engine(self) -> ActorStage:
        config = self.config
        assert config.model is not None  # noqa: S101  (told by the configuration)
        model = model_config(config.model, runtime_env=config.runtime_env, accelerator_type=config.accelerator_type)
        self.place = EnginePlace(model)
        made = {
            "model": model,
            "workers": self.place.workers,
            "gpu_share": self.place.gpu_share,
            "max_pending": config.max_pending_requests,
        }
        options = engine_options(config, model, self.place)
        return ActorStage(
            fn=EngineRequestStage,
            fn_constructor_kwargs=made,
            map_kwargs=options,
            max_deaths=config.max_engine_restarts,
        )

    def _deployed(self) -> ActorStage:
        config = self.config
        window = config.max_pending_requests or _WINDOW
        made = {"app_name": config.app_name, "max_pending": window}
        options = {
            "concurrency": config.concurrency,
            "batch_size": config.batch_size,
            "max_concurrency": 2 * -(-window // config.batch_size) + 2,
            # It waits for others nearly all the time; any share of a CPU could be the one that a task lacks.
            "num_cpus": 0,
        }
        return ActorStage(fn=DeployedRequestStage, fn_constructor_kwargs=made, map_kwargs=options)


@ProcessorBuilder.register(RequestProcessorConfig)
def build_request_processor(config: RequestProcessorConfig, **kwargs: Any) -> RequestProcessor:
    """The processor with its one stage."""
    return RequestProcessor(config, **kwargs)
