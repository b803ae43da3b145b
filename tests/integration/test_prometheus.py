"""A real Prometheus scrapes the service, and evaluates every panel and every alert of deploy/."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.integration.observability_files import ALERTS, panels
from tests.integration.service import ROOT, Service
from tests.integration.test_leaving import within
from tests.integration.test_openai_api import CHAT
from tests.servers.process import free_port

PROMETHEUS = shutil.which("prometheus")
pytestmark = pytest.mark.skipif(PROMETHEUS is None, reason="needs Prometheus: `apt install prometheus`")
# The panel of what does not happen here.
EMPTY = "rayllm-operators: Failures"


@pytest.fixture(scope="module")
def prometheus(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Prometheus with our configuration, but for the address and the interval."""
    folder = tmp_path_factory.mktemp("prometheus")
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yaml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(ALERTS)]
    config["scrape_configs"][0]["static_configs"] = [{"targets": [service.url.removeprefix("http://")]}]
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    with (folder / "log").open("w") as log:
        running = subprocess.Popen(
            [
                str(PROMETHEUS),
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        with httpx.Client(base_url=f"http://{address}/api/v1", timeout=30) as client:
            assert within(60, lambda: _is_ready(client)), Path(log.name).read_text()
            yield client
    finally:
        running.terminate()
        running.wait(30)


def _is_ready(client: httpx.Client) -> bool:
    """Whether Prometheus answers queries (503 while it starts) and has scraped the service."""
    try:
        reply = client.get("/query", params={"query": "up == 1"})
    except httpx.TransportError:
        return False
    return reply.status_code == 200 and bool(reply.json()["data"]["result"])


def query(client: httpx.Client, expression: str) -> list[Any]:
    reply = client.get("/query", params={"query": expression})
    assert reply.status_code == 200, f"{expression}: {reply.text}"
    found: list[Any] = reply.json()["data"]["result"]
    return found


def test_every_panel_shows_something(prometheus: httpx.Client, http: httpx.Client) -> None:
    deadline = time.monotonic() + 60
    missing = panels()
    while any(not name.startswith(EMPTY) for name in missing) and time.monotonic() < deadline:
        for model in ("rayllm-demo", "rayllm-demo:pirate", "no-such-model"):
            body = {"model": model, "messages": [{"role": "user", "content": "What is RayLLM?"}], "max_tokens": 4}
            http.post(CHAT, json=body)
        missing = {
            name: expression
            for name, expression in missing.items()
            if not query(prometheus, expression.replace("$__rate_interval", "1m").replace("$model", "rayllm-demo"))
        }
        time.sleep(1)
    assert not [name for name in missing if not name.startswith(EMPTY)]


def test_no_alert_fires_while_all_is_well(prometheus: httpx.Client) -> None:
    groups = prometheus.get("/rules").json()["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) >= 8
    assert within(60, lambda: {rule["health"] for rule in _rules(prometheus)} == {"ok"})
    assert [rule["name"] for rule in _rules(prometheus) if rule["state"] == "firing"] == []
    assert all(rule["annotations"]["remedy"] for rule in rules)


def _rules(client: httpx.Client) -> list[dict[str, Any]]:
    return [rule for group in client.get("/rules").json()["data"]["groups"] for rule in group["rules"]]
