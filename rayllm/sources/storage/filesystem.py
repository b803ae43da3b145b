"""Open a pyarrow file system for a URI. Ray Data accepts these as well."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rayllm.config import BucketSource
from rayllm.core.errors import StorageError
from rayllm.sources.buckets import BucketError, open_bucket

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem


def open_folder(uri: str) -> tuple[FileSystem, str]:
    """Open the file system of a folder, and return it with the folder's path in it.

    Buckets use the same credentials and endpoints as models (docs/sources.md). Neither folder nor bucket is created.

    Args:
        uri: a path, `s3://bucket/prefix` or `gs://bucket/prefix`.

    Raises:
        StorageError: the bucket cannot be accessed; the message says why.
    """
    if "://" not in uri:
        # pyarrow is imported only by those who store something.
        from pyarrow.fs import LocalFileSystem

        return LocalFileSystem(), str(Path(uri).expanduser().absolute())
    try:
        filesystem = open_bucket(BucketSource(bucket_uri=uri)).filesystem()
    except BucketError as error:
        raise StorageError(error.message) from None
    return filesystem, uri.partition("://")[2].strip("/")
