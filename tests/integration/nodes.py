"""A cluster of several nodes on this machine, with logical GPUs: where replicas land, and what a lost node does.

Run as a program of its own, since a process belongs to one cluster: python -m tests.integration.nodes
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import httpx
import ray
import yaml
from ray import serve
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group_table

from rayllm import build_app
from tests.integration.service import DEMO
from tests.servers.process import free_port

GPUS = 2
QUESTION = {"model": "spread", "messages": [{"role": "user", "content": "What is the capital of France?"}]}


def main() -> None:
    """Write what was seen to standard output, as one line of JSON."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": False})
    workers = [cluster.add_node(num_cpus=4, num_gpus=GPUS, resources={"worker": 1}) for _ in range(2)]
    ray.init(address=cluster.address, namespace="serve", log_to_driver=False)
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port}, proxy_location="HeadOnly")
    seen = {
        "two stages of two": _lands(
            "stages",
            tensor_parallelism={"degree": 2},
            pipeline_parallelism={"degree": 2},
            placement_group_config={"bundle_per_worker": {"GPU": 1}},
        ),
        "halves": _lands("halves", placement_group_config={"bundle_per_worker": {"GPU": 0.5}}),
        **_lost_node(cluster, workers[1], f"http://127.0.0.1:{port}"),
    }
    print(json.dumps(seen), flush=True)
    serve.shutdown()
    ray.shutdown()
    cluster.shutdown()


def _lands(name: str, **keys: Any) -> list[tuple[dict[str, float], str]]:
    """The bundles of a model's group and their nodes; its weights are out of reach, so it ends there."""
    model = {"model_loading_config": {"model_id": name, "model_source": "/nowhere"}, **keys}
    serve._run(build_app({"llm_configs": [model]}), name=name, route_prefix=f"/{name}", _blocking=False)
    try:
        group = _until(lambda: next(iter(_groups()), None))
        return [(group["bundles"][index], group["bundles_to_node_id"][index]) for index in sorted(group["bundles"])]
    finally:
        serve.delete(name)
        _until(lambda: not _groups())


def _groups() -> list[dict[str, Any]]:
    return [group for group in placement_group_table().values() if group["state"] == "CREATED"]


def _lost_node(cluster: Cluster, lost: Any, url: str) -> dict[str, Any]:
    """Two real replicas, one a node; one node vanishes while clients ask, and another comes."""
    demo: dict[str, Any] = yaml.safe_load(DEMO.read_text())
    weights = (DEMO.parent / demo["model_loading_config"]["model_source"]).resolve()
    demo["model_loading_config"] = {"model_id": "spread", "model_source": str(weights)}
    demo["deployment_config"] = {"num_replicas": 2, "ray_actor_options": {"resources": {"worker": 1}}}
    demo["placement_group_config"] = {"bundles": [{"CPU": 1, "worker": 1}]}
    del demo["lora_config"]
    serve.run(build_app({"llm_configs": [demo]}), name="spread", route_prefix="/")
    with httpx.Client(base_url=url, timeout=60) as client:
        before = _statuses(client, 10)
        cluster.remove_node(lost, allow_graceful=False)
        after = _statuses(client, 100)
        cluster.add_node(num_cpus=4, num_gpus=GPUS, resources={"worker": 1})
        # Until then, the lost node's replica may count as running.
        _until(lambda: _running() == 2 and not _is_used(lost), 500)
        return {"before": before, "while lost": after, "moved": _statuses(client, 10)}


def _statuses(client: httpx.Client, count: int) -> list[int]:
    return [client.post("/v1/chat/completions", json=QUESTION).status_code for _ in range(count)]


def _running() -> int:
    states: dict[Any, int] = serve.status().applications["spread"].deployments["spread"].replica_states
    return states.get("RUNNING", 0)


def _is_used(node: Any) -> bool:
    return any(node.node_id in group["bundles_to_node_id"].values() for group in _groups())


def _until(found: Any, timeout_s: float = 60) -> Any:
    end = time.monotonic() + timeout_s
    while not (value := found()):
        if time.monotonic() > end:
            sys.exit(f"not within {timeout_s} s")
        time.sleep(0.2)
    return value


if __name__ == "__main__":
    main()
