"""The models behind one router: names, aliases, adapters, fallbacks and model cards."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Self
from urllib.parse import quote

from rayllm.access import ANYONE, Caller
from rayllm.config import AppConfig, HubSource, LocalSource, ModelConfig
from rayllm.core import headers
from rayllm.core.errors import ModelNotFoundError
from rayllm.lora import Adapter, parse_adapter

OWNER = "rayllm"


@dataclass(frozen=True)
class ResolvedModel:
    """The base model that a name refers to, and the adapter, if any."""

    model_id: str
    adapter: Adapter | None = None

    @classmethod
    def for_adapter(cls, adapter: Adapter) -> Self:
        return cls(adapter.base, adapter)

    @property
    def adapter_name(self) -> str:
        """The adapter's own name; "" without an adapter."""
        return self.adapter.name if self.adapter else ""

    @property
    def full_name(self) -> str:
        """The base model's id, and the adapter's name after a colon."""
        return str(self.adapter or self.model_id)

    def headers(self, name: str) -> dict[str, str]:
        """The headers that tell a replica the model, which the client called `name`, and the adapter."""
        fields = {headers.MODEL: name}
        if self.adapter:
            fields[headers.ADAPTER] = self.adapter.name
            if self.adapter.source:
                fields[headers.ADAPTER_SOURCE] = quote(self.adapter.source)
        return fields


class ModelRegistry:
    """Names and model cards of one application."""

    def __init__(self, config: AppConfig) -> None:
        self._models = {model.model_id: model for model in config.models}
        self._aliases = dict(config.router.model_aliases)
        self._fallbacks = config.router.fallbacks
        self._created = int(time.time())
        self.lora_models = [model.model_id for model in config.models if model.lora_config]
        """Ids of the models that take adapters."""
        self._modules = {
            module.name: Adapter(model.model_id, module.name)
            for model in config.models
            for module in (model.lora_config.lora_modules if model.lora_config else ())
        }
        self.modules = list(self._modules.values())
        """The adapters in the configuration (`lora_modules`)."""
        self.descriptions: dict[str, dict[str, Any]] = {}
        """What replicas say of their models, by id."""

    @property
    def names(self) -> list[str]:
        """Every name of a base model: ids and aliases."""
        return [*self._models, *self._aliases]

    def parse_adapter(self, name: str) -> Adapter | None:
        """Parse `base:name`; None if the text names no adapter of these models."""
        return parse_adapter(name, self.lora_models)

    def resolve(
        self, name: str, registered: Mapping[str, Adapter] | None = None, caller: Caller = ANYONE
    ) -> ResolvedModel:
        """Resolve the name in a request: a model id, an alias, or the name of an adapter.

        `registered` are the adapters that administrators have registered, by the name that clients use.

        Raises ModelNotFoundError for an unknown name; its message lists the models that the caller may use.
        """
        model_id = self._aliases.get(name, name)
        if model_id in self._models:
            return ResolvedModel(model_id)
        registered = registered or {}
        adapter = registered.get(name)
        if adapter is None:
            adapter = self.parse_adapter(name) or self._modules.get(name)
            if adapter is None:
                self.raise_not_found(name, caller)
            # An adapter registered under its own name has its full name, too.
            if (entry := registered.get(adapter.name)) and entry.base == adapter.base:
                adapter = entry
        return ResolvedModel.for_adapter(adapter)

    def raise_not_found(self, name: str, caller: Caller) -> NoReturn:
        """Raise the error for an unknown name; its message lists the models that the caller may use."""
        permitted = [known for known in self.names if caller.may_use(known, self._aliases.get(known, known))]
        known = ", ".join(f"`{known}`" for known in permitted[:20]) or "none that the key may use"
        raise ModelNotFoundError(f"The model `{name[:200]}` does not exist. Models here: {known}.", "model")

    def has_tool_server(self, model_id: str) -> bool:
        """Whether vLLM runs tools for the model, on a tool server."""
        return bool(self._models[model_id].engine_kwargs.get("tool_server"))

    def fallbacks(self, model_id: str) -> tuple[str, ...]:
        """Ids of the models to try in turn while a model is unavailable."""
        return self._fallbacks.get(model_id, ())

    def card(self, name: str, model_id: str) -> dict[str, Any]:
        """The model object of `GET /v1/models/{id}`, with vLLM's fields `root`, `parent` and `max_model_len`.

        `endpoints` and `input_modalities` are null until a replica has described the model.
        """
        model, description = self._models[model_id], self.descriptions.get(model_id, {})
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": OWNER,
            "root": _root(model),
            # An adapter's parent is its base.
            "parent": None if name in self._models or name in self._aliases else model_id,
            "max_model_len": description.get("max_model_len", model.max_model_len),
            "endpoints": description.get("endpoints"),
            "input_modalities": description.get("input_modalities"),
        }


def _root(model: ModelConfig) -> str:
    """The public origin of a model's weights; local paths are not disclosed."""
    source = model.source
    return (
        source.repo_id
        if isinstance(source, HubSource)
        else model.model_id
        if isinstance(source, LocalSource)
        else source.bucket_uri
    )
