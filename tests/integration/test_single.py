"""`rayllm run` of a model without a file, on an engine of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.service import ROOT
from tests.integration.test_traces import wait_until_ready
from tests.servers.process import free_port

WEIGHTS = ROOT / "models" / "rayllm-demo" / "weights"


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Where the model answers."""
    log, port = tmp_path / "run.log", free_port()
    command = [sys.executable, "-m", "rayllm", "run", str(WEIGHTS), "--max-model-len", "256", "--port", str(port)]
    with log.open("w") as output:
        running = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        wait_until_ready(running, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=90) == 0


def test_a_folder_answers_as_it_was_worked_out(url: str) -> None:
    [card] = httpx.get(f"{url}/v1/models").json()["data"]
    assert (card["id"], card["max_model_len"]) == ("weights", 256)
    asked = {"model": "weights", "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    reply = httpx.post(f"{url}/v1/completions", json=asked, timeout=60)
    assert reply.status_code == 200, reply.text
    assert reply.json()["usage"]["completion_tokens"] > 0
