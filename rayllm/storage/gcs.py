"""Google Cloud Storage buckets as a file system of Arrow's.

Credentials are Google's application default ones, as for models; `STORAGE_EMULATOR_HOST` leads to another server.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rayllm.errors import StorageError

if TYPE_CHECKING:
    from pyarrow.fs import GcsFileSystem

_RETRY_FOR_S = 45


def gcs_filesystem(bucket: str) -> GcsFileSystem:
    """The file system in which the bucket is the first part of a path.

    Raises:
        StorageError: the bucket cannot be had; the message says why.
    """
    from pyarrow.fs import FileType, GcsFileSystem

    found = GcsFileSystem(retry_time_limit=timedelta(seconds=_RETRY_FOR_S), **_way(bucket))
    try:
        is_there = found.get_file_info(bucket).type != FileType.NotFound
    except OSError as error:
        raise StorageError(f"gs://{bucket} cannot be reached: {error}") from None
    if not is_there:
        raise StorageError(f"gs://{bucket}: there is no such bucket; check its name.")
    return found


def _way(bucket: str) -> dict[str, Any]:
    """Who asks, and where."""
    if emulator := os.environ.get("STORAGE_EMULATOR_HOST"):
        scheme, _, host = emulator.rpartition("://")
        return {"anonymous": True, "scheme": scheme or "http", "endpoint_override": host.rstrip("/")}
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    try:
        google.auth.default()
    except DefaultCredentialsError as error:
        if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
            raise StorageError(f"gs://{bucket}: GOOGLE_APPLICATION_CREDENTIALS cannot be used: {error}") from None
        return {"anonymous": True}
    return {}
