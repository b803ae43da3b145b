"""Batch inference over Ray Data datasets, with vLLM engines or any HTTP endpoint.

processor = build_llm_processor(
    VLLMProcessorConfig(model="models/rayllm-demo.yaml"),
    preprocess=lambda row: {"messages": row["question"], "sampling_params": {"max_tokens": 64}},
    postprocess=lambda row: {"answer": row["generated_text"]},
)
processor(ray.data.read_parquet("questions/")).write_parquet("answers/")

Names are imported when they are used, since most processes of a job need few of them.

Process: driver of a batch job, and the Ray Data workers of its stages.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rayllm.batch.config import (
        Checkpoint,
        HTTPRequestProcessorConfig,
        ProcessorConfig,
        RequestProcessorConfig,
        VLLMProcessorConfig,
    )
    from rayllm.batch.processors.kinds import (
        build_http_request_processor,
        build_request_processor,
        build_vllm_processor,
    )
    from rayllm.batch.processors.processor import Processor, ProcessorBuilder, build_llm_processor
    from rayllm.batch.stages.stage import ActorStage, Stage

__all__ = [
    "ActorStage",
    "Checkpoint",
    "HTTPRequestProcessorConfig",
    "Processor",
    "ProcessorBuilder",
    "ProcessorConfig",
    "RequestProcessorConfig",
    "Stage",
    "VLLMProcessorConfig",
    "build_http_request_processor",
    "build_llm_processor",
    "build_request_processor",
    "build_vllm_processor",
]


def __getattr__(name: str) -> Any:
    # Each module imports those before it.
    for module in ("config", "stages.stage", "processors.processor", "processors.kinds") if name in __all__ else ():
        if found := getattr(import_module(f"{__name__}.{module}"), name, None):
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
