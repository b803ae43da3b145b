"""Processors that ask an endpoint over HTTP."""

from __future__ import annotations

from typing import Any

import ray
from ray.data import Dataset

from rayllm.batch.config import HTTPRequestProcessorConfig
from rayllm.batch.processors.builder import ProcessorBuilder
from rayllm.batch.processors.processor import Processor
from rayllm.batch.rows import Row
from rayllm.batch.stages.http import HTTPRequestStage, Pace, Patience
from rayllm.batch.stages.stage import ActorStage

_STAGE = "HTTPRequestStage"


class HTTPRequestProcessor(Processor[HTTPRequestProcessorConfig]):
    """Takes rows with a `body`, or the fields of one; gives the fields of the answer, and the answer whole."""

    name = "requests"

    def __init__(self, config: HTTPRequestProcessorConfig, **kwargs: Any) -> None:
        super().__init__(config, **{**kwargs, "preprocess_fn": kwargs.get("preprocess_fn") or _whole_or_body})
        config = self.config
        made = {
            "url": config.url,
            "headers": config.headers(),
            "window": config.max_concurrent_requests,
            "patience": Patience(config.max_retries, config.base_retry_wait_time_in_s, config.timeout_s),
            "raise_for_status": config.raise_for_status,
        }
        options = {
            "concurrency": config.concurrency,
            "batch_size": config.batch_size,
            "max_concurrency": 2 * -(-config.max_concurrent_requests // config.batch_size) + 2,
            # It waits for others nearly all the time; any share of a CPU could be the one that a task lacks.
            "num_cpus": 0,
        }
        self.append_stage(_STAGE, ActorStage(fn=HTTPRequestStage, fn_constructor_kwargs=made, map_kwargs=options))
        self.arrange_before(_STAGE, lambda dataset: dataset.repartition(target_num_rows_per_block=config.batch_size))

    def __call__(self, dataset: Dataset) -> Dataset:
        if self.config.qps is not None:
            # One for all workers.
            stage = self.get_stage_by_name(_STAGE)
            stage.fn_constructor_kwargs["pace"] = ray.remote(Pace).options(num_cpus=0).remote(self.config.qps)
        return super().__call__(dataset)


def _whole_or_body(row: Row) -> Row:
    """What is sent of a row where nobody says: its `body`, or all of it."""
    return {"body": row["body"]} if "body" in row else row


@ProcessorBuilder.register(HTTPRequestProcessorConfig)
def build_http_request_processor(config: HTTPRequestProcessorConfig, **kwargs: Any) -> HTTPRequestProcessor:
    """The processor with its one stage."""
    return HTTPRequestProcessor(config, **kwargs)
