"""Catalogs of a base model's adapters: a folder, a bucket prefix, or an organisation of the hub.

Two layouts: `<catalog>/<base>:<adapter>/` and `<catalog>/<adapter>/`. A base id with a slash is a nested folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rayllm.config import BucketSource, HubSource
from rayllm.core.errors import RequestError
from rayllm.lora.names import AdapterName, parse_name
from rayllm.lora.validation import CONFIG
from rayllm.sources.stores import BucketStore, HubStore, LocalStore, Store
from rayllm.sources.stores.hub import list_adapters


@dataclass(frozen=True)
class Catalog:
    """Adapters of one base model. Its functions block.

    `candidates` returns the stores where an adapter may be: the first with any files wins. `folders` lists what may be
    folders of adapters.
    """

    base: str
    candidates: Callable[[AdapterName], list[Store]]
    folders: Callable[[], Iterable[str]]

    def names(self) -> list[AdapterName]:
        """List all adapters, sorted.

        Raises:
            SourceError: the catalog cannot be listed.
        """
        names = {_parse_folder(folder, self.base) for folder in self.folders()}
        return sorted((name for name in names if name), key=str)


def open_catalog(path: str, base: str) -> Catalog:
    """Open the catalog at `lora_config.dynamic_lora_loading_path`."""
    if path.startswith("hf://"):
        organisation = path.removeprefix("hf://").strip("/")
        return Catalog(base, partial(_repositories, organisation), partial(list_adapters, organisation))
    if path.startswith(("s3://", "gs://")):
        store = BucketStore(BucketSource(bucket_uri=path))
        return Catalog(
            base, lambda name: [store.subfolder(folder) for folder in _layouts(name)], partial(_bucket_folders, store)
        )
    root = Path(path)
    return Catalog(
        base,
        lambda name: [LocalStore(root / folder, root) for folder in _layouts(name)],
        partial(_local_folders, root, base.count("/")),
    )


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


def _local_folders(root: Path, depth: int) -> list[str]:
    """Only as deep as the layouts, since other folders there may be large."""
    configs = [*root.glob(f"*/{CONFIG}"), *root.glob("*/" * depth + f"*/{CONFIG}")]
    inside = [config.parent for config in configs if config.resolve().is_relative_to(root.resolve())]
    return [folder.relative_to(root).as_posix() for folder in inside]


def _bucket_folders(root: BucketStore) -> list[str]:
    paths = [item.path for item in root.files()]
    return [path.removesuffix(f"/{CONFIG}") for path in paths if path.endswith(f"/{CONFIG}")]


def _repositories(organisation: str, name: AdapterName) -> list[Store]:
    try:
        return [_open_repository(f"{organisation}/{name.adapter}")]
    except ValueError:
        return []


def _open_repository(repo_id: str) -> Store:
    """Open a repository of the hub; ValueError if the id is invalid, which the hub's client would retry."""
    from huggingface_hub.utils import validate_repo_id

    validate_repo_id(repo_id)
    return HubStore(HubSource(repo_id=repo_id))


def _layouts(name: AdapterName) -> tuple[str, str]:
    return str(name), name.adapter


def _parse_folder(folder: str, base: str) -> AdapterName | None:
    name = parse_name(folder, [base])
    return name or (parse_name(f"{base}:{folder}", [base]) if ":" not in folder else None)
