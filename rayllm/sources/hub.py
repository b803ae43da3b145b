"""Models of the HuggingFace hub.

The token, the endpoint and offline mode come from the hub client's own environment variables (`HF_TOKEN`,
`HF_ENDPOINT`, `HF_HUB_OFFLINE`). Source: https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables
"""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

from rayllm.config import HubSource
from rayllm.errors import SourceError
from rayllm.sources.weights import BESIDE_WEIGHTS, NEVER, PICKLED


def download(source: HubSource, model_id: str, allow_pickle: bool, weights: bool) -> Path:
    """Folder of the hub client's cache with what serving needs of the repository.

    Raises:
        SourceError: the repository cannot be had; the message says why and how to mend it.
    """
    from huggingface_hub import snapshot_download

    try:
        patterns = list(BESIDE_WEIGHTS)
        if weights:
            patterns += ["*.safetensors"] if not allow_pickle else _weight_patterns(source)
        return Path(
            snapshot_download(
                source.repo_id, revision=source.revision, allow_patterns=patterns, ignore_patterns=list(NEVER)
            )
        )
    except Exception as error:
        raise SourceError(f"model `{model_id}`: {_reason(source, error)}") from error


def _weight_patterns(source: HubSource) -> list[str]:
    """Safetensors where the repository has any, pickled weights only where it has none."""
    from huggingface_hub import HfApi

    names = HfApi().list_repo_files(source.repo_id, revision=source.revision)
    return ["*.safetensors"] if any(fnmatch(name, "*.safetensors") for name in names) else list(PICKLED)


def _reason(source: HubSource, error: Exception) -> str:
    from huggingface_hub import errors

    where = f"`{source.repo_id}`" + (f" at revision `{source.revision}`" if source.revision else "")
    if isinstance(error, errors.GatedRepoError):
        return f"{where} on the HuggingFace hub is gated: ask for access on its page and set HF_TOKEN."
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{where}: the HuggingFace hub has no such revision."
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{where}: the HuggingFace hub has no such repository, or it is private and HF_TOKEN is missing."
    if isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
        return f"{where} is not in the local cache and the HuggingFace hub cannot be reached (HF_HUB_OFFLINE, network)."
    return (
        f"{where} could not be fetched from the HuggingFace hub: {type(error).__name__}: {str(error).splitlines()[0]}"
    )
