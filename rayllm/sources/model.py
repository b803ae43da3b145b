"""Having a model on this node."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from rayllm.config import BucketSource, HubSource, LocalSource, Source
from rayllm.errors import ConfigError, SourceError
from rayllm.sources.extras import WithExtras, put
from rayllm.sources.faults import UnreachableError
from rayllm.sources.hub import in_clients_cache
from rayllm.sources.items import Snapshot
from rayllm.sources.node import limits, node_cache, open_store
from rayllm.sources.progress import LoggedProgress, Progress
from rayllm.sources.selection import find_weights, needed
from rayllm.sources.store import Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Version:
    """Which content of a source is meant: the snapshot's id, and the hub's commit. Both empty for a local folder."""

    snapshot: str = ""
    commit: str = ""


@dataclass(frozen=True)
class Fetched:
    """A model on this node: its folder, and which content it is."""

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
) -> Fetched:
    """A local folder that holds the model, fetched first where it is elsewhere.

    Args:
        source: where it comes from.
        model_id: the model, for errors.
        allow_pickle: accept a source that holds only pickled weights.
        weights: false fetches only what a tokenizer needs.
        pinned: the content that other replicas serve; no other will do.
        progress: told how far it is; by default the log is.
        in_cache: have it in our own cache, where it lies in the same folder on every node.

    Raises:
        SourceError: it cannot be had; the message names the source and the cause.
        ConfigError: it holds no weights that may be loaded, or not all of them.
    """
    fetched = _fetch(source, model_id, allow_pickle, weights, pinned, progress or LoggedProgress(), in_cache)
    if weights:
        find_weights(fetched.folder, allow_pickle, model_id)
    return fetched


def _fetch(
    source: Source,
    model_id: str,
    allow_pickle: bool,
    weights: bool,
    pinned: Version | None,
    progress: Progress,
    in_cache: bool,
) -> Fetched:
    if isinstance(source, LocalSource):
        folder = Path(source.path).expanduser()
        if not folder.is_dir():
            raise SourceError(f"model `{model_id}`: model_source {folder} is no folder on this node.")
        return Fetched(folder)
    try:
        fetched = _Selected(source, allow_pickle, weights, pinned, in_cache).fetch(progress)
        if isinstance(source, BucketSource):
            for extra in source.extra_files:
                if not extra.is_inside:
                    put(extra, source, progress)
    except (ConfigError, SourceError) as error:
        kind = ConfigError if isinstance(error, ConfigError) else SourceError
        raise kind(f"model `{model_id}`: {error.message}") from None
    return fetched


class _Selected:
    """What serving needs of one source, at one version if one is pinned."""

    def __init__(
        self,
        source: BucketSource | HubSource,
        allow_pickle: bool,
        weights: bool,
        pinned: Version | None,
        in_cache: bool,
    ) -> None:
        if isinstance(source, HubSource) and pinned and pinned.commit:
            source = source.model_copy(update={"revision": pinned.commit})
        self._allow_pickle = allow_pickle
        self._weights = weights
        self._pinned = pinned
        self._elsewhere = source if isinstance(source, HubSource) and not in_cache else None
        self._store = _store(source)
        self._name = _name(source, allow_pickle, weights)

    def fetch(self, progress: Progress) -> Fetched:
        pinned = self._pinned
        if pinned and (found := node_cache().find(self._store.where, pinned.snapshot)):
            return Fetched(found.files, pinned)
        try:
            return self._fetch_anew(progress)
        except UnreachableError as error:
            if fetched := self._from_before():
                logger.warning("%s. Serving the copy on this node.", error.message)
                return fetched
            raise SourceError(f"{error.message}; this node has no complete copy either.") from None

    def _fetch_anew(self, progress: Progress) -> Fetched:
        snapshot = self._choose()
        version = Version(snapshot.id, snapshot.commit)
        # The hub client's own cache may hold it, from other programs.
        if self._elsewhere and not node_cache().find(snapshot.where, snapshot.id):
            source = self._elsewhere.model_copy(update={"revision": snapshot.commit})
            if theirs := in_clients_cache(source, [item.path for item in snapshot.items]):
                return Fetched(theirs, version)
        listed = iter([snapshot])
        entry, snapshot = node_cache().have(
            self._store, lambda: next(listed, None) or self._choose(), self._name, progress, limits()
        )
        return Fetched(entry.files, Version(snapshot.id, snapshot.commit))

    def _choose(self) -> Snapshot:
        """The place as it is now, but for what serving does not need."""
        items = self._store.files()
        if not items:
            raise SourceError(f"{self._store.where} holds nothing; check the address.")
        wanted = set(needed((item.path for item in items), self._store.where, self._allow_pickle, self._weights))
        if isinstance(self._store, WithExtras):
            # What is asked for by name is needed, whatever it is.
            wanted |= self._store.extra_paths
        if self._weights and not wanted & {"config.json", "params.json"}:
            raise ConfigError(f"{self._store.where} is no model: it holds no config.json.")
        chosen = tuple(item for item in items if item.path in wanted)
        snapshot = Snapshot(self._store.where, chosen, self._store.commit())
        if self._pinned and self._pinned.snapshot not in ("", snapshot.id):
            raise SourceError(
                f"{self._store.where} changed since the running replicas loaded it, and replicas of one deployment "
                "serve one version. Deploy the model anew, or give every version an address of its own."
            )
        return snapshot

    def _from_before(self) -> Fetched | None:
        """What this node has of the place from before."""
        if self._pinned is None and (entry := node_cache().recall(self._store.where, self._name)):
            return Fetched(entry.files, Version(entry.root.name, entry.commit))
        if self._elsewhere:
            folder = in_clients_cache(self._elsewhere)
            if folder and (not self._weights or self._is_complete(folder)):
                return Fetched(folder, Version("", folder.name))
        return None

    def _is_complete(self, folder: Path) -> bool:
        """Whether all of a model is in a folder that another program filled."""
        try:
            find_weights(folder, self._allow_pickle, self._store.where)
        except ConfigError:
            return False
        return True


def _store(source: BucketSource | HubSource) -> Store:
    if isinstance(source, BucketSource) and any(extra.is_inside for extra in source.extra_files):
        return WithExtras(open_store(source), source)
    return open_store(source)


def _name(source: BucketSource | HubSource, allow_pickle: bool, weights: bool) -> str:
    """Names the choice among a place's files; a branch of the hub is a choice as well."""
    kind = "tokenizer" if not weights else "any-weights" if allow_pickle else "model"
    asked = source.revision if isinstance(source, HubSource) else str(source.extra_files or "")
    return f"{kind}-{sha256(asked.encode()).hexdigest()[:8]}" if asked else kind
