"""The three kinds of processors: for vLLM engines, for OpenAI-style requests and for any HTTP endpoint."""

import json
from collections.abc import Callable, Mapping
from math import ceil
from pathlib import Path
from typing import Any

import ray
from ray.data import Dataset

from rayllm.batch.config import (
    HTTPRequestProcessorConfig,
    ProcessorConfig,
    RequestProcessorConfig,
    VLLMProcessorConfig,
    pool_size,
)
from rayllm.batch.execution.placement import EnginePlacement
from rayllm.batch.processors.processor import Processor, ProcessorBuilder
from rayllm.batch.rows import Row, sort_by_prefix
from rayllm.batch.stages.engine import VLLMEngineStage
from rayllm.batch.stages.examples import ANSWER, COMPLETION
from rayllm.batch.stages.examples import ENGINE as ENGINE_RESULTS
from rayllm.batch.stages.http import HTTPRequestStage, RateLimiter
from rayllm.batch.stages.request import DeployedRequestStage, EngineRequestStage
from rayllm.batch.stages.stage import ActorStage, Stage
from rayllm.batch.stages.text import ChatTemplateStage, DetokenizeStage, TokenizeStage
from rayllm.config import ModelConfig, model_from, named_model
from rayllm.config.model import ALIASES, DEFAULT_MAX_NUM_SEQS
from rayllm.core.errors import ConfigError

REQUEST_STAGE = "RequestStage"
_ENGINE_STAGE, _HTTP_STAGE = "VLLMEngineStage", "HTTPRequestStage"
DEFAULT_MAX_PENDING = 64
_PROMPTS = {"prompt", "prompt_token_ids", "model"}
_CHAT = {"messages", "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message"}
_TAKES = {
    "generate": _PROMPTS | {"sampling_params"},
    "embed": _PROMPTS | {"pooling_params"},
    "classify": _PROMPTS | {"pooling_params"},
    "score": {"text_1", "text_2", "pooling_params"},
}


class VLLMProcessor(Processor[VLLMProcessorConfig]):
    """Runs each row's prompt through the engine, and adds what the task returns."""

    def __init__(self, config: VLLMProcessorConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        config = self.config
        own = {name: getattr(config, name) for name in ("engine_kwargs", "runtime_env", "accelerator_type")}
        model = model_config(config.model, task=config.task_type, **own)
        self.task = model.task or "generate"
        self._check(model)
        self.name = f"{self.task} {model.model_id}"
        self.takes, self.results = set(_TAKES[self.task]), ENGINE_RESULTS[self.task]
        self.hidden = _CHAT | {"sampling_params", "pooling_params", "images", "model", "is_rendered"}
        if self.task == "score":
            self.hidden |= {"text_1", "text_2"}
        else:
            self.takes |= (_CHAT if config.is_chat else set()) | ({"images"} if config.has_images else set())
            kwargs = {"model": model}
            if config.is_chat:
                self.append_stage("ChatTemplateStage", Stage(fn=ChatTemplateStage, fn_constructor_kwargs=kwargs))
            if config.has_images:
                self.append_stage("PrepareImageStage", Stage(fn=_image_stage()))
            if config.need_tokenize:
                self.append_stage("TokenizeStage", Stage(fn=TokenizeStage, fn_constructor_kwargs=kwargs))
        # A later stage detokenizes, off the engine's critical path.
        arguments = {"task": self.task, "detokenize": False}
        self.append_stage(_ENGINE_STAGE, _engine_stage(self, VLLMEngineStage, model, arguments))
        self.arrange_before(_ENGINE_STAGE, self._sorted_batches)
        if self.task == "generate" and config.need_detokenize:
            self.append_stage("DetokenizeStage", Stage(fn=DetokenizeStage, fn_constructor_kwargs={"model": model}))

    def _check(self, model: ModelConfig) -> None:
        if model.guided_decoding and (model.guided_decoding.default_backend or model.guided_decoding.backends_dir):
            raise ConfigError(
                "guided_decoding: custom backends need OpenAI-style requests; use RequestProcessorConfig, or leave it "
                "out."
            )
        enabled = {name for name in self.config.model_fields_set if getattr(self.config, name) is True}
        inapplicable = {"is_chat", "has_images", "need_tokenize"} if self.task == "score" else set()
        if self.task != "generate":
            inapplicable.add("need_detokenize")
        for name in sorted(enabled & inapplicable):
            raise ConfigError(f"{name}: does not apply to the task {self.task}; leave it out.")

    def _sorted_batches(self, dataset: Dataset) -> Dataset:
        if self.config.sort_for_prefix and not self.config.preserve_order:
            dataset = dataset.map_batches(
                sort_by_prefix, fn_kwargs={"column": self.data_column}, batch_format="pyarrow", batch_size=None
            )
        return self.in_batches(dataset)


class RequestProcessor(Processor[RequestProcessorConfig]):
    """Sends rows with `url`, such as `/v1/chat/completions`, and `body`; adds `status_code` and `response`."""

    name = "requests"
    takes = frozenset({"url", "body"})
    hidden = frozenset({"url", "body"})

    def __init__(self, config: RequestProcessorConfig, **kwargs: Any) -> None:
        super().__init__(config, **{**kwargs, "postprocess_fn": kwargs.get("postprocess_fn") or _with_text})
        self.results = {"status_code": 0, "response": ANSWER}
        config = self.config
        if config.model is not None:
            model = model_config(config.model, runtime_env=config.runtime_env, accelerator_type=config.accelerator_type)
            stage = _engine_stage(self, EngineRequestStage, model, {"caller": config.caller})
        else:
            pending = config.max_pending_requests or DEFAULT_MAX_PENDING
            arguments = {"caller": config.caller, "app_name": config.app_name, "max_pending": pending}
            stage = _client_stage(config, DeployedRequestStage, pending, arguments)
        self.append_stage(REQUEST_STAGE, stage)
        self.arrange_before(REQUEST_STAGE, self.in_batches)


class HTTPRequestProcessor(Processor[HTTPRequestProcessorConfig]):
    """Sends rows that have a `body`, or whose columns are its fields; adds the response and its fields."""

    name = "requests"

    def __init__(self, config: HTTPRequestProcessorConfig, **kwargs: Any) -> None:
        super().__init__(config, **{**kwargs, "preprocess_fn": kwargs.get("preprocess_fn") or _body_or_row})
        config = self.config
        # The fields of an endpoint's response are unknown.
        self.results, self.example = {"status_code": 0}, COMPLETION
        arguments = {"config": config, "headers": config.headers()}
        stage = _client_stage(config, HTTPRequestStage, config.max_concurrent_requests, arguments)
        self.append_stage(_HTTP_STAGE, stage)
        self.arrange_before(_HTTP_STAGE, self.in_batches)

    def __call__(self, dataset: Dataset) -> Dataset:
        if self.config.qps is not None:
            limiter = ray.remote(RateLimiter).options(num_cpus=0).remote(self.config.qps)
            self.get_stage_by_name(_HTTP_STAGE).fn_constructor_kwargs["rate_limiter"] = limiter
        return super().__call__(dataset)


@ProcessorBuilder.register(VLLMProcessorConfig)
def build_vllm_processor(config: VLLMProcessorConfig, **kwargs: Any) -> VLLMProcessor:
    """Build the processor with its stages: chat template, images, tokenize, engine, detokenize."""
    return VLLMProcessor(config, **kwargs)


@ProcessorBuilder.register(RequestProcessorConfig)
def build_request_processor(config: RequestProcessorConfig, **kwargs: Any) -> RequestProcessor:
    """Build the processor with its one stage."""
    return RequestProcessor(config, **kwargs)


@ProcessorBuilder.register(HTTPRequestProcessorConfig)
def build_http_request_processor(config: HTTPRequestProcessorConfig, **kwargs: Any) -> HTTPRequestProcessor:
    """Build the processor with its one stage."""
    return HTTPRequestProcessor(config, **kwargs)


def _engine_stage(
    processor: VLLMProcessor | RequestProcessor, fn: Callable[..., Any], model: ModelConfig, arguments: dict[str, Any]
) -> ActorStage:
    """The stage of a processor that runs an engine in each worker."""
    config, placement = processor.config, EnginePlacement(model)
    processor.placement = placement
    sequences = int(model.engine_kwargs.get("max_num_seqs", DEFAULT_MAX_NUM_SEQS)) * model.pipeline_parallel_size
    own = {
        "model": model,
        "workers": placement.workers,
        "gpu_share": placement.gpu_share,
        "max_pending": config.max_pending_requests,
        "engines": pool_size(config.concurrency)[0],
    }
    options = _actor_options(config, config.max_pending_requests or ceil(1.1 * sequences))
    return ActorStage(
        fn=fn,
        fn_constructor_kwargs={**own, **arguments},
        map_kwargs={**placement.map_kwargs(), **options},
        max_deaths=config.max_engine_restarts,
    )


def _client_stage(
    config: ProcessorConfig, fn: Callable[..., Any], max_concurrent: int, arguments: dict[str, Any]
) -> ActorStage:
    """A stage that sends requests elsewhere."""
    # No CPU: the stage mostly waits, and a task between stages may lack even a share of a CPU.
    options = {"num_cpus": 0, **_actor_options(config, max_concurrent)}
    return ActorStage(fn=fn, fn_constructor_kwargs=arguments, map_kwargs=options)


def _actor_options(config: ProcessorConfig, max_concurrent: int) -> dict[str, Any]:
    return {
        "concurrency": config.concurrency,
        "batch_size": config.batch_size,
        # Enough batches for `max_concurrent` rows, even while some batches wait for their slowest row.
        "max_concurrency": 2 * ceil(max_concurrent / config.batch_size) + 2,
    }


def _image_stage() -> type:
    """The stage for images, imported on demand. Raises ConfigError if Pillow is not installed."""
    try:
        from rayllm.batch.stages.images import PrepareImageStage
    except ImportError:
        raise ConfigError("has_images: images need Pillow.\nhint: pip install 'rayllm[images]'") from None
    return PrepareImageStage


def _with_text(row: Row) -> Row:
    """Default postprocess of requests: all results, with the response as JSON text, since responses differ in type."""
    return {**row["_outputs"], "response": json.dumps(row["response"])}


def _body_or_row(row: Row) -> Row:
    """Default preprocess for an HTTP endpoint: a row's `body`, or the whole row."""
    return {"body": row["body"]} if "body" in row else row


def model_config(model: str | Path | ModelConfig, **keys: Any) -> ModelConfig:
    """Resolve the model that a job runs: a model file, a hub id, a local folder, a bucket URI, or a configuration.

    `keys` of a model's file, such as `engine_kwargs`, override or extend its own. Raises ConfigError with every fault.
    """
    config = model if isinstance(model, ModelConfig) else named_model(str(model))
    given = {name: value for name, value in keys.items() if value}
    if not given:
        return config
    raw = config.model_dump(mode="json", exclude_unset=True)
    raw |= {name: _merged(raw.get(name), value) for name, value in given.items()}
    for name in ALIASES.keys() & given.get("engine_kwargs", {}).keys():
        raw.pop(ALIASES[name], None)
    return model_from(raw, "model", (Path.cwd(),))


def _merged(base: Any, override: Any) -> Any:
    """`override` over `base`: mappings are merged key by key, and so are their `env_vars`."""
    if not isinstance(base, Mapping) or not isinstance(override, Mapping):
        return override
    merged = {**base, **override}
    if "env_vars" in merged:
        merged["env_vars"] = _merged(base.get("env_vars"), override.get("env_vars", base.get("env_vars")))
    return merged
