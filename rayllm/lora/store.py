"""Fetches adapters to this node and validates them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rayllm.config import GenerationConfig
from rayllm.config.load import generation_from
from rayllm.core.errors import ADAPTER_UNAVAILABLE, ConfigError, RequestError, SourceError, UnavailableError
from rayllm.lora.catalog import Catalog, open_adapter
from rayllm.lora.names import AdapterName, adapter_not_found
from rayllm.lora.validation import CONFIG, WEIGHTS, validate_adapter
from rayllm.sources import DownloadOptions, Progress, UnreachableError, node_cache
from rayllm.sources.cache import Entry
from rayllm.sources.errors import MissingError
from rayllm.sources.stores import Snapshot, Store

logger = logging.getLogger(__name__)

SETTINGS = "rayllm.yaml"
_FILES = {CONFIG, WEIGHTS, SETTINGS}
_SELECTION = "adapter"


@dataclass(frozen=True)
class AdapterFiles:
    """An adapter on this node: its cache entry, its version, and the settings it was published with."""

    entry: Entry
    version: str
    generation: GenerationConfig | None

    @property
    def folder(self) -> Path:
        """The folder for the engine to load. Its content never changes."""
        return self.entry.files


@dataclass(frozen=True)
class AdapterStore:
    """The adapters of one base model. Its methods block.

    The catalog is None if only `modules` are served: adapters with a source of their own, by name
    (`lora_config.lora_modules`). The engine takes ranks up to `max_rank`; `progress` creates the observer of a
    download.
    """

    base: str
    catalog: Catalog | None
    modules: Mapping[str, str]
    options: DownloadOptions
    max_rank: int
    progress: Callable[[], Progress]

    def fetch(self, name: AdapterName, path: str | None = None) -> AdapterFiles:
        """Fetch the current version of an adapter, from `path` if an administrator loaded it from there.

        The caller releases its cache entry.

        Raises:
            ModelNotFoundError: it does not exist.
            RequestError: it is broken; the message names the file.
            UnavailableError: its store is down.
        """
        candidates: list[Store] = []
        try:
            candidates = self._candidates(name, path)
            entry, version = self._fetch(name, candidates)
        except UnreachableError as error:
            entry, version = self._find_cached(name, candidates, error)
        except SourceError as error:
            raise self._unavailable(name, error) from None
        try:
            validate_adapter(name, entry.files, self.max_rank)
            return AdapterFiles(entry, version, self._read_settings(name, entry.files))
        except RequestError:
            # A broken adapter need not stay in the cache.
            node_cache().release(entry)
            raise

    def exists(self, name: AdapterName) -> bool:
        """Whether there are files for an adapter, valid or not. Downloads nothing.

        Raises:
            SourceError: its store is down.
        """
        return any(_has_files(store) for store in self._candidates(name, None))

    def names(self) -> list[AdapterName]:
        """List the catalog's adapters.

        Raises:
            SourceError: the catalog cannot be listed.
        """
        return self.catalog.names() if self.catalog else []

    def _candidates(self, name: AdapterName, path: str | None) -> list[Store]:
        path = path or self.modules.get(name.adapter)
        if path:
            return [open_adapter(path)]
        return self.catalog.candidates(name) if self.catalog else []

    def _fetch(self, name: AdapterName, candidates: list[Store]) -> tuple[Entry, str]:
        for store in candidates:
            if _has_files(store):
                list_snapshot = partial(_list_snapshot, name, store)
                entry, snapshot = node_cache().fetch(store, list_snapshot, _SELECTION, self.progress(), self.options)
                return entry, snapshot.id
        raise adapter_not_found(name)

    def _find_cached(self, name: AdapterName, candidates: list[Store], error: SourceError) -> tuple[Entry, str]:
        for store in candidates:
            if entry := node_cache().acquire_latest(store.uri, _SELECTION):
                logger.warning("%s. Serving the copy of `%s` on this node.", error.message, name)
                return entry, entry.root.name
        raise self._unavailable(name, error) from None

    def _unavailable(self, name: AdapterName, error: SourceError) -> UnavailableError:
        # Clients are not shown where adapters are stored.
        logger.warning("The adapter `%s` cannot be fetched: %s", name, error.message)
        return UnavailableError(f"The adapter `{name}` cannot be fetched now.", "model", ADAPTER_UNAVAILABLE, 10)

    def _read_settings(self, name: AdapterName, folder: Path) -> GenerationConfig | None:
        if not (folder / SETTINGS).is_file():
            return None
        try:
            return generation_from(folder / SETTINGS)
        except ConfigError as error:
            message = f"The adapter `{name}` cannot be used: {error.message.replace(f'{folder}/', '')}"
            raise RequestError(message, "model", "adapter_broken") from None


def _has_files(store: Store) -> bool:
    try:
        return bool(store.files())
    except MissingError:
        return False


def _list_snapshot(name: AdapterName, store: Store) -> Snapshot:
    """List the files of an adapter that serving needs."""
    items = store.files()
    if WEIGHTS not in {item.path for item in items} and any(item.path == "adapter_model.bin" for item in items):
        message = f"The adapter `{name}` cannot be used: it holds only pickled weights; save it as safetensors."
        raise RequestError(message, "model", "adapter_broken")
    return Snapshot(store.uri, tuple(item for item in items if item.path in _FILES), store.commit)
