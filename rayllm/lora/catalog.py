"""Catalogs of a base model's adapters: a folder, a bucket prefix, or an organisation of the hub.

Two layouts: `<catalog>/<base>:<adapter>/` and `<catalog>/<adapter>/`. A base id with a slash is a nested folder.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rayllm.config import BucketSource, HubSource
from rayllm.core.errors import RequestError
from rayllm.lora.adapter import Adapter, parse_adapter
from rayllm.lora.validation import CONFIG
from rayllm.sources.stores import BucketStore, HubStore, LocalStore, Store
from rayllm.sources.stores.hub import list_adapters


@dataclass(frozen=True)
class Catalog:
    """The catalog of one base model's adapters. All calls block.

    Attributes:
        base: id of the base model.
        candidates: returns the stores where an adapter may be; the first with any files wins.
        folders: lists what may be folders of adapters.
    """

    base: str
    candidates: Callable[[Adapter], list[Store]]
    folders: Callable[[], Iterable[str]]

    def adapters(self) -> list[Adapter]:
        """List all adapters, sorted by name. Raises SourceError if the catalog cannot be listed."""
        adapters = {_parse_folder(folder, self.base) for folder in self.folders()}
        return sorted((adapter for adapter in adapters if adapter), key=str)


def open_catalog(path: str, base: str) -> Catalog:
    """Open the catalog at `lora_config.dynamic_lora_loading_path`."""
    if path.startswith("hf://"):
        organisation = path.removeprefix("hf://").strip("/")
        return Catalog(base, partial(_repositories, organisation), partial(list_adapters, organisation))
    if path.startswith(("s3://", "gs://")):
        store = BucketStore(BucketSource(bucket_uri=path))
        return Catalog(
            base, lambda adapter: [store.subfolder(path) for path in _layouts(adapter)], partial(_bucket_folders, store)
        )
    root = Path(path)
    return Catalog(
        base,
        lambda adapter: [LocalStore(root / folder, root) for folder in _layouts(adapter)],
        partial(_local_folders, root, base.count("/")),
    )


def open_source(source: str) -> Store:
    """Open the store of a single adapter: a local folder, a bucket prefix, or a repository of the hub.

    Raises:
        RequestError: the text is no folder, no bucket address and no id of the hub.
    """
    try:
        if not source.isprintable():
            raise ValueError(source)
        if source.startswith(("s3://", "gs://")):
            return BucketStore(BucketSource(bucket_uri=source))
        if source.startswith(("/", ".", "~")):
            # The folder was named explicitly, so its links are followed, such as those in the hub client's cache.
            return LocalStore(Path(source).expanduser(), root=Path("/"))
        return _open_repository(source.removeprefix("hf://"))
    except ValueError:
        message = f"`{source[:200]}` is no folder, no address of a bucket and no repository of the hub."
        raise RequestError(message, "model", "adapter_broken") from None


def _local_folders(root: Path, depth: int) -> list[str]:
    # Only as deep as the layouts: other folders may be large.
    configs = [*root.glob(f"*/{CONFIG}"), *root.glob("*/" * depth + f"*/{CONFIG}")]
    inside = [config.parent for config in configs if config.resolve().is_relative_to(root.resolve())]
    return [folder.relative_to(root).as_posix() for folder in inside]


def _bucket_folders(root: BucketStore) -> list[str]:
    paths = [item.path for item in root.files()]
    return [path.removesuffix(f"/{CONFIG}") for path in paths if path.endswith(f"/{CONFIG}")]


def _repositories(organisation: str, adapter: Adapter) -> list[Store]:
    try:
        return [_open_repository(f"{organisation}/{adapter.name}")]
    except ValueError:
        return []


def _open_repository(repo_id: str) -> Store:
    """Open a repository of the hub; ValueError if the id is invalid, which the hub's client would retry."""
    from huggingface_hub.utils import validate_repo_id

    validate_repo_id(repo_id)
    return HubStore(HubSource(repo_id=repo_id))


def _layouts(adapter: Adapter) -> tuple[str, str]:
    return str(adapter), adapter.name


def _parse_folder(folder: str, base: str) -> Adapter | None:
    adapter = parse_adapter(folder, [base])
    return adapter or (parse_adapter(f"{base}:{folder}", [base]) if ":" not in folder else None)
