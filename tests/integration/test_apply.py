"""`rayllm apply` as a person uses it, while somebody talks to one of the models."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
import yaml

from rayllm.serving.cluster.deployment import deployed
from tests.integration.service import DEMO, ROOT

NAME, PREFIX = "applied", "/applied"


def model(model_id: str, **keys: Any) -> dict[str, Any]:
    """The demo under another name."""
    demo = yaml.safe_load(DEMO.read_text())
    weights = DEMO.parent / demo["model_loading_config"]["model_source"]
    demo["model_loading_config"] = {"model_id": model_id, "model_source": str(weights.resolve())}
    demo["deployment_config"] = {"max_constructor_retry_count": 1} | keys.pop("deployment_config", {})
    del demo["lora_config"]
    return demo | keys


def apply(file: Path, *models: dict[str, Any], options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Write a serve config with these models, and apply it."""
    application = {"name": NAME, "route_prefix": PREFIX, "import_path": "rayllm:app"}
    file.write_text(yaml.safe_dump({"applications": [application | {"args": {"llm_configs": list(models)}}]}))
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-m", "rayllm", "apply", str(file), "--address", address, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=400, cwd=ROOT, check=False)


def effects(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """What was shown for each model."""
    assert done.returncode == 0, done.stdout + done.stderr
    [application] = json.loads(done.stdout)["applications"]
    return {change["model_id"]: change["effect"] for change in application["models"]}


def actors(deployment: str) -> set[str]:
    """The processes of a deployment."""
    details = deployed.applications()[NAME]["deployments"][deployment]
    return {replica["actor_id"] for replica in details["replicas"]}


@contextmanager
def talk(url: str, model_id: str) -> Iterator[list[int]]:
    """Ask the model again and again; gives the statuses."""
    statuses: list[int] = []
    stop = threading.Event()

    def ask() -> None:
        body = {"model": model_id, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
        with httpx.Client(base_url=url, timeout=120) as client:
            while not stop.is_set():
                statuses.append(client.post(f"{PREFIX}/v1/chat/completions", json=body).status_code)
                stop.wait(0.1)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield statuses
    finally:
        stop.set()
        thread.join()


@pytest.mark.timeout(900)
def test_models_come_change_and_go_beside_others(proxy_url: str, tmp_path: Path) -> None:
    file, show = tmp_path / "serve.yaml", ("--json",)
    assert effects(apply(file, model("a"), options=show)) == {"a": "added"}
    mine = actors("a")
    with talk(proxy_url, "a") as statuses:
        limited = model("a", deployment_config={"max_ongoing_requests": 7, "graceful_shutdown_timeout_s": 9})
        assert effects(apply(file, limited, model("b"), options=show)) == {"a": "in place", "b": "added"}
        with httpx.Client(base_url=proxy_url, timeout=120) as client:
            names = [card["id"] for card in client.get(f"{PREFIX}/v1/models").json()["data"]]
            body = {"model": "b", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
            assert client.post(f"{PREFIX}/v1/chat/completions", json=body).status_code == 200
        assert names == ["a", "b"]
        assert effects(apply(file, limited, options=show)) == {"a": "untouched", "b": "removed"}
    assert actors("a") == mine
    assert len(statuses) > 10
    assert set(statuses) == {200}

    too_many = {"env_vars": {"OMP_NUM_THREADS": "4096"}}
    broken = apply(file, limited, model("c", runtime_env=too_many))
    assert broken.returncode == 1
    assert "+ c: added" in broken.stdout
    [line] = [line for line in broken.stderr.splitlines() if line.startswith("error: ")]
    assert f"application `{NAME}`: deploy failed: `c`: " in line
    assert "runtime_env.env_vars.OMP_NUM_THREADS: 4096 threads are more than this machine's" in broken.stderr
    assert actors("a") == mine
    assert effects(apply(file, limited, options=show)) == {"a": "untouched", "c": "removed"}


def test_no_cluster_is_one_sentence_and_a_hint(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("model_loading_config: {model_id: m}")
    command = [sys.executable, "-m", "rayllm", "apply", str(tmp_path / "m.yaml"), "--address", "127.0.0.1:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: no Ray cluster answers at 127.0.0.1:1" in done.stderr
    assert "hint: " in done.stderr
    assert "Traceback" not in done.stderr
