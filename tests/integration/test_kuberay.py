"""A manifest without KubeRay: Ray is started with a group's resources, and the dashboard gets the application."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from openai import OpenAI

from tests.integration.service import ROOT
from tests.servers.process import free_port

pytestmark = pytest.mark.timeout(400)
TOKEN = secrets.token_hex(16)


@pytest.fixture(scope="module")
def spec() -> dict[str, Any]:
    """The demo's manifest, with pods for a router."""
    options = ["--kuberay", "--engine", "cpu", "--routers", "1"]
    command = [sys.executable, "-m", "rayllm", "build", "models/rayllm-demo.yaml", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=True)
    found: dict[str, Any] = yaml.safe_load(done.stdout)["spec"]
    return found


@pytest.fixture(scope="module")
def dashboard(spec: dict[str, Any]) -> Iterator[httpx.Client]:
    """The dashboard of a cluster with token authentication: one node that has what all groups' pods have."""
    groups = spec["rayClusterConfig"]["workerGroupSpecs"]
    # KubeRay makes options of Ray's own resources.
    own = ("CPU", "GPU")
    resources = {name: int(n) for group in groups for name, n in group["resources"].items() if name not in own}
    port = free_port()
    command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--num-cpus=4", "--num-gpus=0"]
    command += [f"--port={free_port()}", f"--dashboard-port={port}", f"--resources={json.dumps(resources)}"]
    command += [f"--ray-client-server-port={free_port()}", f"--dashboard-agent-listen-port={free_port()}"]
    # Not below pytest's folder, whose path is too long for Ray's sockets.
    command += [f"--temp-dir={tempfile.mkdtemp(prefix='rayllm-tests-')}"]
    authentication = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    environment = {**os.environ, **authentication, "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}
    # Forked workers do not start in a cluster whose token is in the environment.
    del environment["_RAYLLM_FORKED_WORKERS"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as ray:
        try:
            headers = {"x-ray-authorization": f"Bearer {TOKEN}"}
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as client:
                until(lambda: answers(client, "/api/version") or ray.poll() is not None)
                yield client
        finally:
            ray.terminate()


def answers(client: httpx.Client, path: str) -> bool:
    """Whether somebody is there."""
    try:
        return client.get(path).status_code == 200
    except httpx.TransportError:
        return False


def until(found: Any, timeout_s: float = 300) -> Any:
    """Wait for a true value."""
    end = time.monotonic() + timeout_s
    while not (value := found()):
        assert time.monotonic() < end, f"not within {timeout_s} s"
        time.sleep(0.2)
    return value


def test_the_dashboard_serves_what_the_manifest_says(spec: dict[str, Any], dashboard: httpx.Client) -> None:
    serve_config = yaml.safe_load(spec["serveConfigV2"])
    port = serve_config["http_options"]["port"] = free_port()
    assert dashboard.put("/api/serve/applications/", json=serve_config, headers={"x-ray-authorization": ""}).is_error
    dashboard.put("/api/serve/applications/", json=serve_config).raise_for_status()

    def application() -> Any:
        found = dashboard.get("/api/serve/applications/").json()["applications"].get("rayllm", {})
        assert found.get("status") not in ("DEPLOY_FAILED", "UNHEALTHY"), found
        return found if found.get("status") == "RUNNING" else None

    deployments = until(application)["deployments"]
    bound = deployments["Router"]["deployment_config"]["ray_actor_options"]
    assert (bound["num_cpus"], bound["resources"]) == (0, {"group:router": 0.001})
    [group] = dashboard.get("/api/v0/placement_groups", params={"detail": True}).json()["data"]["result"]["result"]
    assert [bundle["unit_resources"] for bundle in group["bundles"]] == [{"CPU": 1, "group:cpu": 0.001}]
    # What KubeRay asks of a pod before it may have requests.
    assert httpx.get(f"http://127.0.0.1:{port}/-/healthz").text == "success"
    assert httpx.get(f"http://127.0.0.1:{port}/ready").status_code == 200
    client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
    question: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]
    answer = client.chat.completions.create(model="rayllm-demo", messages=question, temperature=0)
    assert answer.choices[0].message.content == "The capital of France is Paris."
