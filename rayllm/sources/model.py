"""Fetch a model to this node."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from rayllm.config import BucketSource, HubSource, LocalSource, Source
from rayllm.core.errors import ConfigError, SourceError
from rayllm.sources.cache import node_cache
from rayllm.sources.errors import UnreachableError
from rayllm.sources.extras import StoreWithExtras, install
from rayllm.sources.selection import CONFIG, MISTRAL_CONFIG, find_weights, mistral_priority, select_files
from rayllm.sources.stores import Snapshot, open_store
from rayllm.sources.stores.hub import find_in_hub_cache
from rayllm.sources.transfer import DownloadOptions, LoggedProgress, Progress

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Version:
    """Version of a source: the snapshot's id and the hub's commit. Both are empty for a local folder."""

    snapshot: str = ""
    commit: str = ""


@dataclass(frozen=True)
class Fetched:
    """A model on this node: its folder and its version."""

    folder: Path
    version: Version = Version()


def fetch(
    source: Source,
    model_id: str,
    allow_pickle: bool = False,
    weights: bool = True,
    pinned: Version | None = None,
    progress: Progress | None = None,
    in_cache: bool = False,
    arguments: Mapping[str, Any] | None = None,
) -> Fetched:
    """Fetch a model to this node, unless this node has the model already.

    Args:
        model_id: id of the model, for errors.
        allow_pickle: accept a source with pickled weights only.
        weights: false fetches only what a tokenizer needs.
        pinned: version that other replicas serve, and the only version accepted.
        progress: observes the download; logs by default.
        in_cache: never use the hub client's own cache, so that the path is the same on every node.
        arguments: `engine_kwargs`, whose formats decide which weights are fetched.

    Raises:
        SourceError: the model cannot be fetched; the message names the source and the cause.
        ConfigError: weights that may be loaded are missing, or incomplete.
    """
    if isinstance(source, LocalSource):
        fetched = Fetched(Path(source.path).expanduser())
        if not fetched.folder.is_dir():
            raise SourceError(f"model `{model_id}`: model_source {fetched.folder} is not a folder on this node.")
    else:
        progress = progress or LoggedProgress()
        try:
            fetched = _RemoteModel(source, allow_pickle, weights, arguments, pinned, in_cache).fetch(progress)
            if isinstance(source, BucketSource):
                for extra in (extra for extra in source.extra_files if not extra.is_inside):
                    install(extra, source, progress)
        except (ConfigError, SourceError) as error:
            kind = ConfigError if isinstance(error, ConfigError) else SourceError
            raise kind(f"model `{model_id}`: {error.message}") from None
    if weights:
        find_weights(fetched.folder, allow_pickle, model_id, arguments)
    return fetched


def find_cached(source: Source, arguments: Mapping[str, Any] | None = None) -> Path | None:
    """Folder of the copy that `fetch` returns while the store is unreachable; None without a copy."""
    if isinstance(source, LocalSource):
        return None
    copy = _RemoteModel(source, False, True, arguments, None, False).find_cached()
    return copy.folder if copy else None


class _RemoteModel:
    """The files of a source that serving needs, at the pinned version if any."""

    def __init__(
        self,
        source: BucketSource | HubSource,
        allow_pickle: bool,
        weights: bool,
        arguments: Mapping[str, Any] | None,
        pinned: Version | None,
        in_cache: bool,
    ) -> None:
        if isinstance(source, HubSource) and pinned and pinned.commit:
            source = source.model_copy(update={"revision": pinned.commit})
        self._allow_pickle, self._weights, self._arguments, self._pinned = allow_pickle, weights, arguments, pinned
        self._priority = mistral_priority(arguments, in_place=False)
        # The hub client's own cache may hold the repository, fetched by another program.
        self._hub_source = source if isinstance(source, HubSource) and not in_cache else None
        self._store = open_store(source)
        if isinstance(source, BucketSource) and any(extra.is_inside for extra in source.extra_files):
            self._store = StoreWithExtras(self._store, source)
        self._selection = self._selection_name(source)

    def fetch(self, progress: Progress) -> Fetched:
        pinned = self._pinned
        if pinned and (entry := node_cache().acquire(self._store.uri, pinned.snapshot)):
            return Fetched(entry.files, pinned)
        try:
            return self._fetch_current(progress)
        except UnreachableError as error:
            if fetched := self.find_cached():
                logger.warning("%s. Serving the copy on this node.", error.message)
                return fetched
            raise SourceError(f"{error.message}; this node has no complete copy either.") from None

    def _fetch_current(self, progress: Progress) -> Fetched:
        snapshot = self._list_snapshot()
        if self._hub_source and not node_cache().holds(snapshot.uri, snapshot.id):
            source = self._hub_source.model_copy(update={"revision": snapshot.commit})
            folder = find_in_hub_cache(source, [item.path for item in snapshot.items])
            if folder and self._is_usable(folder):
                return Fetched(folder, Version(snapshot.id, snapshot.commit))
        listed = iter([snapshot])
        entry, snapshot = node_cache().fetch(
            self._store,
            lambda: next(listed, None) or self._list_snapshot(),
            self._selection,
            progress,
            DownloadOptions.from_settings(),
        )
        return Fetched(entry.files, Version(snapshot.id, snapshot.commit))

    def _list_snapshot(self) -> Snapshot:
        """List the store and select the files that serving needs."""
        items = self._store.files()
        uri = self._store.uri
        if not items:
            raise SourceError(f"{uri} holds nothing; check the address.")
        listed = (item.path for item in items)
        paths = set(select_files(listed, uri, self._allow_pickle, self._weights, self._priority))
        if isinstance(self._store, StoreWithExtras):
            paths |= self._store.extra_paths
        if self._weights and not paths & {CONFIG, MISTRAL_CONFIG}:
            raise ConfigError(f"{uri} is not a model: it holds no config.json.")
        snapshot = Snapshot(uri, tuple(item for item in items if item.path in paths), self._store.commit)
        if self._pinned and self._pinned.snapshot not in ("", snapshot.id):
            raise SourceError(
                f"{uri} changed since the running replicas loaded it, and replicas of one deployment serve one "
                "version. Redeploy the model, or give every version a source of its own."
            )
        return snapshot

    def find_cached(self) -> Fetched | None:
        """A copy from an earlier fetch by RayLLM or by the hub's client."""
        if self._pinned is None and (entry := node_cache().acquire_latest(self._store.uri, self._selection)):
            return Fetched(entry.files, Version(entry.root.name, entry.commit))
        if self._hub_source:
            folder = find_in_hub_cache(self._hub_source)
            if folder and self._is_usable(folder):
                return Fetched(folder, Version("", folder.name))
        return None

    def _is_usable(self, folder: Path) -> bool:
        """Whether a folder has all weights that vLLM would load, if weights are wanted."""
        if not self._weights:
            return True
        try:
            find_weights(folder, self._allow_pickle, self._store.uri, self._arguments)
        except ConfigError:
            return False
        return True

    def _selection_name(self, source: BucketSource | HubSource) -> str:
        """Name of what is fetched from a store: the kind of files, and the hub's branch or the extra files."""
        kind = "tokenizer" if not self._weights else "any-weights" if self._allow_pickle else "model"
        if self._weights and self._priority != "last":
            kind = f"{kind}-mistral-{self._priority}"
        variant = source.revision if isinstance(source, HubSource) else str(source.extra_files or "")
        return f"{kind}-{sha256(variant.encode()).hexdigest()[:8]}" if variant else kind
