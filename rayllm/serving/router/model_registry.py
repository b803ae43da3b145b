"""The models behind one router: which name means which, and what clients are told about them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import quote

from rayllm import headers
from rayllm.config import AppConfig, HubSource, LocalSource, ModelConfig
from rayllm.errors import ModelNotFoundError
from rayllm.lora import AdapterName, parse_name
from rayllm.serving.cluster.state.adapter_registry import LoadedAdapter

OWNER = "rayllm"


@dataclass(frozen=True)
class ResolvedModel:
    """What a name means: a model, perhaps with an adapter ("" for none), which may have a place of its own."""

    model_id: str
    adapter: str = ""
    path: str = ""

    def headers(self, name: str) -> dict[str, str]:
        """The headers that tell a replica."""
        fields = {headers.MODEL: name}
        if self.adapter:
            fields[headers.ADAPTER] = self.adapter
        if self.path:
            fields[headers.ADAPTER_PATH] = quote(self.path)
        return fields


class ModelRegistry:
    """Names and cards of the models of one application."""

    def __init__(self, config: AppConfig) -> None:
        self._models = {model.model_id: model for model in config.models}
        self._aliases = dict(config.router.model_aliases)
        self._fallbacks = config.router.fallbacks
        self._created = int(time.time())
        self._adaptable = [model.model_id for model in config.models if model.lora_config]
        self._modules = {
            module.name: AdapterName(model.model_id, module.name)
            for model in config.models
            for module in (model.lora_config.lora_modules if model.lora_config else ())
        }
        self._max_model_len = {model.model_id: model.max_model_len for model in config.models}
        self._described: set[str] = set()

    @property
    def names(self) -> list[str]:
        """Every name that a client may write in `model`."""
        return [*self._models, *self._aliases]

    @property
    def adaptable(self) -> list[str]:
        """Ids of the models that take adapters."""
        return self._adaptable

    @property
    def modules(self) -> list[AdapterName]:
        """The adapters that the configuration names."""
        return list(self._modules.values())

    def parse(self, name: str) -> AdapterName | None:
        """What `name` means as an adapter of one of the models, or None where it means none."""
        return parse_name(name, self._adaptable)

    @property
    def models(self) -> list[ModelConfig]:
        """The models."""
        return list(self._models.values())

    def find(self, name: str, loaded: Mapping[str, LoadedAdapter] | None = None) -> ResolvedModel:
        """What `name` means.

        Args:
            name: an id, an alias, an adapter's name, or that of an adapter that was loaded.
            loaded: the adapters that were loaded.

        Raises:
            ModelNotFoundError: it means nothing; the message lists the models.
        """
        model_id = self._aliases.get(name, name)
        if model_id in self._models:
            return ResolvedModel(model_id)
        loaded = loaded or {}
        if found := loaded.get(name):
            return ResolvedModel(found.base, found.adapter, found.path)
        adapter = self.parse(name) or self._modules.get(name)
        if adapter and (found := loaded.get(adapter.adapter)) and found.base == adapter.base:
            # In the engine an adapter goes by its base's name and its own, even if it was loaded by its own alone.
            return ResolvedModel(found.base, found.adapter, found.path)
        if adapter is None:
            self.refuse(name)
        return ResolvedModel(adapter.base, adapter.adapter)

    def refuse(self, name: str) -> NoReturn:
        """Raise the error for a name that means no model; its message lists those there are."""
        known = ", ".join(f"`{known}`" for known in self.names[:20])
        raise ModelNotFoundError(f"The model `{name[:200]}` does not exist. Models here: {known}.", "model")

    def fallbacks(self, model_id: str) -> tuple[str, ...]:
        """The models tried in turn when this one has no room."""
        return self._fallbacks.get(model_id, ())

    def knows(self, model_id: str) -> bool:
        """Whether a replica has described the model."""
        return model_id in self._described

    def learn(self, model_id: str, description: dict[str, Any]) -> None:
        """Take in what a replica says about its model."""
        self._max_model_len[model_id] = description["max_model_len"]
        self._described.add(model_id)

    def card(self, name: str, model_id: str) -> dict[str, Any]:
        """The model object of `GET /v1/models/{id}`, with vLLM's additions `root`, `parent` and `max_model_len`."""
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": OWNER,
            "root": _root(self._models[model_id]),
            # An adapter's parent is its base.
            "parent": None if name in self.names else model_id,
            "max_model_len": self._max_model_len[model_id],
        }


def _root(model: ModelConfig) -> str:
    """Where the weights come from; a path of this cluster's disks is nobody's business but its own."""
    source = model.source
    return (
        source.repo_id
        if isinstance(source, HubSource)
        else model.model_id
        if isinstance(source, LocalSource)
        else source.bucket_uri
    )
