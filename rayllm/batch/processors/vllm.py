"""Processors that run a vLLM engine in each worker."""

from __future__ import annotations

from math import ceil
from typing import Any

from ray.data import Dataset

from rayllm.batch.config import VLLMProcessorConfig
from rayllm.batch.execution.placement import EnginePlace
from rayllm.batch.execution.prefix_order import sort_by_prefix
from rayllm.batch.processors.builder import ProcessorBuilder
from rayllm.batch.processors.model import model_config
from rayllm.batch.processors.processor import Processor
from rayllm.batch.stages.chat_template import ChatTemplateStage
from rayllm.batch.stages.detokenize import DetokenizeStage
from rayllm.batch.stages.engine import VLLMEngineStage
from rayllm.batch.stages.images import PrepareImageStage
from rayllm.batch.stages.stage import ActorStage, Stage
from rayllm.batch.stages.tokenize import TokenizeStage
from rayllm.config import ModelConfig
from rayllm.config.model import DEFAULT_MAX_NUM_SEQS
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
    """Takes rows as its task wants them, and gives them with what the engine made of them."""

    def __init__(self, config: VLLMProcessorConfig, **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        config = self.config
        model = model_config(
            config.model, config.task_type, config.engine_kwargs, config.runtime_env, config.accelerator_type
        )
        self.task = model.task or "generate"
        self._check(model)
        self.place = EnginePlace(model)
        self.name = f"{self.task} {model.model_id}"
        self.takes = _TAKES[self.task] | self._more_taken()
        self.hidden = (_CHAT | {"sampling_params", "pooling_params", "images", "model", "is_rendered"}) | (
            {"text_1", "text_2"} if self.task == "score" else set()
        )
        self._append(model)

    def __call__(self, dataset: Dataset) -> Dataset:
        self.place.check()
        return super().__call__(dataset)

    def leave(self) -> None:
        self.place.leave()

    def _check(self, model: ModelConfig) -> None:
        if model.guided_decoding and (model.guided_decoding.default_backend or model.guided_decoding.backends_dir):
            raise ConfigError(
                "guided_decoding: backends answer requests in OpenAI's form; use RequestProcessorConfig, or leave it "
                "out."
            )
        given = {name for name in self.config.model_fields_set if getattr(self.config, name) is True}
        meaningless = {"is_chat", "has_images", "need_tokenize", "need_detokenize"} if self.task == "score" else set()
        if self.task != "generate":
            meaningless.add("need_detokenize")
        for name in sorted(given & meaningless):
            raise ConfigError(f"{name}: has no meaning for the task {self.task}; leave it out.")

    def _more_taken(self) -> set[str]:
        if self.task == "score":
            return set()
        return (_CHAT if self.config.is_chat else set()) | ({"images"} if self.config.has_images else set())

    def _append(self, model: ModelConfig) -> None:
        config = self.config
        made = {"model": model}
        if self.task != "score":
            if config.is_chat:
                self.append_stage("ChatTemplateStage", Stage(fn=ChatTemplateStage, fn_constructor_kwargs=made))
            if config.has_images:
                self.append_stage("PrepareImageStage", Stage(fn=PrepareImageStage))
            if config.need_tokenize:
                self.append_stage("TokenizeStage", Stage(fn=TokenizeStage, fn_constructor_kwargs=made))
        self.append_stage(ENGINE, self._engine_stage(model))
        self.arrange_before(ENGINE, self._arranged)
        if self.task == "generate" and config.need_detokenize:
            self.append_stage("DetokenizeStage", Stage(fn=DetokenizeStage, fn_constructor_kwargs=made))

    def _engine_stage(self, model: ModelConfig) -> ActorStage:
        config = self.config
        kwargs = {
            "model": model,
            "task": self.task,
            "workers": self.place.workers,
            "gpu_share": self.place.gpu_share,
            "max_pending": config.max_pending_requests,
            # Where a stage after it does, the engine has more time for its own work.
            "detokenize": False,
        }
        return ActorStage(
            fn=VLLMEngineStage,
            fn_constructor_kwargs=kwargs,
            map_kwargs=engine_options(config, model, self.place),
            max_deaths=config.max_engine_restarts,
        )

    def _arranged(self, dataset: Dataset) -> Dataset:
        """Blocks of one batch each, so that many are under way at once, and little is done again after a failure."""
        if self.config.sort_for_prefix and not self.config.preserve_order:
            dataset = dataset.map_batches(
                sort_by_prefix, fn_kwargs={"column": self.data_column}, batch_format="pyarrow", batch_size=None
            )
        return dataset.repartition(target_num_rows_per_block=self.config.batch_size)


def engine_options(config: Any, model: ModelConfig, place: EnginePlace) -> dict[str, Any]:
    """Arguments of `Dataset.map_batches` that keep an engine busy."""
    sequences = int(model.engine_kwargs.get("max_num_seqs", DEFAULT_MAX_NUM_SEQS)) * model.pipeline_parallel_size
    window = config.max_pending_requests or ceil(1.1 * sequences)
    return {
        **place.map_kwargs(),
        "concurrency": config.concurrency,
        "batch_size": config.batch_size,
        # Enough batches to fill the window while others wait for their slowest row.
        "max_concurrency": 2 * ceil(window / config.batch_size) + 2,
    }


@ProcessorBuilder.register(VLLMProcessorConfig)
def build_vllm_processor(config: VLLMProcessorConfig, **kwargs: Any) -> VLLMProcessor:
    """The processor with its stages: chat template, images, tokens, engine, text."""
    return VLLMProcessor(config, **kwargs)
