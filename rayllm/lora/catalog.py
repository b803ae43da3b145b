"""Catalogs of a base model's adapters: a folder, a bucket prefix, or an organisation of the hub.

Two layouts: `<catalog>/<base>:<adapter>/` and `<catalog>/<adapter>/`. A base id with a slash is a nested folder.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from rayllm.config import BucketSource, HubSource
from rayllm.core.errors import RequestError
from rayllm.lora.names import AdapterName, parse_name
from rayllm.lora.validation import CONFIG
from rayllm.sources.stores import BucketStore, HubStore, LocalStore, Store
from rayllm.sources.stores.hub import list_adapters


class Catalog(Protocol):
    """Adapters of one base model. Its methods block."""

    def candidates(self, name: AdapterName) -> list[Store]:
        """The stores where the adapter may be; the first with any files wins."""

    def names(self) -> list[AdapterName]:
        """List all adapters.

        Raises:
            SourceError: the catalog cannot be listed.
        """


def open_catalog(path: str, base: str) -> Catalog:
    """Open the catalog at `lora_config.dynamic_lora_loading_path`."""
    if path.startswith("hf://"):
        return _HubCatalog(path.removeprefix("hf://").strip("/"), base)
    if path.startswith(("s3://", "gs://")):
        return _BucketCatalog(BucketStore(BucketSource(bucket_uri=path)), base)
    return _FolderCatalog(Path(path), base)


def open_adapter(path: str) -> Store:
    """Open the store of a single adapter: a local folder, a bucket prefix, or a repository of the hub.

    Raises:
        RequestError: the path is none of these.
    """
    try:
        if not path.isprintable():
            raise ValueError(path)
        if path.startswith(("s3://", "gs://")):
            return BucketStore(BucketSource(bucket_uri=path))
        if path.startswith(("/", ".", "~")):
            # The folder was named explicitly, so its links are followed, such as those in the hub client's cache.
            return LocalStore(Path(path).expanduser(), root=Path("/"))
        return _open_repository(path.removeprefix("hf://"))
    except ValueError:
        message = f"`{path[:200]}` is no folder, no address of a bucket and no repository of the hub."
        raise RequestError(message, "model", "adapter_broken") from None


class _FolderCatalog:
    def __init__(self, root: Path, base: str) -> None:
        self._root = root
        self._base = base

    def candidates(self, name: AdapterName) -> list[Store]:
        return [LocalStore(self._root / folder, self._root) for folder in _layouts(name)]

    def names(self) -> list[AdapterName]:
        # Only as deep as the layouts, since other folders there may be large.
        depth = self._base.count("/")
        configs = [*self._root.glob(f"*/{CONFIG}"), *self._root.glob("*/" * depth + f"*/{CONFIG}")]
        root = self._root.resolve()
        folders = [config.parent for config in configs if config.resolve().is_relative_to(root)]
        return _adapters_in((folder.relative_to(self._root).as_posix() for folder in folders), self._base)


class _BucketCatalog:
    def __init__(self, root: BucketStore, base: str) -> None:
        self._root = root
        self._base = base

    def candidates(self, name: AdapterName) -> list[Store]:
        return [self._root.subfolder(folder) for folder in _layouts(name)]

    def names(self) -> list[AdapterName]:
        paths = [item.path for item in self._root.files()]
        return _adapters_in((p.removesuffix(f"/{CONFIG}") for p in paths if p.endswith(f"/{CONFIG}")), self._base)


class _HubCatalog:
    def __init__(self, organisation: str, base: str) -> None:
        self._organisation = organisation
        self._base = base

    def candidates(self, name: AdapterName) -> list[Store]:
        try:
            return [_open_repository(f"{self._organisation}/{name.adapter}")]
        except ValueError:
            return []

    def names(self) -> list[AdapterName]:
        return _adapters_in(list_adapters(self._organisation), self._base)


def _open_repository(repo_id: str) -> Store:
    """Open a repository of the hub; ValueError if the id is invalid, which the hub's client would retry."""
    from huggingface_hub.utils import validate_repo_id

    validate_repo_id(repo_id)
    return HubStore(HubSource(repo_id=repo_id))


def _layouts(name: AdapterName) -> tuple[str, str]:
    return str(name), name.adapter


def _adapters_in(folders: Iterable[str], base: str) -> list[AdapterName]:
    """The adapters of `base` among the folders of a catalog, sorted."""
    names = {_parse_folder(folder, base) for folder in folders}
    return sorted((name for name in names if name), key=str)


def _parse_folder(folder: str, base: str) -> AdapterName | None:
    name = parse_name(folder, [base])
    return name or (parse_name(f"{base}:{folder}", [base]) if ":" not in folder else None)
