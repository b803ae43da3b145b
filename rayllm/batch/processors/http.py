"""Processor that sends each row to an HTTP endpoint."""

from __future__ import annotations

from typing import Any

import ray
from ray.data import Dataset

from rayllm.batch.config import HTTPRequestProcessorConfig
from rayllm.batch.processors.builder import ProcessorBuilder
from rayllm.batch.processors.processor import Processor, client_options
from rayllm.batch.rows import Row
from rayllm.batch.stages.examples import COMPLETION
from rayllm.batch.stages.http import HTTPRequestStage, RateLimiter, RetryPolicy
from rayllm.batch.stages.stage import ActorStage

_STAGE = "HTTPRequestStage"


class HTTPRequestProcessor(Processor[HTTPRequestProcessorConfig]):
    """Sends rows with a `body`, or the fields of one; adds the response and its fields."""

    name = "requests"

    def __init__(self, config: HTTPRequestProcessorConfig, **kwargs: Any) -> None:
        super().__init__(config, **{**kwargs, "preprocess_fn": kwargs.get("preprocess_fn") or _body_or_row})
        config = self.config
        # Nobody knows which fields an endpoint answers with.
        self.results, self.example = {"status_code": 0}, COMPLETION
        kwargs = {
            "url": config.url,
            "headers": config.headers(),
            "max_concurrent": config.max_concurrent_requests,
            "retry_policy": RetryPolicy(config.max_retries, config.base_retry_wait_time_in_s, config.timeout_s),
            "raise_for_status": config.raise_for_status,
        }
        options = client_options(config, config.max_concurrent_requests)
        self.append_stage(_STAGE, ActorStage(fn=HTTPRequestStage, fn_constructor_kwargs=kwargs, map_kwargs=options))
        self.arrange_before(_STAGE, self.in_batches)

    def __call__(self, dataset: Dataset) -> Dataset:
        if self.config.qps is not None:
            limiter = ray.remote(RateLimiter).options(num_cpus=0).remote(self.config.qps)
            self.get_stage_by_name(_STAGE).fn_constructor_kwargs["rate_limiter"] = limiter
        return super().__call__(dataset)


def _body_or_row(row: Row) -> Row:
    """The default preprocess: a row's `body`, or the whole row."""
    return {"body": row["body"]} if "body" in row else row


@ProcessorBuilder.register(HTTPRequestProcessorConfig)
def build_http_request_processor(config: HTTPRequestProcessorConfig, **kwargs: Any) -> HTTPRequestProcessor:
    """Build the processor with its one stage."""
    return HTTPRequestProcessor(config, **kwargs)
