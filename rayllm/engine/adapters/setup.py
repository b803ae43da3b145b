"""The adapters of one engine, put together: where they come from, what the engine takes, what they add to requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rayllm.config import GenerationConfig, ModelConfig
from rayllm.engine.adapters.pool import AdapterPool
from rayllm.engine.request_plan import RequestPlan
from rayllm.engine.vllm.adapters import AdapterSlots
from rayllm.engine.vllm.engine import max_lora_rank
from rayllm.errors import RequestError
from rayllm.lora import AdapterFiles, AdapterLimits, AdapterName, AdapterStore, BaseModules, open_place
from rayllm.prompt import PromptError
from rayllm.settings import settings
from rayllm.sources import Progress
from rayllm.sources.node import limits

# Stop texts that an adapter's settings may add to each request; vLLM counts them against its limit on the client's.
MAX_STOPS = 16


def adapter_pool_of(
    model: ModelConfig,
    engine: Any,
    server: Any,
    weights: Path,
    plan: Callable[[ModelConfig], RequestPlan],
    progress: Callable[[], Progress],
) -> AdapterPool | None:
    """The adapters of `model`; None where it takes none.

    Args:
        model: the base model.
        engine: vLLM's AsyncLLM.
        server: vLLM's application.
        weights: the folder with the base's weights; nothing is known of them where it is none of this node.
        plan: what a configuration means for a request.
        progress: makes an observer for a download.
    """
    lora = model.lora_config
    if lora is None:
        return None
    takes = AdapterLimits(max_lora_rank(engine), BaseModules.of(weights.glob("*.safetensors")))
    return AdapterPool(
        adapter_store(model, takes, progress),
        AdapterSlots(engine, server.state.openai_serving_models),
        lambda name, files: _plan(name, files, model, plan),
        lora.max_num_adapters_per_replica,
        settings().adapter_refresh_s,
    )


async def load_modules(adapter_pool: AdapterPool, model: ModelConfig) -> None:
    """Load the adapters that the configuration names.

    Raises:
        RayLLMError: one of them cannot be had; a replica that lacks it must not start.
    """
    for module in model.lora_config.lora_modules if model.lora_config else ():
        await adapter_pool.load(AdapterName(model.model_id, module.name))


def adapter_store(model: ModelConfig, takes: AdapterLimits, progress: Callable[[], Progress]) -> AdapterStore:
    """Where the adapters of `model`, which has a `lora_config`, come from.

    Args:
        model: the base model.
        takes: what the engine takes.
        progress: makes an observer for a download.
    """
    lora = model.lora_config
    assert lora is not None  # noqa: S101  (told by the caller)
    path = lora.dynamic_lora_loading_path
    return AdapterStore(
        model.model_id,
        open_place(path, model.model_id) if path else None,
        {module.name: module.path for module in lora.lora_modules},
        replace(limits(lora.download_timeout_s), tries=lora.max_download_tries),
        takes,
        progress,
    )


def _plan(
    name: AdapterName, files: AdapterFiles, model: ModelConfig, plan: Callable[[ModelConfig], RequestPlan]
) -> RequestPlan | None:
    """What the adapter's own settings mean for a request; its base's hold where it says nothing."""
    if files.generation is None:
        return None
    if len(files.generation.stopping_sequences) > MAX_STOPS:
        message = f"The adapter `{name}` cannot be used: it has more than {MAX_STOPS} `stopping_sequences`."
        raise RequestError(message, "model", "adapter_broken")
    try:
        return plan(with_generation(model, files.generation))
    except PromptError as error:
        message = f"The adapter `{name}` cannot be used: its `prompt_format`: {error}"
        raise RequestError(message, "model", "adapter_broken") from None


def with_generation(model: ModelConfig, generation: GenerationConfig) -> ModelConfig:
    """`model` with the settings that an adapter brings; its own hold where the adapter says nothing."""
    given = {key: getattr(generation, key) for key in generation.model_fields_set}
    update: dict[str, Any] = {"generation_config": model.generation_config.model_copy(update=given)}
    if generation.prompt_format is not None:
        # The format is the adapter's word against the base's template.
        update["chat_template"] = None
    return model.model_copy(update=update)
