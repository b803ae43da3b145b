"""Engines whose GPUs are on one node."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from tests.integration.gpu_cluster import FRANCE, PARIS, GpuCluster, copy_adapters, gpu_model, say, until
from tests.integration.service import BACKENDS
from tests.integration.test_gpu_path import kill_one

pytestmark = pytest.mark.timeout(600)

CHAT = "/v1/chat/completions"


def gpus_of(process: psutil.Process) -> list[str]:
    """The GPUs that a process may use."""
    return process.environ()["CUDA_VISIBLE_DEVICES"].split(",")


@pytest.mark.parametrize("degree", [1, 4])
def test_as_many_workers_as_gpus(cluster: GpuCluster, degree: int) -> None:
    cluster.apply(gpu_model(degree=degree))
    assert say(cluster.url) == PARIS
    assert say(cluster.url, "rayllm-demo:pirate").startswith("Arrr")
    [engine] = cluster.processes("VLLM::EngineCore")
    assert len(set(gpus_of(engine))) == degree
    # The first prompt fills a step.
    [counted] = re.findall(
        r"^vllm:prompt_tokens_total{.*} (.*)$", httpx.get(f"{cluster.url}/metrics").text, re.MULTILINE
    )
    assert float(counted) > 1000
    # A single worker is in the engine's process.
    assert len(cluster.processes("VLLM::Worker")) == (degree if degree > 1 else 0)


def test_two_stages(cluster: GpuCluster) -> None:
    """vLLM's workers on CPUs fail on adapters in stages."""
    model = gpu_model(pipeline_parallelism={"degree": 2})
    del model["lora_config"]
    cluster.apply(model)
    assert say(cluster.url) == PARIS


def test_models_share_a_gpu(cluster: GpuCluster) -> None:
    half: dict[str, Any] = {"placement_group_config": {"bundle_per_worker": {"GPU": 0.5}}}
    cluster.apply(gpu_model("one", **half), gpu_model("two", **half))
    assert [say(cluster.url, name) for name in ("one", "two")] == [PARIS, PARIS]
    used = [gpus_of(engine) for engine in cluster.processes("VLLM::EngineCore")]
    assert len(used) == 2
    assert all(len(gpus) == 1 for gpus in used)


def test_an_update_fails_no_request(cluster: GpuCluster) -> None:
    rolling = {"deployment_config": {"num_replicas": 2, "max_surge_percent": 100}}
    cluster.apply(gpu_model(**rolling))
    with ThreadPoolExecutor(1) as thread:
        changed = gpu_model(**rolling)
        changed["engine_kwargs"]["max_num_seqs"] = 8
        update = thread.submit(cluster.apply, changed)
        said = []
        while not update.done():
            said.append(say(cluster.url))
        update.result()
    assert set(said) == {PARIS}


def test_from_zero_and_back(cluster: GpuCluster) -> None:
    scaling = {"min_replicas": 0, "max_replicas": 2, "downscale_delay_s": 2, "look_back_period_s": 1}
    cluster.apply(gpu_model(deployment_config={"autoscaling_config": scaling | {"metrics_interval_s": 0.5}}))
    until(lambda: not cluster.engine_processes())
    assert say(cluster.url) == PARIS
    until(lambda: not cluster.engine_processes())


def test_a_long_step_is_no_fault_and_a_stopped_worker_is(
    cluster: GpuCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.apply(gpu_model(degree=2))
    assert say(cluster.url) == PARIS
    before = cluster.engine_processes()
    (cluster.faults / "step").write_text("90")
    start = time.monotonic()
    assert say(cluster.url) == PARIS
    assert time.monotonic() - start > 90
    assert set(cluster.engine_processes()) == set(before)

    for title in ("VLLM::Worker", "VLLM::EngineCore"):
        stopped = cluster.processes(title)[-1]
        stopped.suspend()
        body = {"model": "rayllm-demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
        start = time.monotonic()
        assert httpx.post(cluster.url + CHAT, json=body, timeout=240).status_code == 200
        with capsys.disabled():
            print(f"{title} stopped: answered after {time.monotonic() - start:.1f} s")
        _, alive = psutil.wait_procs([stopped], timeout=60)
        assert alive == []


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of adapters."""
    folder = tmp_path_factory.mktemp("adapters")
    copy_adapters(folder)
    return str(folder)


def test_a_load_that_fails_on_one_of_two_workers_ends_the_replica(cluster: GpuCluster, adapters: str) -> None:
    cluster.apply(gpu_model(degree=2, lora_config={"dynamic_lora_loading_path": adapters}))
    before = cluster.engine_processes()
    body = {"model": "rayllm-demo:unlucky", "prompt": "a"}
    failed = httpx.post(f"{cluster.url}/v1/completions", json=body, timeout=120)
    assert failed.status_code == 503, failed.text
    _, alive = psutil.wait_procs(before, timeout=60)
    assert alive == []
    assert say(cluster.url) == PARIS


@pytest.mark.parametrize("title", ["VLLM::EngineCore", "ray::ServeReplica:gpu:rayllm-demo"])
def test_a_killed_process_takes_its_replica_and_nothing_else(cluster: GpuCluster, title: str) -> None:
    cluster.apply(gpu_model(degree=2))
    kill_one(cluster, title)
    assert say(cluster.url) == PARIS


def test_a_guided_decoding_backend_runs_on_vllms_first_runner(cluster: GpuCluster, tmp_path: Path) -> None:
    shutil.copytree(BACKENDS / "page-example", tmp_path / "page-example")
    cluster.apply(gpu_model(guided_decoding={"backends_dir": str(tmp_path), "trust_custom_code": True}))
    body = {"model": "rayllm-demo", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
    body["nvext"] = {"guided_decoding_backend": "page-example"}
    reply = httpx.post(cluster.url + CHAT, json=body, timeout=60)
    assert reply.json()["choices"][0]["message"]["content"] == "Custom decoding test"
    [engine] = cluster.processes("VLLM::EngineCore")
    assert engine.environ()["VLLM_USE_V2_MODEL_RUNNER"] == "0"


def test_two_engines_of_a_batch_share_a_gpu(cluster: GpuCluster, tmp_path: Path) -> None:
    model = gpu_model(placement_group_config={"bundle_per_worker": {"GPU": 0.5}})
    (tmp_path / "model.yaml").write_text(yaml.safe_dump(model))
    body = {"model": "rayllm-demo", "messages": [{"role": "user", "content": FRANCE}], "temperature": 0}
    line = {"custom_id": "1", "method": "POST", "url": CHAT, "body": body}
    (tmp_path / "in.jsonl").write_text(json.dumps(line) + "\n")
    command = [sys.executable, "-m", "rayllm", "batch", "run", "in.jsonl", "-o", "out.jsonl", "--model", "model.yaml"]
    command += ["--address", cluster.address, "--concurrency", "2"]
    environment = cluster.environment()
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [answer] = map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())
    assert answer["response"]["body"]["choices"][0]["message"]["content"] == PARIS
    assert list((Path(environment["RAYLLM_CACHE_DIR"]) / "gpus").iterdir())
