"""The RayService schema refuses what the operator refuses."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.unit.deploy.kuberay.manifests import ROOT, ray_service, schema

DEMO = str(ROOT / "models" / "rayllm-demo.yaml")
SPEC = ("spec",)
CLUSTER = ("spec", "rayClusterConfig")
GROUP = (*CLUSTER, "workerGroupSpecs", 0)


@pytest.mark.parametrize(
    ("place", "change"),
    [
        ((), {"apiVersion": "ray.io/v1alpha1"}),
        ((), {"kind": "RayCluster"}),
        (("metadata",), {"name": "Rayllm"}),
        (("metadata",), {"name": "r" * 48}),
        (SPEC, {"serveConfigV2": {"applications": []}}),
        (SPEC, {"rayClusterDeletionDelaySeconds": -1}),
        (SPEC, {"upgradeStrategy": {"type": "Recreate"}}),
        # An incremental upgrade requires Ray's autoscaler.
        (
            SPEC,
            {
                "upgradeStrategy": {
                    "type": "NewClusterWithIncrementalUpgrade",
                    "clusterUpgradeOptions": {"stepSizePercent": 5, "intervalSeconds": 5, "gatewayClassName": "g"},
                }
            },
        ),
        (SPEC, {"upgradeStrategy": {"type": "NewClusterWithIncrementalUpgrade"}}),
        (CLUSTER, {"authOptions": {"mode": "password"}}),
        (CLUSTER, {"authOptions": {"mode": "token", "enableK8sTokenAuth": True}}),
        (CLUSTER, {"rayVersion": "2.60"}),
        (CLUSTER, {"rayVersion": None}),
        (CLUSTER, {"headGroupSpec": None}),
        (CLUSTER, {"autoscalerOptions": {"version": "v3"}}),
        (CLUSTER, {"autoscalerOptions": {"upscalingMode": "Fast"}}),
        (CLUSTER, {"gcsFaultToleranceOptions": {"backend": "etcd"}}),
        (GROUP, {"groupName": None}),
        (GROUP, {"minReplicas": -1}),
        (GROUP, {"minReplicas": None}),
        (GROUP, {"numOfHosts": 0}),
        (GROUP, {"resources": {"CPU": 1}}),
        # Duplicates of other fields.
        (GROUP, {"rayStartParams": {"num-cpus": "1"}}),
        (GROUP, {"rayStartParams": {"labels": "a=b"}}),
        (GROUP, {"rayStartParams": {"block": True}}),
        (GROUP, {"template": {"spec": {"containers": []}}}),
    ],
)
def test_invalid_manifests(place: tuple[Any, ...], change: dict[str, Any]) -> None:
    """A value of None removes the key."""
    service = copy.deepcopy(ray_service(DEMO, "--engine", "cpu"))
    assert schema().is_valid(service)
    mapping: Any = service
    for key in place:
        mapping = mapping[key]
    for key, value in change.items():
        if value is None:
            del mapping[key]
        else:
            mapping[key] = value
    assert not schema().is_valid(service)
