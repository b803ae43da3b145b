"""`rayllm status` beside a cluster that serves."""

from __future__ import annotations

import json
import subprocess
import sys

import httpx
import ray

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


def test_for_people(service: Service) -> None:
    lines = status().splitlines()
    assert lines[0].split() == [
        "model",
        "status",
        "replicas",
        "in",
        "hand",
        "waiting",
        "tokens/s",
        "KV",
        "cache",
        "adapters",
    ]
    [row] = [line for line in lines if line.startswith("rayllm-demo ")]
    assert row.split()[1:3] == ["healthy", "1/1"]
    assert any("runs; its start took fetch" in line for line in lines)
