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
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of the model's server, with compiled code: the model is compiled as it is for users."""
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "0")
    # PyTorch itself sets this one in a process that compiles.
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("RAYLLM_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def url(cache: Path, tmp_path: Path) -> Iterator[str]:
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


def compiled(cache: Path) -> list[Path]:
    return sorted((cache / "inductor").rglob("*.so"))


def test_a_folder_answers_as_it_was_worked_out(url: str, cache: Path) -> None:
    [card] = httpx.get(f"{url}/v1/models").json()["data"]
    assert (card["id"], card["max_model_len"]) == ("weights", 256)
    asked = {"model": "weights", "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    # A tiny model is compiled, but never while a request waits: not even what a request is the first to need.
    before = compiled(cache)
    assert before
    reply = httpx.post(f"{url}/v1/completions", json=asked, timeout=60)
    assert reply.status_code == 200, reply.text
    assert reply.json()["usage"]["completion_tokens"] > 0
    for field in ({"logprobs": 3}, {"temperature": 1, "top_p": 0.5, "seed": 1}, {"presence_penalty": 1, "n": 40}):
        reply = httpx.post(f"{url}/v1/completions", json=asked | field, timeout=60)
        assert reply.status_code == 200, reply.text
    assert compiled(cache) == before
