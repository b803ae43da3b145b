"""Inspect a model without downloading its weights: its configuration, and the headers of its weights by range."""

import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayllm.config import LocalSource, Source
from rayllm.core.errors import ConfigError, SourceError
from rayllm.sources.errors import UnreachableError
from rayllm.sources.mistral_format import as_config, usual_names
from rayllm.sources.model import find_cached
from rayllm.sources.safetensors import Tensor, read_header
from rayllm.sources.selection import CONFIG, MISTRAL_CONFIG, config_path, is_mistral, mistral_priority, select_files
from rayllm.sources.stores import HubStore, Item, LocalStore, Store, open_store
from rayllm.sources.stores.local import SCHEME, read_range
from rayllm.sources.transfer import DownloadOptions
from rayllm.sources.transfer.ranges import RangeClient

_THREADS = 16


@dataclass(frozen=True)
class ModelInfo:
    """What the files of a model say.

    Attributes:
        uri: URI of the store.
        config: config.json, or what vLLM makes of params.json.
        tensors: tensors of all weights that vLLM loads, by their names in transformers.
        paths: paths of all files.
        texts: contents of the small files requested, by path.
        is_gated: whether the hub restricts access.
    """

    uri: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    paths: frozenset[str] = frozenset()
    texts: Mapping[str, str] = field(default_factory=dict)
    is_gated: bool = False


def inspect_model(source: Source, texts: Iterable[str] = (), arguments: Mapping[str, Any] | None = None) -> ModelInfo:
    """Read a model's configuration and tensor headers: a few hundred kilobytes, however large the model is.

    Args:
        texts: paths of small files to read as well, if they exist.
        arguments: `engine_kwargs`, whose formats decide which configuration and weights are read.

    Raises:
        SourceError: the source cannot be reached, or a file is not valid JSON or safetensors.
        ConfigError: the source is not a model.
    """
    store, files = _list(source, arguments)
    items = {item.path: item for item in files}
    if not items:
        raise SourceError(f"{store.uri} holds nothing; check the address.")
    if not items.keys() & {CONFIG, MISTRAL_CONFIG}:
        raise ConfigError(f"{store.uri} is not a model: it holds no config.json.")
    priority = mistral_priority(arguments, in_place=isinstance(store, LocalStore))
    selected = select_files(items, store.uri, allow_pickle=False, weights=True, priority=priority)
    weights = [path for path in selected if path.endswith(".safetensors")]
    described_by = config_path(items, weights, arguments)
    if described_by not in items:
        raise ConfigError(f"{store.uri} is not a model: it holds no {described_by}.")
    with closing(_Reader(store)) as reader:
        config = reader.json(items[CONFIG]) if CONFIG in items else {}
        if described_by == MISTRAL_CONFIG:
            config = as_config(reader.json(items[MISTRAL_CONFIG]), config)
        tensors = reader.tensors(items[path] for path in weights)
        tensors = usual_names(tensors) if is_mistral(weights) else tensors
        contents = {path: reader.text(items[path]) for path in texts if path in items}
    is_gated = isinstance(store, HubStore) and store.is_gated
    return ModelInfo(store.uri, config, tensors, frozenset(items), contents, is_gated)


def _list(source: Source, arguments: Mapping[str, Any] | None) -> tuple[Store, list[Item]]:
    """List a source's store, or the copy on this node if the store is unreachable."""
    store = _open(source)
    try:
        return store, store.files()
    except UnreachableError:
        folder = find_cached(source, arguments)
        if folder is None:
            raise
        store = _open(LocalSource(path=str(folder)))
        return store, store.files()


def _open(source: Source) -> Store:
    if not isinstance(source, LocalSource):
        return open_store(source)
    folder = Path(source.path).expanduser()
    if not folder.is_dir():
        raise SourceError(f"{folder} is not a folder.")
    # Snapshots of the hub's client are links to another folder.
    return LocalStore(folder, Path("/"))


class _Reader:
    """Reads ranges of a store's files."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._client = RangeClient(DownloadOptions(_THREADS))

    def close(self) -> None:
        self._client.close()

    def json(self, item: Item) -> Mapping[str, Any]:
        try:
            value = json.loads(self._read(item, 0, item.size))
        except ValueError as error:
            raise SourceError(f"{self._store.uri}: {item.path} is not JSON: {error}.") from None
        if not isinstance(value, dict):
            raise SourceError(f"{self._store.uri}: {item.path} is not a JSON object.")
        return value

    def text(self, item: Item) -> str:
        return self._read(item, 0, item.size).decode(errors="replace")

    def tensors(self, items: Iterable[Item]) -> dict[str, Tensor]:
        with ThreadPoolExecutor(_THREADS, "headers") as threads:
            headers = list(threads.map(self._header, items))
        return {name: tensor for header in headers for name, tensor in header.items()}

    def _header(self, item: Item) -> dict[str, Tensor]:
        try:
            return read_header(lambda start, end: self._read(item, start, end), item.size)
        except ValueError as error:
            raise SourceError(f"{self._store.uri}: {item.path} cannot be used: {error}.") from None

    def _read(self, item: Item, start: int, end: int) -> bytes:
        location = self._store.locate(item)
        if location.url.startswith(SCHEME):
            return read_range(location, start, end)
        chunks: list[bytes] = []
        self._client.fetch(
            lambda refresh: self._store.locate(item) if refresh else location,
            item,
            start,
            end,
            lambda chunk, _: chunks.append(chunk),
        )
        return b"".join(chunks)
