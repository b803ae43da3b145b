"""Fetches adapters to this node, and validates the files."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rayllm.config import GenerationConfig
from rayllm.config.load import generation_from
from rayllm.core.errors import ADAPTER_UNAVAILABLE, ConfigError, RequestError, SourceError, UnavailableError
from rayllm.lora.adapter import Adapter, adapter_not_found
from rayllm.lora.catalog import Catalog, open_source
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
    """The files of an adapter on this node.

    Attributes:
        entry: the cache entry, which whoever fetched the adapter releases.
        version: changes with the content.
        generation: the settings that the adapter was published with, if any.
    """

    entry: Entry
    version: str
    generation: GenerationConfig | None

    @property
    def folder(self) -> Path:
        """The folder for the engine to load. Its content never changes."""
        return self.entry.files


@dataclass(frozen=True)
class AdapterStore:
    """The adapters of one base model. All methods block.

    Attributes:
        base: id of the base model.
        catalog: None if only `modules` are served.
        modules: sources of the adapters in `lora_config.lora_modules`, by name.
        options: how adapters are downloaded.
        max_rank: the highest rank that the engine takes.
        progress: creates the observer of a download.
    """

    base: str
    catalog: Catalog | None
    modules: Mapping[str, str]
    options: DownloadOptions
    max_rank: int
    progress: Callable[[], Progress]

    def fetch(self, adapter: Adapter) -> AdapterFiles:
        """Fetch the current version of an adapter. The caller releases its cache entry.

        Raises:
            ModelNotFoundError: the adapter does not exist.
            RequestError: the adapter is broken; the message names the file.
            UnavailableError: the adapter's store is down.
        """
        candidates: list[Store] = []
        try:
            candidates = self._candidates(adapter)
            entry, version = self._fetch(adapter, candidates)
        except UnreachableError as error:
            entry, version = self._find_cached(adapter, candidates, error)
        except SourceError as error:
            raise self._unavailable(adapter, error) from None
        try:
            validate_adapter(adapter, entry.files, self.max_rank)
            return AdapterFiles(entry, version, self._read_settings(adapter, entry.files))
        except RequestError:
            # A broken adapter need not stay in the cache.
            node_cache().release(entry)
            raise

    def fetch_version(self, adapter: Adapter, version: str) -> None:
        """Fetch an adapter at the version of another node. Raises as `fetch`, and UnavailableError after a change."""
        files = self.fetch(adapter)
        node_cache().release(files.entry)
        if files.version != version:
            raise self._unavailable(adapter, SourceError("it is changing now"))

    def exists(self, adapter: Adapter) -> bool:
        """Whether there are files for an adapter, valid or not. Raises SourceError if the adapter's store is down."""
        return any(_has_files(store) for store in self._candidates(adapter))

    def adapters(self) -> list[Adapter]:
        """List the catalog's adapters. Raises SourceError if the catalog cannot be listed."""
        return self.catalog.adapters() if self.catalog else []

    def _candidates(self, adapter: Adapter) -> list[Store]:
        if source := adapter.source or self.modules.get(adapter.name):
            return [open_source(source)]
        return self.catalog.candidates(adapter) if self.catalog else []

    def _fetch(self, adapter: Adapter, candidates: list[Store]) -> tuple[Entry, str]:
        for store in candidates:
            if _has_files(store):
                list_snapshot = partial(_list_snapshot, adapter, store)
                entry, snapshot = node_cache().fetch(store, list_snapshot, _SELECTION, self.progress(), self.options)
                return entry, snapshot.id
        raise adapter_not_found(adapter)

    def _find_cached(self, adapter: Adapter, candidates: list[Store], error: SourceError) -> tuple[Entry, str]:
        for store in candidates:
            if entry := node_cache().acquire_latest(store.uri, _SELECTION):
                logger.warning("%s. Serving the copy of `%s` on this node.", error.message, adapter)
                return entry, entry.root.name
        raise self._unavailable(adapter, error) from None

    def _unavailable(self, adapter: Adapter, error: SourceError) -> UnavailableError:
        # Clients are not shown where adapters are stored.
        logger.warning("The adapter `%s` cannot be fetched: %s", adapter, error.message)
        return UnavailableError(f"The adapter `{adapter}` cannot be fetched now.", "model", ADAPTER_UNAVAILABLE, 10)

    def _read_settings(self, adapter: Adapter, folder: Path) -> GenerationConfig | None:
        if not (folder / SETTINGS).is_file():
            return None
        try:
            return generation_from(folder / SETTINGS)
        except ConfigError as error:
            message = f"The adapter `{adapter}` cannot be used: {error.message.replace(f'{folder}/', '')}"
            raise RequestError(message, "model", "adapter_broken") from None


def _has_files(store: Store) -> bool:
    try:
        return bool(store.files())
    except MissingError:
        return False


def _list_snapshot(adapter: Adapter, store: Store) -> Snapshot:
    items = store.files()
    if WEIGHTS not in {item.path for item in items} and any(item.path == "adapter_model.bin" for item in items):
        message = f"The adapter `{adapter}` cannot be used: it has only pickled weights; save it as safetensors."
        raise RequestError(message, "model", "adapter_broken")
    return Snapshot(store.uri, tuple(item for item in items if item.path in _FILES), store.commit)
