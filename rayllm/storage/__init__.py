"""Folders that are written to: local, `s3://` or `gs://`, through one door. Everything here blocks."""

from rayllm.storage.filesystem import open_folder
from rayllm.storage.folder import Folder

__all__ = ["Folder", "open_folder"]
