"""Where the adapters of a base model lie: a folder, a bucket, or an organisation on the hub.

Two layouts: `<place>/<base>:<adapter>/` and `<place>/<adapter>/`. A base id with a slash is a folder in a folder.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from rayllm.config import BucketSource, HubSource
from rayllm.errors import RequestError
from rayllm.lora.check import CONFIG
from rayllm.lora.names import AdapterName, parse_name
from rayllm.sources.bucket import BucketStore
from rayllm.sources.local import LocalStore
from rayllm.sources.node import open_bucket, open_store
from rayllm.sources.store import Store


class Place(Protocol):
    """A place of adapters. Its methods block."""

    def candidates(self, name: AdapterName) -> list[Store]:
        """Where the adapter may be, the first that holds something counts."""

    def names(self) -> list[AdapterName]:
        """Every adapter there is.

        Raises:
            SourceError: the place cannot be listed.
        """


def open_place(path: str, base: str) -> Place:
    """The place that `lora_config.dynamic_lora_loading_path` means."""
    if path.startswith("hf://"):
        return _Organisation(path.removeprefix("hf://").strip("/"), base)
    if path.startswith(("s3://", "gs://")):
        return _Bucket(open_bucket(BucketSource(bucket_uri=path)), base)
    return _Folder(Path(path), base)


def open_adapter(path: str) -> Store:
    """The place of one adapter: a local folder, a bucket's, or a repository of the hub.

    Raises:
        RequestError: it is none of these.
    """
    try:
        if not path.isprintable():
            raise ValueError(path)
        if path.startswith(("s3://", "gs://")):
            return open_store(BucketSource(bucket_uri=path))
        if path.startswith(("/", ".", "~")):
            # Whoever names a folder may also mean where its links lead, as those of the hub client's cache do.
            return LocalStore(Path(path).expanduser(), root=Path("/"))
        return _repository(path.removeprefix("hf://"))
    except ValueError:
        message = f"`{path[:200]}` is no folder, no address of a bucket and no repository of the hub."
        raise RequestError(message, "model", "adapter_broken") from None


class _Folder:
    def __init__(self, root: Path, base: str) -> None:
        self._root = root
        self._base = base

    def candidates(self, name: AdapterName) -> list[Store]:
        return [LocalStore(self._root / folder, self._root) for folder in _layouts(name)]

    def names(self) -> list[AdapterName]:
        # No deeper than the layouts go: there may be large folders beside them.
        depth = self._base.count("/")
        configs = [*self._root.glob(f"*/{CONFIG}"), *self._root.glob("*/" * depth + f"*/{CONFIG}")]
        root = self._root.resolve()
        folders = [config.parent for config in configs if config.resolve().is_relative_to(root)]
        return _named((folder.relative_to(self._root).as_posix() for folder in folders), self._base)


class _Bucket:
    def __init__(self, root: BucketStore, base: str) -> None:
        self._root = root
        self._base = base

    def candidates(self, name: AdapterName) -> list[Store]:
        return [self._root.below(folder) for folder in _layouts(name)]

    def names(self) -> list[AdapterName]:
        paths = [item.path for item in self._root.files()]
        return _named((p.removesuffix(f"/{CONFIG}") for p in paths if p.endswith(f"/{CONFIG}")), self._base)


class _Organisation:
    def __init__(self, organisation: str, base: str) -> None:
        self._organisation = organisation
        self._base = base

    def candidates(self, name: AdapterName) -> list[Store]:
        try:
            return [_repository(f"{self._organisation}/{name.adapter}")]
        except ValueError:
            return []

    def names(self) -> list[AdapterName]:
        from rayllm.sources.hub import adapters_of

        return _named(adapters_of(self._organisation), self._base)


def _repository(repo_id: str) -> Store:
    """Raises ValueError for what cannot be one; the hub's client takes that for trouble, and tries again and again."""
    from huggingface_hub.utils import validate_repo_id

    validate_repo_id(repo_id)
    return open_store(HubSource(repo_id=repo_id))


def _layouts(name: AdapterName) -> tuple[str, str]:
    return str(name), name.adapter


def _named(folders: Iterable[str], base: str) -> list[AdapterName]:
    """The adapters that folders at a place are, of those that are this base's."""
    found = {_name(folder, base) for folder in folders}
    return sorted((name for name in found if name), key=str)


def _name(folder: str, base: str) -> AdapterName | None:
    name = parse_name(folder, [base])
    return name or (parse_name(f"{base}:{folder}", [base]) if ":" not in folder else None)
