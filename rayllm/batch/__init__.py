"""Batch inference over Ray Data datasets, with vLLM engines or any HTTP endpoint.

processor = build_llm_processor(
    VLLMProcessorConfig(model="models/rayllm-demo.yaml"),
    preprocess=lambda row: {"messages": row["question"], "sampling_params": {"max_tokens": 64}},
    postprocess=lambda row: {"answer": row["generated_text"]},
)
processor(ray.data.read_parquet("questions/")).write_parquet("answers/")

Names are imported when they are used: processes of a job, such as the actor that counts its rows, need few of them.
"""

from __future__ import annotations

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

_MODULES = {
    "ActorStage": "stages.stage",
    "Checkpoint": "config",
    "HTTPRequestProcessorConfig": "config",
    "Processor": "processors.processor",
    "ProcessorBuilder": "processors.processor",
    "ProcessorConfig": "config",
    "RequestProcessorConfig": "config",
    "Stage": "stages.stage",
    "VLLMProcessorConfig": "config",
    "build_http_request_processor": "processors.kinds",
    "build_llm_processor": "processors.processor",
    "build_request_processor": "processors.kinds",
    "build_vllm_processor": "processors.kinds",
}
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
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
