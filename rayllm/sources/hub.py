"""Repositories of the HuggingFace hub.

The token, the endpoint and offline mode come from the hub client's own environment variables (`HF_TOKEN`,
`HF_ENDPOINT`, `HF_HUB_OFFLINE`). Source: https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from rayllm.config import HubSource
from rayllm.errors import SourceError
from rayllm.sources.faults import MissingError, UnreachableError
from rayllm.sources.items import Checksum, Item, Target, checked_path

T = TypeVar("T")

_TRIES = 5
_TIMEOUT_S = 20.0


class HubStore:
    """The files of one repository at one revision; a branch is followed until the first listing.

    Args:
        source: the repository.
    """

    def __init__(self, source: HubSource) -> None:
        self._repo = source.repo_id
        self._revision = source.revision
        self._commit = ""
        self.is_gated = False
        """Whether accounts need to be granted access; known once it was listed."""
        self.where = f"hf://{source.repo_id}"

    def files(self) -> list[Item]:
        """Every file of the repository, at the commit that the revision means now."""
        from huggingface_hub import HfApi

        info = self._ask(
            lambda: HfApi(endpoint=_endpoint()).model_info(
                self._repo, revision=self._revision, files_metadata=True, timeout=_TIMEOUT_S
            )
        )
        self._commit = info.sha or ""
        self.is_gated = bool(info.gated)
        return [
            Item(
                checked_path(file.rfilename, self.where),
                file.rfilename,
                file.size or 0,
                file.blob_id or "",
                Checksum("sha256", file.lfs.sha256) if file.lfs else Checksum("git", file.blob_id or ""),
            )
            for file in info.siblings or ()
        ]

    def locate(self, item: Item) -> Target:
        """Where the hub keeps the file: its own address, or one on another host, which never sees the token."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.utils import build_hf_headers

        url = hf_hub_url(self._repo, item.key, revision=self._commit, endpoint=_endpoint())
        found = self._ask(lambda: get_hf_file_metadata(url, timeout=_TIMEOUT_S, endpoint=_endpoint()))
        is_hub = urlsplit(found.location).netloc == urlsplit(url).netloc
        return Target(found.location, {k.lower(): v for k, v in build_hf_headers().items()} if is_hub else {})

    def commit(self) -> str:
        """The commit that was listed."""
        return self._commit

    def _ask(self, call: Callable[[], T]) -> T:
        return _ask(call, f"`{self._repo}`" + (f" at revision `{self._revision}`" if self._revision else ""))


def _ask(call: Callable[[], T], where: str) -> T:
    """The hub's answer, asked for again where it is in trouble."""
    for attempt in range(1, _TRIES + 1):
        try:
            return call()
        except Exception as error:
            explained = _explained(error, where)
            if not isinstance(explained, UnreachableError) or attempt == _TRIES or _is_offline(error):
                raise explained from None
            time.sleep(min(8.0, 0.25 * 2**attempt))
    raise AssertionError("the last try returns or raises")


def _explained(error: Exception, where: str) -> SourceError:
    """What went wrong, and the way out."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return SourceError(f"{where} on the HuggingFace hub is gated: ask for access on its page and set HF_TOKEN.")
    if isinstance(error, errors.RevisionNotFoundError):
        return SourceError(f"{where}: the HuggingFace hub has no such revision.")
    if isinstance(error, errors.RepositoryNotFoundError):
        return MissingError(
            f"{where}: the HuggingFace hub has no such repository, or it is private and HF_TOKEN is missing."
        )
    if _is_offline(error):
        return UnreachableError(f"{where} cannot be fetched: HF_HUB_OFFLINE is set")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status and status < 500 and status != 429:
        return SourceError(f"{where}: the HuggingFace hub answered {status}: {str(error).splitlines()[0]}")
    if status or isinstance(error, OSError) or _is_of_the_network(error):
        return UnreachableError(f"{where}: the HuggingFace hub cannot be reached ({status or type(error).__name__})")
    return SourceError(f"{where} cannot be read: {type(error).__name__}: {error}")


def in_clients_cache(source: HubSource, paths: list[str] | None = None) -> Path | None:
    """The repository's folder in the hub client's own cache, or None where it is not there.

    Args:
        source: the repository; with a commit as its revision, that commit's folder.
        paths: the files that it has to hold.
    """
    from huggingface_hub import errors, snapshot_download

    try:
        folder = Path(snapshot_download(source.repo_id, revision=source.revision, local_files_only=True))
    except errors.LocalEntryNotFoundError:
        return None
    return folder if all((folder / path).is_file() for path in paths or ()) else None


def adapters_of(organisation: str) -> list[str]:
    """Names of an organisation's repositories that PEFT has marked as adapters.

    Raises:
        SourceError: they cannot be listed.
        UnreachableError: the hub cannot be reached.
    """
    from huggingface_hub import HfApi

    api = HfApi(endpoint=_endpoint())
    # The answer comes page by page, while it is read.
    found = _ask(lambda: list(api.list_models(author=organisation, filter="peft")), f"hf://{organisation}")
    return [model.id.removeprefix(f"{organisation}/") for model in found]


def _endpoint() -> str | None:
    """The hub's address. Its client reads the variable only once, when it is imported."""
    return os.environ.get("HF_ENDPOINT") or None


def _is_of_the_network(error: Exception) -> bool:
    # By name: from one release to the next, the hub's client takes another library for HTTP.
    return any(kind.__name__ == "TransportError" for kind in type(error).__mro__)


def _is_offline(error: Exception) -> bool:
    from huggingface_hub import errors

    return isinstance(error, errors.OfflineModeIsEnabled)
