"""Folders to read from and write to: local, `s3://` or `gs://`. All methods block."""

from rayllm.sources.storage.filesystem import open_folder
from rayllm.sources.storage.folder import Folder

__all__ = ["Folder", "open_folder"]
