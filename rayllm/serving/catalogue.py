"""The models behind one router: which name means which, and what is told about them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NoReturn

from rayllm.config import AppConfig, HubSource, LocalSource, ModelConfig
from rayllm.errors import ModelNotFoundError
from rayllm.lora import AdapterFolder, parse_name

OWNER = "rayllm"


class Catalogue:
    """Names and cards of the models of one application."""

    def __init__(self, config: AppConfig) -> None:
        self._models = {model.model_id: model for model in config.models}
        self._aliases = dict(config.router.model_aliases)
        self._fallbacks = config.router.fallbacks
        self._created = int(time.time())
        self._folders = {
            model.model_id: AdapterFolder(Path(model.lora_config.dynamic_lora_loading_path), model.model_id)
            for model in config.models
            if model.lora_config and model.lora_config.dynamic_lora_loading_path
        }
        self._max_model_len = {model.model_id: model.max_model_len for model in config.models}
        self._described: set[str] = set()

    @property
    def names(self) -> list[str]:
        """Every name that a client may write in `model`."""
        return [*self._models, *self._aliases]

    def adapters(self) -> list[str]:
        """Names of the adapters that lie in the models' folders now. Reads the disk."""
        return [str(name) for folder in self._folders.values() for name in folder.names()]

    @property
    def models(self) -> list[ModelConfig]:
        """The models."""
        return list(self._models.values())

    def find(self, name: str) -> str:
        """The id of the model that `name` means; of an adapter's name, the base's.

        Raises:
            ModelNotFoundError: no model has that name; the message lists those there are.
        """
        model_id = self._aliases.get(name, name)
        adapter = None if model_id in self._models else parse_name(name, self._folders)
        if adapter:
            return adapter.base
        if model_id not in self._models:
            self.refuse(name)
        return model_id

    def refuse(self, name: str) -> NoReturn:
        """Raise the error for a name that means no model; its message lists those there are."""
        known = ", ".join(f"`{known}`" for known in self.names[:20])
        raise ModelNotFoundError(f"The model `{name[:200]}` does not exist. Models here: {known}.", "model")

    def candidates(self, model_id: str) -> tuple[str, ...]:
        """The model and, in turn, those tried when it has no room."""
        return (model_id, *self._fallbacks.get(model_id, ()))

    def knows(self, model_id: str) -> bool:
        """Whether a replica has described the model."""
        return model_id in self._described

    def learn(self, model_id: str, description: dict[str, Any]) -> None:
        """Take in what a replica says about its model."""
        self._max_model_len[model_id] = description["max_model_len"]
        self._described.add(model_id)

    def card(self, name: str) -> dict[str, Any]:
        """The model object of `GET /v1/models/{id}`, with vLLM's additions `root`, `parent` and `max_model_len`.

        Raises:
            ModelNotFoundError: no model has that name.
        """
        model_id = self.find(name)
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
