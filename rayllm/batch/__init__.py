"""Batch inference over Ray Data datasets, with vLLM engines or any HTTP endpoint.

processor = build_llm_processor(
    VLLMProcessorConfig(model="models/rayllm-demo.yaml"),
    preprocess=lambda row: {"messages": row["question"], "sampling_params": {"max_tokens": 64}},
    postprocess=lambda row: {"answer": row["generated_text"]},
)
processor(ray.data.read_parquet("questions/")).write_parquet("answers/")
"""

from rayllm.batch.config import (
    Checkpoint,
    HTTPRequestProcessorConfig,
    ProcessorConfig,
    RequestProcessorConfig,
    VLLMProcessorConfig,
)
from rayllm.batch.processors.builder import ProcessorBuilder, build_llm_processor
from rayllm.batch.processors.http import build_http_request_processor
from rayllm.batch.processors.processor import Processor
from rayllm.batch.processors.request import build_request_processor
from rayllm.batch.processors.vllm import build_vllm_processor
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
