"""The models behind one router: names, aliases, adapters, fallbacks and model cards."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import quote

from rayllm.access import ANYONE, Caller
from rayllm.config import AppConfig, HubSource, LocalSource, ModelConfig
from rayllm.core import headers
from rayllm.core.errors import ModelNotFoundError
from rayllm.lora import AdapterName, parse_name
from rayllm.serving.cluster.state.adapter_registry import RegisteredAdapter

OWNER = "rayllm"


@dataclass(frozen=True)
class ResolvedModel:
    """The model a name refers to, with an adapter ("" for none) that may have its own location."""

    model_id: str
    adapter: str = ""
    path: str = ""

    @property
    def full_name(self) -> str:
        """The model's id, and the adapter's name after a colon."""
        return f"{self.model_id}:{self.adapter}" if self.adapter else self.model_id

    def headers(self, name: str) -> dict[str, str]:
        """The headers that tell a replica the model and the adapter."""
        fields = {headers.MODEL: name}
        if self.adapter:
            fields[headers.ADAPTER] = self.adapter
        if self.path:
            fields[headers.ADAPTER_PATH] = quote(self.path)
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
            module.name: AdapterName(model.model_id, module.name)
            for model in config.models
            for module in (model.lora_config.lora_modules if model.lora_config else ())
        }
        self._max_model_len = {model.model_id: model.max_model_len for model in config.models}
        self._descriptions: dict[str, dict[str, Any]] = {}

    @property
    def names(self) -> list[str]:
        """Every name of a base model: ids and aliases."""
        return [*self._models, *self._aliases]

    @property
    def modules(self) -> list[AdapterName]:
        """The adapters listed in the configuration."""
        return list(self._modules.values())

    def parse_adapter(self, name: str) -> AdapterName | None:
        """Parse `<base>:<adapter>`; None if it names no adapter of these models."""
        return parse_name(name, self.lora_models)

    @property
    def models(self) -> list[ModelConfig]:
        """The models."""
        return list(self._models.values())

    def resolve(
        self, name: str, registered: Mapping[str, RegisteredAdapter] | None = None, caller: Caller = ANYONE
    ) -> ResolvedModel:
        """Resolve the name in a request.

        Args:
            name: a model id, an alias, or the name of an adapter.
            registered: adapters that administrators have loaded, by name.

        Raises:
            ModelNotFoundError: no model has that name; the message lists those that the caller may use.
        """
        model_id = self._aliases.get(name, name)
        if model_id in self._models:
            return ResolvedModel(model_id)
        registered = registered or {}
        if entry := registered.get(name):
            return ResolvedModel(entry.base, entry.adapter, entry.path)
        adapter = self.parse_adapter(name) or self._modules.get(name)
        if adapter and (entry := registered.get(adapter.adapter)) and entry.base == adapter.base:
            # The engine identifies an adapter by its full id, even if it was loaded under its own name alone.
            return ResolvedModel(entry.base, entry.adapter, entry.path)
        if adapter is None:
            self.raise_not_found(name, caller)
        return ResolvedModel(adapter.base, adapter.adapter)

    def raise_not_found(self, name: str, caller: Caller) -> NoReturn:
        """Raise the error for an unknown name; its message lists the models that the caller may use."""
        permitted = [known for known in self.names if caller.may_use(known, self._aliases.get(known, known))]
        known = ", ".join(f"`{known}`" for known in permitted[:20]) or "none that the key may use"
        raise ModelNotFoundError(f"The model `{name[:200]}` does not exist. Models here: {known}.", "model")

    def has_tool_server(self, model_id: str) -> bool:
        """Whether the model's engine has a server of tools that vLLM runs."""
        return bool(self._models[model_id].engine_kwargs.get("tool_server"))

    def fallbacks(self, model_id: str) -> tuple[str, ...]:
        """The models to try in turn while this one is unavailable."""
        return self._fallbacks.get(model_id, ())

    def has_description(self, model_id: str) -> bool:
        """Whether a replica has described the model."""
        return model_id in self._descriptions

    def update_description(self, model_id: str, description: dict[str, Any]) -> None:
        """Store a replica's description of its model."""
        self._max_model_len[model_id] = description["max_model_len"]
        self._descriptions[model_id] = description

    def card(self, name: str, model_id: str) -> dict[str, Any]:
        """The model object of `GET /v1/models/{id}`, with vLLM's fields `root`, `parent` and `max_model_len`.

        `endpoints` and `input_modalities` are null until a replica has described the model.
        """
        description = self._descriptions.get(model_id, {})
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": OWNER,
            "root": _root(self._models[model_id]),
            # An adapter's parent is its base.
            "parent": None if name in self.names else model_id,
            "max_model_len": self._max_model_len[model_id],
            "endpoints": description.get("endpoints"),
            "input_modalities": description.get("input_modalities"),
        }


def _root(model: ModelConfig) -> str:
    """Public origin of the weights; local paths are not disclosed."""
    source = model.source
    return (
        source.repo_id
        if isinstance(source, HubSource)
        else model.model_id
        if isinstance(source, LocalSource)
        else source.bucket_uri
    )
