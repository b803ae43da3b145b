"""Private names of Ray and Ray Serve, for Ray 2.60: most private names that RayLLM uses are wrapped here.

`tests/unit/cluster/test_ray_internals.py` lists all of them and checks them against the installed Ray.
"""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import ray
from ray._private import state
from ray.experimental import internal_kv

_WORKER_COUNT = "worker processes have been started on node"


def autoscaler_limits() -> Any:
    """Most resources that Ray's own autoscaler may add; empty without an autoscaler."""
    return state.state.get_max_resources_from_cluster_config()


def session_log_folder() -> Path:
    return Path(ray._private.worker._global_node.get_logs_dir_path())


def serve_controller(required: bool = True) -> Any:
    """The interface to Ray Serve's controller; None if Serve is not running and not required."""
    from ray.serve.context import _get_global_client

    return _get_global_client(raise_if_no_controller_running=required)


def start_serve(http_options: dict[str, Any], proxy_location: Any, grpc_options: dict[str, Any]) -> Any:
    """Start Ray Serve if necessary; returns the interface to its controller."""
    from ray.serve._private.api import serve_start

    return serve_start(http_options=http_options, proxy_location=proxy_location, grpc_options=grpc_options)


def this_replica() -> Any:
    """Ray Serve's `Replica` object in a replica's process."""
    worker: Any = ray._private.worker.global_worker
    return worker.actors[worker.actor_id]._replica_impl


def replace_sigterm_exit(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Wrap the function that Ray's SIGTERM handler calls to exit.

    Only the main thread may install a signal handler, and no code of an actor runs there.
    """
    worker: Any = ray._private.worker
    worker.raise_sys_exit_with_custom_error_message = wrap(worker.raise_sys_exit_with_custom_error_message)


@cache
def hide_worker_count() -> None:
    """Keep Ray from warning that a node has several times as many worker processes as cores, as small nodes do."""
    worker: Any = ray._private.worker
    print_data = worker.print_to_stdstream

    def print_others(data: dict[str, Any], *arguments: Any, **options: Any) -> None:
        if data["pid"] != "raylet" or _WORKER_COUNT not in data["lines"][0]:
            print_data(data, *arguments, **options)

    worker.print_to_stdstream = print_others


def name_request_in_logs(request_id: str) -> None:
    """Have Ray Serve's formatter add the request's id to the log lines of the current task."""
    from ray.serve.context import _set_request_context

    _set_request_context(request_id=request_id)


def show_gpus(ids: list[str]) -> None:
    """Make GPUs visible to this process and its children, by the environment variable of their vendor."""
    from ray._private.accelerators import get_accelerator_manager_for_resource

    manager: Any = get_accelerator_manager_for_resource("GPU")
    os.environ[manager.get_visible_accelerator_ids_env_var()] = ",".join(ids)


# The cluster's key-value store.
def kv_get(key: str) -> bytes | None:
    value: bytes | None = internal_kv._internal_kv_get(key)
    return value


def kv_keys(prefix: str) -> list[str]:
    """The keys that begin with `prefix`."""
    return [key.decode() for key in internal_kv._internal_kv_list(prefix)]


def kv_put(key: str, value: str) -> None:
    internal_kv._internal_kv_put(key, value, overwrite=True)


def kv_delete(key: str) -> None:
    internal_kv._internal_kv_del(key)


def raylet_pid() -> int:
    """The process id of this node's raylet, which started this worker."""
    return int(os.environ["RAY_RAYLET_PID"])
