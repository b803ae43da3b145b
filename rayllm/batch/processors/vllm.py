"""Processor that runs a vLLM engine in each worker."""

from __future__ import annotations

from typing import Any

from ray.data import Dataset

from rayllm.batch.config import VLLMProcessorConfig, pool_size
from rayllm.batch.execution.placement import EnginePlacement
from rayllm.batch.execution.prefix_order import sort_by_prefix
from rayllm.batch.processors.builder import ProcessorBuilder
from rayllm.batch.processors.model import model_config
from rayllm.batch.processors.processor import Processor, engine_options
from rayllm.batch.stages.chat_template import ChatTemplateStage
from rayllm.batch.stages.detokenize import DetokenizeStage
from rayllm.batch.stages.engine import VLLMEngineStage
from rayllm.batch.stages.examples import ENGINE as ENGINE_RESULTS
from rayllm.batch.stages.stage import ActorStage, Stage
from rayllm.batch.stages.tokenize import TokenizeStage
from rayllm.config import ModelConfig
from rayllm.errors import ConfigError

_PROMPTS = {"prompt", "prompt_token_ids", "model"}
_CHAT = {"messages", "tools", "chat_template_kwargs", "add_generation_prompt", "continue_final_message"}
_TAKES = {
    "generate": _PROMPTS | {"sampling_params"},
    "embed": _PROMPTS | {"pooling_params"},
    "classify": _PROMPTS | {"pooling_params"},
    "score": {"text_1", "text_2", "pooling_params"},
}
ENGINE = "VLLMEngineStage"


class VLLMProcessor(Processor[VLLMProcessorConfig]):
    """Runs each row's prompt through the engine, and adds what the task returns."""

    def __init__(self, config: VLLMProcessorConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        config = self.config
        model = model_config(
            config.model, config.task_type, config.engine_kwargs, config.runtime_env, config.accelerator_type
        )
        self.task = model.task or "generate"
        self._check(model)
        placement = self.placement = EnginePlacement(model)
        self.name = f"{self.task} {model.model_id}"
        self.takes = _TAKES[self.task] | self._optional_keys()
        self.results = ENGINE_RESULTS[self.task]
        self.hidden = (_CHAT | {"sampling_params", "pooling_params", "images", "model", "is_rendered"}) | (
            {"text_1", "text_2"} if self.task == "score" else set()
        )
        self._append(model, placement)

    def _check(self, model: ModelConfig) -> None:
        if model.guided_decoding and (model.guided_decoding.default_backend or model.guided_decoding.backends_dir):
            raise ConfigError(
                "guided_decoding: custom backends need OpenAI-style requests; use RequestProcessorConfig, or leave it "
                "out."
            )
        enabled = {name for name in self.config.model_fields_set if getattr(self.config, name) is True}
        inapplicable = {"is_chat", "has_images", "need_tokenize", "need_detokenize"} if self.task == "score" else set()
        if self.task != "generate":
            inapplicable.add("need_detokenize")
        for name in sorted(enabled & inapplicable):
            raise ConfigError(f"{name}: does not apply to the task {self.task}; leave it out.")

    def _optional_keys(self) -> set[str]:
        if self.task == "score":
            return set()
        return (_CHAT if self.config.is_chat else set()) | ({"images"} if self.config.has_images else set())

    def _append(self, model: ModelConfig, placement: EnginePlacement) -> None:
        config = self.config
        kwargs = {"model": model}
        if self.task != "score":
            if config.is_chat:
                self.append_stage("ChatTemplateStage", Stage(fn=ChatTemplateStage, fn_constructor_kwargs=kwargs))
            if config.has_images:
                self.append_stage("PrepareImageStage", Stage(fn=_image_stage()))
            if config.need_tokenize:
                self.append_stage("TokenizeStage", Stage(fn=TokenizeStage, fn_constructor_kwargs=kwargs))
        self.append_stage(ENGINE, self._engine_stage(model, placement))
        self.arrange_before(ENGINE, self._sorted_batches)
        if self.task == "generate" and config.need_detokenize:
            self.append_stage("DetokenizeStage", Stage(fn=DetokenizeStage, fn_constructor_kwargs=kwargs))

    def _engine_stage(self, model: ModelConfig, placement: EnginePlacement) -> ActorStage:
        config = self.config
        kwargs = {
            "model": model,
            "task": self.task,
            "workers": placement.workers,
            "gpu_share": placement.gpu_share,
            "max_pending": config.max_pending_requests,
            "engines": pool_size(config.concurrency)[0],
            # A later stage does it, off the engine's critical path.
            "detokenize": False,
        }
        return ActorStage(
            fn=VLLMEngineStage,
            fn_constructor_kwargs=kwargs,
            map_kwargs=engine_options(config, model, placement),
            max_deaths=config.max_engine_restarts,
        )

    def _sorted_batches(self, dataset: Dataset) -> Dataset:
        if self.config.sort_for_prefix and not self.config.preserve_order:
            dataset = dataset.map_batches(
                sort_by_prefix, fn_kwargs={"column": self.data_column}, batch_format="pyarrow", batch_size=None
            )
        return self.in_batches(dataset)


@ProcessorBuilder.register(VLLMProcessorConfig)
def build_vllm_processor(config: VLLMProcessorConfig, **kwargs: Any) -> VLLMProcessor:
    """Build the processor with its stages: chat template, images, tokenize, engine, detokenize."""
    return VLLMProcessor(config, **kwargs)


def _image_stage() -> type:
    """The stage for images, which only some jobs have.

    Raises:
        ConfigError: Pillow is not installed.
    """
    try:
        from rayllm.batch.stages.images import PrepareImageStage
    except ImportError:
        raise ConfigError("has_images: images need Pillow.\nhint: pip install 'rayllm[images]'") from None
    return PrepareImageStage
