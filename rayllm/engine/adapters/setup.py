"""Makes the adapter pool of an engine, and applies an adapter's own settings."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from rayllm.config import GenerationConfig, ModelConfig
from rayllm.core.errors import RequestError
from rayllm.core.settings import settings
from rayllm.engine.adapters.pool import AdapterPool
from rayllm.engine.request_plan import RequestPlan
from rayllm.engine.vllm.adapters import EngineAdapters
from rayllm.lora import Adapter, AdapterFiles, AdapterStore, open_catalog
from rayllm.prompt import PromptError
from rayllm.sources import DownloadOptions, LoggedProgress, Progress

# Stop texts that an adapter may add to a request; vLLM counts them against its limit on the client's.
MAX_STOPS = 16


def adapter_pool_of(
    model: ModelConfig,
    engine: Any,
    server: Any,
    plan: Callable[[ModelConfig], RequestPlan],
    progress: Callable[[], Progress],
    on_other_nodes: Callable[[Callable[[], None]], None] | None,
) -> AdapterPool | None:
    """The adapter pool of `model`; None if `model` takes no adapters.

    `on_other_nodes` calls a function on each other node that has workers of the engine; None without any.
    """
    lora = model.lora_config
    if lora is None:
        return None
    max_rank = int(engine.vllm_config.lora_config.max_lora_rank)

    def fetch_elsewhere(adapter: Adapter, version: str) -> None:
        if on_other_nodes:
            on_other_nodes(partial(fetch_version, model, max_rank, adapter, version))

    return AdapterPool(
        adapter_store(model, max_rank, progress),
        EngineAdapters(engine, server.state.openai_serving_models),
        lambda adapter, files: _plan(adapter, files, model, plan),
        lora.max_num_adapters_per_replica,
        settings().adapter_refresh_s,
        fetch_elsewhere=fetch_elsewhere if on_other_nodes else None,
    )


def fetch_version(model: ModelConfig, max_rank: int, adapter: Adapter, version: str) -> None:
    """Fetch a version of an adapter to this node. The arguments can be sent to a node, which a store cannot."""
    adapter_store(model, max_rank, LoggedProgress).fetch_version(adapter, version)


def adapter_store(model: ModelConfig, max_rank: int, progress: Callable[[], Progress]) -> AdapterStore:
    """The adapter store of `model`, which must have a `lora_config`."""
    lora = model.lora_config
    assert lora is not None  # noqa: S101  (checked by the caller)
    path = lora.dynamic_lora_loading_path
    return AdapterStore(
        model.model_id,
        open_catalog(path, model.model_id) if path else None,
        {module.name: module.path for module in lora.lora_modules},
        replace(DownloadOptions.from_settings(lora.download_timeout_s), tries=lora.max_download_tries),
        max_rank,
        progress,
    )


def _plan(
    adapter: Adapter, files: AdapterFiles, model: ModelConfig, plan: Callable[[ModelConfig], RequestPlan]
) -> RequestPlan | None:
    if files.generation is None:
        return None
    if len(files.generation.stopping_sequences) > MAX_STOPS:
        message = f"The adapter `{adapter}` cannot be used: it has more than {MAX_STOPS} `stopping_sequences`."
        raise RequestError(message, "model", "adapter_broken")
    try:
        return plan(with_generation(model, files.generation))
    except PromptError as error:
        message = f"The adapter `{adapter}` cannot be used: its `prompt_format`: {error}"
        raise RequestError(message, "model", "adapter_broken") from None


def with_generation(model: ModelConfig, generation: GenerationConfig) -> ModelConfig:
    """`model` with an adapter's generation settings, where the adapter has any."""
    update_values = {key: getattr(generation, key) for key in generation.model_fields_set}
    update: dict[str, Any] = {"generation_config": model.generation_config.model_copy(update=update_values)}
    if generation.prompt_format is not None:
        # The adapter's format replaces the base model's template.
        update["chat_template"] = None
    return model.model_copy(update=update)
