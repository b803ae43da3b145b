"""The status report, from the answers of Ray Serve and replicas."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rayllm.serving.cluster import status_report as reporting
from rayllm.serving.cluster.request_totals import RequestTotals
from rayllm.serving.cluster.state.start_progress import Start
from rayllm.serving.cluster.status_report import report

ROUTER = {"deployment_config": {"user_config": {"names": {"org/a": "org--a", "b": "b"}}}}
TOLD = {
    "ongoing": 2,
    "kv_use": 0.5,
    "generated_tokens": 70,
    "adapters": ["org/a:x"],
    "phases": {"load": 3.0},
}


def deployment(*replicas: dict[str, Any], status: str = "HEALTHY", **config: Any) -> dict[str, Any]:
    return {
        "status": status,
        "message": "broken" if status == "UNHEALTHY" else "",
        "target_num_replicas": len(replicas),
        "replicas": [{"start_time_s": time.time() - 5, "node_ip": None, **replica} for replica in replicas],
        "required_resources": {"CPU": 2},
        "deployment_config": config,
    }


@pytest.fixture
def deployments(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Of the one application that is RayLLM's; another is somebody else's."""
    found: dict[str, Any] = {"Router": ROUTER}
    applications = {"llm": {"deployments": found}, "other": {"deployments": {"Hello": deployment()}}}

    def broadcast(application: str, name: str, method: str) -> list[dict[str, Any]]:
        if name == "Router":
            return [{"org/a": (waiting, RequestTotals(10 * waiting, 1))} for waiting in (3, 4)]
        return [{"replica": "r1", **TOLD}]

    monkeypatch.setattr(reporting.deployed, "applications", lambda: applications)
    monkeypatch.setattr(reporting, "_broadcast", broadcast)
    monkeypatch.setattr(reporting, "starts", lambda ids: {"r2": Start("fetch", 1.0, 5, 10)} if "r2" in ids else {})
    monkeypatch.setattr(reporting, "live_nodes", lambda: [{"CPU": 4, "GPU": 1}])
    monkeypatch.setattr(reporting, "may_grow", lambda: False)
    monkeypatch.setattr(reporting.ray, "available_resources", lambda: {"CPU": 1, "GPU": 1})
    return found


def test_replicas_that_run_and_that_start(deployments: dict[str, Any]) -> None:
    running = {"replica_id": "r1", "state": "RUNNING", "node_ip": "10.0.0.1"}
    starting = {"replica_id": "r2", "state": "STARTING", "node_ip": "10.0.0.2"}
    deployments["org--a"] = deployment(running, starting, status="UPDATING")
    [model] = report()
    assert (model.application, model.model_id, model.status, model.target) == ("llm", "org/a", "UPDATING", 2)
    assert (model.waiting, model.totals, model.reason) == (7, RequestTotals(70, 2), "")
    [one] = model.running
    assert (one.id, one.ongoing, one.kv_use, one.generated_tokens) == ("r1", 2, 0.5, 70)
    assert (one.adapters, one.phases) == (("org/a:x",), {"load": 3.0})
    assert model.replicas[1].start == Start("fetch", 1.0, 5, 10)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "waits for 2 CPUs; free: 1 CPU."),
        ({"placement_group_bundles": [{"CPU": 1}, {"GPU": 1}]}, ""),
        (
            {"placement_group_bundles": [{"CPU": 1}, {"GPU": 2}], "placement_group_strategy": "STRICT_PACK"},
            "one replica needs 1 CPU, 2 GPUs on one node, but the best node has 1 GPU",
        ),
    ],
)
def test_why_a_replica_has_no_place(deployments: dict[str, Any], config: dict[str, Any], reason: str) -> None:
    deployments["b"] = deployment({"replica_id": "r3", "state": "STARTING"}, status="UPDATING", **config)
    [model] = report()
    assert reason in model.reason
    assert bool(model.reason) == bool(reason)


def test_a_failure_is_ray_serves_own_message(deployments: dict[str, Any]) -> None:
    deployments["b"] = deployment(status="UNHEALTHY")
    [model] = report()
    assert model.reason == "broken"
