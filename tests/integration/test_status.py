"""`rayllm status` beside a cluster that serves."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

import httpx
import pytest
import ray

from rayllm.serving.cluster.state import start_progress
from rayllm.serving.cluster.state.start_progress import StartProgress, starts
from tests.integration.service import ROOT, Service


def status(*arguments: str) -> str:
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-m", "rayllm", "status", "--address", address, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "INFO" not in done.stderr
    return done.stdout


def test_models_replicas_and_what_they_have_done(service: Service, http: httpx.Client) -> None:
    asked = {"model": "rayllm-demo:pirate", "prompt": "a", "max_tokens": 5, "ignore_eos": True}
    assert http.post("/v1/completions", json=asked).status_code == 200
    models = {model["model_id"]: model for model in json.loads(status("--json"))["models"]}
    assert {"rayllm-demo", "demo/plain:1.0"} <= models.keys()
    demo = models["rayllm-demo"]
    assert (demo["application"], demo["status"], demo["waiting"], demo["reason"]) == ("rayllm", "HEALTHY", 0, "")
    [replica] = [each for each in demo["replicas"] if each["state"] == "RUNNING"]
    assert replica["generated_tokens"] >= 5
    assert "rayllm-demo:pirate" in replica["adapters"]
    assert replica["phases"].keys() == {"fetch", "load", "warm_up"}
    assert replica["phases"]["load"] > 0


def test_again_and_again_until_ctrl_c(service: Service) -> None:
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-m", "rayllm", "status", "--address", address, "--watch", "--interval", "0.2", "--json"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout
        shown = [json.loads(watching.stdout.readline()) for _ in range(2)]
        watching.send_signal(signal.SIGINT)
        assert watching.wait(timeout=60) == 0
    assert all("rayllm-demo" in {model["model_id"] for model in each["models"]} for each in shown)


def test_what_was_counted_between_two_updates(service: Service, http: httpx.Client) -> None:
    """While requests come, one of them is refused."""
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-m", "rayllm", "status", "--address", address, "--watch", "--interval", "2", "--json"]
    # Several blocks of the KV cache.
    asked = {"model": "rayllm-demo", "prompt": [*range(100, 700)], "max_tokens": 2}
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout
        watching.stdout.readline()
        for _ in range(3):
            assert http.post("/v1/completions", json=asked).status_code == 200
        assert http.post("/v1/completions", json=asked | {"max_tokens": 10**9}).status_code == 400
        demos = []
        # The router counts a request when its reply has ended, so the next report may still lack some.
        while not demos or demos[-1]["requests_per_s"] > 0 or not any(demo["requests_per_s"] for demo in demos):
            models = json.loads(watching.stdout.readline())["models"]
            demos.append(next(model for model in models if model["model_id"] == "rayllm-demo"))
        watching.send_signal(signal.SIGINT)
        assert watching.wait(timeout=60) == 0
    busy = [demo for demo in demos if demo["requests_per_s"]]
    assert all(0 < demo["first_token_s"] < 60 for demo in busy if demo["first_token_s"] is not None)
    assert max(demo["cached_share"] or 0 for demo in busy) > 0.3
    assert demos[-1]["totals"]["requests"] >= 4


def test_a_start_is_noted_for_as_long_as_it_lasts(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_progress, "_PERIOD_S", 0.0)
    notes = StartProgress("a-replica")
    with notes.phase("fetch"):
        assert starts(["a-replica", "another"])["a-replica"].phase == "fetch"
        notes.fetched(5, 10)
        [start] = starts(["a-replica"]).values()
        assert (start.phase, start.done, start.size) == ("fetch", 5, 10)
    # An adapter that is fetched later is no start.
    notes.fetched(6, 10)
    assert starts(["a-replica"]) == {}


def test_for_people(service: Service) -> None:
    lines = status().splitlines()
    assert re.split("  +", lines[0]) == [
        *("model", "status", "replicas", "ongoing", "waiting", "requests/s", "refused/s"),
        *("first token", "tokens/s", "cached", "KV cache", "adapters"),
    ]
    [row] = [line for line in lines if line.startswith("rayllm-demo ")]
    assert row.split()[1:3] == ["healthy", "1/1"]
    assert any(re.search(r"runs in (bfloat16|float32), 1 thread; its start took fetch", line) for line in lines)
