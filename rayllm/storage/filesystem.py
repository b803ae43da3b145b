"""From an address to a file system of Arrow's, which Ray Data takes as well."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rayllm.storage.gcs import gcs_filesystem
from rayllm.storage.s3 import s3_filesystem

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


def open_folder(uri: str) -> tuple[FileSystem, str]:
    """The file system of a folder, and the folder's path in it.

    Credentials and servers are found as for reading models (docs/sources.md). Neither folder nor bucket is made.

    Args:
        uri: a path, `s3://bucket/prefix` or `gs://bucket/prefix`.

    Raises:
        StorageError: the bucket cannot be had; the message says why.
    """
    scheme, separator, path = uri.partition("://")
    path = path.strip("/")
    if not separator:
        # Arrow is imported by those who keep something only.
        from pyarrow.fs import LocalFileSystem

        return LocalFileSystem(), str(Path(uri).expanduser().absolute())
    open_bucket = {"s3": s3_filesystem, "gs": gcs_filesystem}[scheme]
    return open_bucket(path.partition("/")[0]), path
