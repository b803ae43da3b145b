"""What can be told of a model without its weights: its configuration, and the headers of its weights, by range."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayllm.config import HubSource, LocalSource, Source
from rayllm.errors import ConfigError, SourceError
from rayllm.sources.faults import UnreachableError
from rayllm.sources.http import Client
from rayllm.sources.hub import HubStore, in_clients_cache
from rayllm.sources.items import Item
from rayllm.sources.local import SCHEME, LocalStore, read_range
from rayllm.sources.node import open_store
from rayllm.sources.selection import needed
from rayllm.sources.store import Store

_CONFIG = "config.json"
_THREADS = 16
# Nearly all headers are shorter, so one request is enough.
_FIRST_READ = 128 * 1024
# safetensors' own limit. Source: https://huggingface.co/docs/safetensors (format)
_LONGEST_HEADER = 100_000_000


@dataclass(frozen=True)
class Inspected:
    """A model as its files describe it.

    `where` names its place; `config` is its config.json; `headers` has, for each tensor, safetensors' `dtype` and
    `shape`; `paths` are those of all its files, and `texts` what stands in those that were asked for; `is_gated` where
    the hub gives it only to accounts that have been granted access.
    """

    where: str
    config: Mapping[str, Any]
    headers: Mapping[str, Mapping[str, Any]]
    paths: frozenset[str] = frozenset()
    texts: Mapping[str, str] = field(default_factory=dict)
    is_gated: bool = False


def inspect(source: Source, texts: Iterable[str] = ()) -> Inspected:
    """Read what a place tells of the model in it; a few hundred kilobytes, however large the model is.

    Args:
        source: the place.
        texts: paths of small files to read as well, where they are there.

    Raises:
        SourceError: it cannot be reached, or something in it is no JSON and no safetensors file.
        ConfigError: it holds no model.
    """
    store, listed = _listed(source)
    items = {item.path: item for item in listed}
    if not items:
        raise SourceError(f"{store.where} holds nothing; check the address.")
    if _CONFIG not in items:
        raise ConfigError(f"{store.where} is no model: it holds no {_CONFIG}.")
    chosen = [items[path] for path in needed(items, store.where, allow_pickle=False, weights=True)]
    reader = _Reader(store)
    try:
        config = reader.json(items[_CONFIG])
        headers = reader.headers(item for item in chosen if item.path.endswith(".safetensors"))
        found = {path: reader.text(items[path]) for path in texts if path in items}
    finally:
        reader.close()
    is_gated = isinstance(store, HubStore) and store.is_gated
    return Inspected(store.where, config, headers, frozenset(items), found, is_gated)


def _listed(source: Source) -> tuple[Store, list[Item]]:
    """The place and its files; where the hub does not answer, its client's cache may do."""
    store = _open(source)
    try:
        return store, store.files()
    except UnreachableError:
        copy = in_clients_cache(source) if isinstance(source, HubSource) else None
        if copy is None:
            raise
        store = _open(LocalSource(path=str(copy)))
        return store, store.files()


def _open(source: Source) -> Store:
    if not isinstance(source, LocalSource):
        return open_store(source)
    folder = Path(source.path).expanduser()
    if not folder.is_dir():
        raise SourceError(f"{folder} is no folder.")
    # The hub's client keeps files as links out of their folder.
    return LocalStore(folder, Path("/"))


class _Reader:
    """Reads parts of a place's files."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._client = Client(_THREADS)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def json(self, item: Item) -> Mapping[str, Any]:
        """A file with a JSON object."""
        return _object(self._read(item, 0, item.size), item.path, self._store.where)

    def text(self, item: Item) -> str:
        """A small file as text."""
        return self._read(item, 0, item.size).decode(errors="replace")

    def headers(self, items: Iterable[Item]) -> dict[str, Mapping[str, Any]]:
        """The tensors of all these files, by name."""
        with ThreadPoolExecutor(_THREADS, "headers") as threads:
            found = list(threads.map(self._header, items))
        return {name: tensor for header in found for name, tensor in header.items() if name != "__metadata__"}

    def _header(self, item: Item) -> Mapping[str, Any]:
        # Source: https://huggingface.co/docs/safetensors (format): the header's length in eight bytes, then the header.
        start = self._read(item, 0, min(_FIRST_READ, item.size))
        length = struct.unpack("<Q", start[:8])[0] if len(start) >= 8 else _LONGEST_HEADER
        if length > min(_LONGEST_HEADER, item.size - 8):
            raise SourceError(f"{self._store.where}: {item.path} is no safetensors file.")
        end = 8 + length
        if end > len(start):
            start += self._read(item, len(start), end)
        return _object(start[8:end], item.path, self._store.where)

    def _read(self, item: Item, start: int, end: int) -> bytes:
        target = self._store.locate(item)
        if target.url.startswith(SCHEME):
            return read_range(target, start, end)
        pieces: list[bytes] = []
        self._client.fetch(
            lambda anew: self._store.locate(item) if anew else target, item, start, end, lambda p, _: pieces.append(p)
        )
        return b"".join(pieces)


def _object(raw: bytes, path: str, where: str) -> Mapping[str, Any]:
    try:
        found = json.loads(raw)
    except ValueError as error:
        raise SourceError(f"{where}: {path} is no JSON: {error}.") from None
    if not isinstance(found, dict):
        raise SourceError(f"{where}: {path} holds no JSON object.")
    return found
