"""Ray's GCS, which keeps the state of the cluster, with that state on disk so that it survives a restart.

See https://docs.ray.io/en/master/ray-core/fault_tolerance/gcs.html.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray._private import worker


def stored_in(folder: Path) -> dict[str, Any]:
    """The `_system_config` of `ray.init` with which the GCS keeps its state in a folder."""
    folder.mkdir()
    return {"gcs_storage": "rocksdb", "gcs_storage_path": str(folder)}


def kill() -> None:
    """kill -9 of the GCS that this process has started.

    Raises:
        RuntimeError: this process has started no Ray cluster.
    """
    _node().kill_gcs_server()


def start() -> None:
    """Start the killed GCS again. The kernel kills it when the calling thread ends, so call this in the main thread."""
    _node().start_gcs_server()


def _node() -> Any:
    node = worker._global_node
    if node is None or not node.is_head():
        raise RuntimeError("this process has started no Ray cluster, so it cannot restart the GCS")
    return node
