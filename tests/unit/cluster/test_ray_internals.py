"""Private names of Ray and Ray Serve, and that they are used nowhere else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import ray

import rayllm
from rayllm.cluster.ray_internals import hide_worker_count
from tests.private_names import missing_names

# Module → the names used from it, dotted for attributes.
PRIVATE_NAMES = {
    "ray._common.constants": ("HEAD_NODE_RESOURCE_NAME",),
    "ray._private.worker": (
        "_global_node",
        "global_worker",
        "print_to_stdstream",
        "raise_sys_exit_with_custom_error_message",
        "Worker.actors",
        "Worker.actor_id",
    ),
    "ray._private.accelerators": ("get_accelerator_manager_for_resource",),
    "ray._private.node": ("Node.get_logs_dir_path",),
    "ray._private.state": ("state.get_max_resources_from_cluster_config",),
    "ray._private.services": ("find_bootstrap_address", "find_gcs_addresses"),
    "ray._private.authentication.authentication_token_setup": ("maybe_enable_token_auth_if_token_available",),
    "ray._private.utils": ("detect_fate_sharing_support_linux", "set_kill_on_parent_death_linux"),
    "ray.experimental.internal_kv": ("_internal_kv_del", "_internal_kv_get", "_internal_kv_list", "_internal_kv_put"),
    "ray.serve.context": ("_get_global_client", "_set_request_context"),
    "ray.serve._private.api": ("serve_start",),
    "ray.serve._private.client": (
        "ServeControllerClient.deploy_apps",
        "ServeControllerClient.get_serve_details",
        "ServeControllerClient.http_config",
    ),
    "ray.serve._private.common": ("RequestMetadata",),
    "ray.serve._private.config": ("DeploymentConfig.model_fields",),
    "ray.serve.deployment": ("Deployment._deployment_config",),
    # The replica's count of its requests: serving/replica/slots.py.
    "ray.serve._private.replica": (
        "ReplicaActor._replica_impl",
        "Replica._event_loop",
        "Replica.max_ongoing_requests",
        "Replica.release_slot",
        "Replica.reserve_slot",
        "SERVE_BUILD_ASGI_APP_METHOD",
    ),
    # The handle's count of queued requests: serving/router/replicas/serve_queue.py.
    "ray.serve.handle": ("DeploymentHandle._init_router",),
    "ray.serve._private.router": (
        "SingletonThreadRouter._asyncio_loop",
        "SingletonThreadRouter._asyncio_router",
        "AsyncioRouter._deployment_available",
        "AsyncioRouter._metrics_manager",
        "AsyncioRouter.request_router",
        "RouterMetricsManager._add_autoscaling_metrics_point",
        "RouterMetricsManager._deployment_config",
        "RouterMetricsManager.autoscaling_config",
        "RouterMetricsManager.dec_num_queued_requests",
        "RouterMetricsManager.inc_num_queued_requests",
        "RouterMetricsManager.metrics_pusher",
        "RouterMetricsManager.push_autoscaling_metrics_to_controller",
        "RouterMetricsManager.should_send_scaled_to_zero_optimized_push",
        "RouterMetricsManager.update_deployment_config",
    ),
    "ray.serve._private.metrics_utils": ("MetricsPusher._tasks", "MetricsPusher.stop_tasks"),
    # Notification of changed replicas: serving/cluster/request_router.py.
    "ray.serve.request_router": (
        "RequestRouter._deployment_id",
        "RequestRouter.curr_replicas",
        "RequestRouter.on_replica_actor_died",
        "RequestRouter.update_replicas",
        "RunningReplica.max_ongoing_requests",
        "RunningReplica.replica_metadata",
        "RunningReplica.routing_stats",
    ),
}
_PRIVATE_IMPORT = re.compile(r"(?:from|import) (ray\.(?:serve\.)?_private[\w.]*|ray\.experimental\.internal_kv)")


def test_ray_has_every_private_name_that_is_used() -> None:
    assert missing_names(PRIVATE_NAMES) == []


def test_every_private_module_that_is_imported_is_listed() -> None:
    source = "\n".join(path.read_text() for path in Path(rayllm.__file__).parent.rglob("*.py"))
    imported = {module for module in _PRIVATE_IMPORT.findall(source) if module != "ray._private"}
    assert imported <= PRIVATE_NAMES.keys()


def test_the_number_of_workers_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[str] = []
    worker = ray._private.worker
    monkeypatch.setattr(worker, "print_to_stdstream", lambda data, ignore_prefix: printed.extend(data["lines"]))
    hide_worker_count.__wrapped__()
    text = "worker processes have been started on node: "
    raylet = Path(ray.__file__).parent / "core" / "src" / "ray" / "raylet" / "raylet"
    assert text.encode() in raylet.read_bytes()
    hidden = (
        f"WARNING: 8 PYTHON {text}1f with address: 192.0.2.2, which is 4x the maximum expected startup concurrency."
    )
    shown = "2 Workers (tasks / actors) killed due to memory pressure (OOM)."
    for line in (hidden, shown):
        worker.print_to_stdstream({"lines": [line], "pid": "raylet", "is_err": False}, ignore_prefix=False)
    assert printed == [shown]
