"""Having an adapter on this node: found, fetched at its version, and looked into."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rayllm.config import GenerationConfig
from rayllm.config.load import generation_from
from rayllm.errors import (
    ADAPTER_UNAVAILABLE,
    ConfigError,
    RequestError,
    SourceError,
    UnavailableError,
)
from rayllm.lora.check import CONFIG, WEIGHTS, AdapterLimits, check_adapter
from rayllm.lora.names import AdapterName, no_adapter
from rayllm.lora.place import Place, open_adapter
from rayllm.sources import Progress, UnreachableError, node_cache
from rayllm.sources.download import Limits
from rayllm.sources.entry import Entry
from rayllm.sources.faults import MissingError
from rayllm.sources.items import Snapshot
from rayllm.sources.store import Store

logger = logging.getLogger(__name__)

SETTINGS = "rayllm.yaml"
_SERVED = {CONFIG, WEIGHTS, SETTINGS}
_SELECTION = "adapter"


@dataclass(frozen=True)
class AdapterFiles:
    """An adapter on this node: its folder in the cache, which content it is, and how it wants to be prompted."""

    entry: Entry
    version: str
    generation: GenerationConfig | None

    @property
    def folder(self) -> Path:
        """The folder for the engine; its content never changes."""
        return self.entry.files


class AdapterStore:
    """The adapters of one base model. Its methods block.

    Args:
        base: id of the base model.
        place: where they lie; None where only named ones are served.
        modules: adapters with a place of their own, by name (`lora_config.lora_modules`).
        downloads: how hard a download tries, and how long.
        limits: what the engine takes.
        progress: makes an observer for a download.
    """

    def __init__(
        self,
        base: str,
        place: Place | None,
        modules: Mapping[str, str],
        downloads: Limits,
        limits: AdapterLimits,
        progress: Callable[[], Progress],
    ) -> None:
        self.base = base
        self._place = place
        self._modules = modules
        self._downloads = downloads
        self._limits = limits
        self._progress = progress

    def have(self, name: AdapterName, path: str | None = None) -> AdapterFiles:
        """The adapter as it is now.

        Args:
            name: the adapter.
            path: its own place, where it was loaded from one.

        Raises:
            ModelNotFoundError: there is none of that name.
            RequestError: it is broken, or not for this model; the message names the file.
            UnavailableError: its place is in trouble.
        """
        candidates: list[Store] = []
        try:
            candidates = self._candidates(name, path)
            entry, version = self._fetch(name, candidates)
        except UnreachableError as error:
            entry, version = self._recall(name, candidates, error)
        except SourceError as error:
            raise self._unavailable(name, error) from None
        try:
            check_adapter(name, entry.files, self._limits)
            return AdapterFiles(entry, version, self._settings(name, entry.files))
        except RequestError:
            # Nobody uses what is broken: its room may be had.
            node_cache().release(entry)
            raise

    def holds(self, name: AdapterName) -> bool:
        """Whether there is something by that name, sound or not. Nothing is fetched.

        Raises:
            SourceError: its place is in trouble.
        """
        return any(_holds_something(store) for store in self._candidates(name, None))

    def names(self) -> list[AdapterName]:
        """Every adapter that may be had without a place of its own.

        Raises:
            SourceError: they cannot be listed.
        """
        return self._place.names() if self._place else []

    def _candidates(self, name: AdapterName, path: str | None) -> list[Store]:
        path = path or self._modules.get(name.adapter)
        if path:
            return [open_adapter(path)]
        return self._place.candidates(name) if self._place else []

    def _fetch(self, name: AdapterName, candidates: list[Store]) -> tuple[Entry, str]:
        for store in candidates:
            if _holds_something(store):
                choose = partial(_chosen, name, store)
                entry, snapshot = node_cache().have(store, choose, _SELECTION, self._progress(), self._downloads)
                return entry, snapshot.id
        raise no_adapter(name)

    def _recall(self, name: AdapterName, candidates: list[Store], error: SourceError) -> tuple[Entry, str]:
        for store in candidates:
            if entry := node_cache().recall(store.where, _SELECTION):
                logger.warning("%s. Serving the copy of `%s` on this node.", error.message, name)
                return entry, entry.root.name
        raise self._unavailable(name, error) from None

    def _unavailable(self, name: AdapterName, error: SourceError) -> UnavailableError:
        # Where it comes from is the operator's business.
        logger.warning("The adapter `%s` cannot be fetched: %s", name, error.message)
        return UnavailableError(f"The adapter `{name}` cannot be fetched now.", "model", ADAPTER_UNAVAILABLE, 10)

    def _settings(self, name: AdapterName, folder: Path) -> GenerationConfig | None:
        if not (folder / SETTINGS).is_file():
            return None
        try:
            return generation_from(folder / SETTINGS)
        except ConfigError as error:
            message = f"The adapter `{name}` cannot be used: {error.message.replace(f'{folder}/', '')}"
            raise RequestError(message, "model", "adapter_broken") from None


def _holds_something(store: Store) -> bool:
    try:
        return bool(store.files())
    except MissingError:
        return False


def _chosen(name: AdapterName, store: Store) -> Snapshot:
    """The files of an adapter that serving needs."""
    items = store.files()
    if WEIGHTS not in {item.path for item in items} and any(item.path == "adapter_model.bin" for item in items):
        message = f"The adapter `{name}` cannot be used: it holds only pickled weights; save it as safetensors."
        raise RequestError(message, "model", "adapter_broken")
    return Snapshot(store.where, tuple(item for item in items if item.path in _SERVED), store.commit())
