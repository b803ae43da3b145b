"""Traces in a real collector: Arize Phoenix, which takes them by OTLP and shows them.

`make test-traces` installs it beside ours, in `.venv-collector`, and runs this.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.service import DEMO, ROOT
from tests.integration.test_leaving import within
from tests.integration.test_openai_api import CHAT
from tests.servers.process import free_port

PHOENIX = Path(os.environ.get("PHOENIX", ROOT / ".venv-collector" / "bin" / "phoenix"))
pytestmark = pytest.mark.skipif(not PHOENIX.exists(), reason="needs a collector: `make test-traces`")
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@contextmanager
def running(command: list[str], log: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command in the background, interrupted at the end."""
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **variables})
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(90)


def wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until `rayllm run`, which prints to `log`, has its models ready."""

    def is_ready() -> bool:
        assert process.poll() is None, log.read_text()[-4000:]
        return "Ready: " in log.read_text()

    assert within(300, is_ready), log.read_text()[-4000:]


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, str]]:
    """The collector's API, and where it takes traces by gRPC."""
    folder = tmp_path_factory.mktemp("phoenix")
    port, grpc_port = free_port(), free_port()
    variables = {
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(grpc_port),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    with (
        running([str(PHOENIX), "serve"], folder / "log", **variables),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):
        assert within(120, lambda: _answers(client)), (folder / "log").read_text()
        yield client, f"http://127.0.0.1:{grpc_port}"


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def url(collector: tuple[httpx.Client, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The demo, as `rayllm run` serves it where the environment names the collector."""
    log, port = tmp_path_factory.mktemp("traced") / "log", free_port()
    command = [sys.executable, "-m", "rayllm", "run", str(DEMO), "--port", str(port)]
    with running(command, log, OTEL_EXPORTER_OTLP_ENDPOINT=collector[1], OTEL_SERVICE_NAME="tested") as process:
        wait_until_ready(process, log)
        yield f"http://127.0.0.1:{port}"


def spans(collector: httpx.Client, trace: str) -> list[dict[str, Any]]:
    reply = collector.get("/v1/projects/default/spans", params={"limit": 1000})
    if reply.status_code != 200:
        return []
    return [span for span in reply.json()["data"] if span["context"]["trace_id"] == trace]


def test_a_request_is_one_trace(collector: tuple[httpx.Client, str], url: str) -> None:
    message = {"role": "user", "content": "What is the capital of France?"}
    body = {"model": "rayllm-demo:pirate", "messages": [message], "temperature": 0, "stream": True}
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "traced"}
    assert httpx.post(url + CHAT, json=body, headers=headers, timeout=60).status_code == 200
    rubbish = httpx.post(url + CHAT, json=body, headers={"traceparent": "00-rubbish"}, timeout=60)
    assert rubbish.status_code == 200
    client = collector[0]
    assert within(60, lambda: bool(spans(client, TRACE))), "nothing has arrived"
    time.sleep(1)
    found = {span["name"]: span for span in spans(client, TRACE)}
    assert {"chat rayllm-demo", "router", "transfer", "prepare", "prefill", "decode"} <= found.keys()
    request = found.pop("chat rayllm-demo")
    assert request["parent_id"] == PARENT
    assert {span["parent_id"] for span in found.values()} == {request["context"]["span_id"]}
    attributes = request["attributes"]
    assert attributes["rayllm.request_id"] == "traced"
    assert attributes["gen_ai.request.model"] == "rayllm-demo:pirate"
    assert attributes["gen_ai.usage.output_tokens"] > 5
    assert attributes["http.response.status_code"] == 200
