"""Repositories of the HuggingFace hub.

Token, endpoint and offline mode come from the environment variables of the hub's client (`HF_TOKEN`, `HF_ENDPOINT`,
`HF_HUB_OFFLINE`). Source: https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from rayllm.config import HubSource
from rayllm.core.errors import SourceError
from rayllm.sources.errors import MissingError, UnreachableError
from rayllm.sources.items import Checksum, Item, Location, checked_path

T = TypeVar("T")

_ATTEMPTS = 5
_TIMEOUT_S = 20.0


class HubStore:
    """The files of one repository at one revision. A branch is resolved to a commit by the first listing."""

    def __init__(self, source: HubSource) -> None:
        self._repo = source.repo_id
        self._revision = source.revision
        self._name = f"`{self._repo}`" + (f" at revision `{self._revision}`" if self._revision else "")
        self.commit = ""
        self.is_gated = False
        """Whether the hub restricts access; set by `files`."""
        self.uri = f"hf://{source.repo_id}"

    def files(self) -> list[Item]:
        """List the repository at the current commit of the revision."""
        from huggingface_hub import HfApi

        info = _retrying(
            lambda: HfApi(endpoint=_endpoint()).model_info(
                self._repo, revision=self._revision, files_metadata=True, timeout=_TIMEOUT_S
            ),
            self._name,
        )
        self.commit = info.sha or ""
        self.is_gated = bool(info.gated)
        return [
            Item(
                checked_path(file.rfilename, self.uri),
                file.rfilename,
                file.size or 0,
                file.blob_id or "",
                Checksum("sha256", file.lfs.sha256) if file.lfs else Checksum("git", file.blob_id or ""),
            )
            for file in info.siblings or ()
        ]

    def locate(self, item: Item) -> Location:
        """The hub's URL, or the URL that the hub redirects to. Only the hub's own host is sent the token."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.utils import build_hf_headers

        url = hf_hub_url(self._repo, item.key, revision=self.commit, endpoint=_endpoint())
        metadata = _retrying(lambda: get_hf_file_metadata(url, timeout=_TIMEOUT_S, endpoint=_endpoint()), self._name)
        is_hub = urlsplit(metadata.location).netloc == urlsplit(url).netloc
        return Location(metadata.location, {k.lower(): v for k, v in build_hf_headers().items()} if is_hub else {})


def find_in_hub_cache(source: HubSource, paths: list[str] | None = None) -> Path | None:
    """Find a repository's folder, with all of `paths`, in the cache of the hub's client."""
    from huggingface_hub import errors, snapshot_download

    try:
        folder = Path(snapshot_download(source.repo_id, revision=source.revision, local_files_only=True))
    except errors.LocalEntryNotFoundError:
        return None
    return folder if all((folder / path).is_file() for path in paths or ()) else None


def list_adapters(organisation: str) -> list[str]:
    """List an organisation's repositories that are tagged `peft`; raises SourceError, UnreachableError."""
    from huggingface_hub import HfApi

    api = HfApi(endpoint=_endpoint())
    # The pages are requested while the iterator is consumed.
    models = _retrying(lambda: list(api.list_models(author=organisation, filter="peft")), f"hf://{organisation}")
    return [model.id.removeprefix(f"{organisation}/") for model in models]


def _retrying(call: Callable[[], T], name: str) -> T:
    """Call the hub, with retries while the hub is unreachable. `name` names the repository in messages."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return call()
        except Exception as error:
            translated = _translated(error, name)
            if not isinstance(translated, UnreachableError) or attempt == _ATTEMPTS or _is_offline(error):
                raise translated from None
            time.sleep(min(8.0, 0.25 * 2**attempt))
    raise AssertionError("the last attempt returns or raises")


def _translated(error: Exception, name: str) -> SourceError:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return SourceError(f"{name} on the HuggingFace hub is gated: ask for access on its page and set HF_TOKEN.")
    if isinstance(error, errors.RevisionNotFoundError):
        return SourceError(f"{name}: the HuggingFace hub has no such revision.")
    if isinstance(error, errors.RepositoryNotFoundError):
        return MissingError(
            f"{name}: the HuggingFace hub has no such repository, or it is private and HF_TOKEN is missing."
        )
    if _is_offline(error):
        return UnreachableError(f"{name} cannot be fetched: HF_HUB_OFFLINE is set")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status and status < 500 and status != 429:
        return SourceError(f"{name}: the HuggingFace hub answered {status}: {str(error).splitlines()[0]}")
    # By name, since the client's HTTP library differs between its releases.
    is_network_error = any(kind.__name__ == "TransportError" for kind in type(error).__mro__)
    if status or isinstance(error, OSError) or is_network_error:
        return UnreachableError(f"{name}: the HuggingFace hub cannot be reached ({status or type(error).__name__})")
    return SourceError(f"{name} cannot be read: {type(error).__name__}: {error}")


def _endpoint() -> str | None:
    """The hub's URL now. The client itself reads the variable once, at import."""
    return os.environ.get("HF_ENDPOINT") or None


def _is_offline(error: Exception) -> bool:
    from huggingface_hub import errors

    return isinstance(error, errors.OfflineModeIsEnabled)
