"""The processes behind the service: what they load, and what happens when one dies."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from benchmarks.processes import engines_of, titled
from tests.integration.service import Service

PLAIN = {"model": "demo/plain:1.0", "prompt": "a", "max_tokens": 1}
CAPITAL = {"role": "user", "content": "What is the capital of France?"}
DEMO = {"model": "rayllm-demo", "messages": [CAPITAL], "temperature": 0}


def process(title: str) -> psutil.Process:
    """The process whose title begins so."""
    # Workers are children of the node's daemon, or of the server that forked them.
    [found] = [child for child in psutil.Process().children(recursive=True) if _title(child).startswith(title)]
    return found


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # it has ended meanwhile, or waits for its parent to notice
        return ""


def loaded_libraries(found: psutil.Process) -> str:
    return Path(f"/proc/{found.pid}/maps").read_text()


def test_the_router_has_loaded_no_engine(service: Service) -> None:
    # Not PyTorch, which the tests' workers have from the start: `test_imports.py` has routers load none.
    assert "/vllm/" not in loaded_libraries(process("ray::ServeReplica:rayllm:Router"))
    assert "/vllm/" in loaded_libraries(process("ray::ServeReplica:rayllm:rayllm-demo"))


def test_engines_and_their_helpers_listen_for_this_machine_alone(service: Service) -> None:
    replicas = [process("ray::ServeReplica:rayllm:rayllm-demo"), process("ray::ServeReplica:rayllm:demo")]
    engines = engines_of(replicas)
    assert len(engines) == 2
    helpers = [child for replica in replicas for child in replica.children(recursive=True)]
    for found in {*engines, *helpers, *(engine.parent() for engine in engines)}:
        listening = [one for one in found.net_connections("inet") if one.status == psutil.CONN_LISTEN]
        assert {one.laddr.ip for one in listening} <= {"127.0.0.1", "::1"}, found


def test_engines_are_forked_by_one_server(service: Service) -> None:
    replicas = [process(f"ray::ServeReplica:rayllm:{name}") for name in ("rayllm-demo", "demo--plain")]
    engines = engines_of(replicas)
    assert len(engines) == len(replicas)
    [server] = {engine.parent() for engine in engines}
    assert server is not None
    assert _title(server).startswith("rayllm::ForkServer")
    assert min(engine.nice() for engine in engines) > max(replica.nice() for replica in replicas)
    assert server in [sandbox.parent() for sandbox in titled("rayllm::Sandbox")]
    # It was started before vLLM could say so.
    assert "libgomp" in server.environ()["LD_PRELOAD"]


def test_an_engine_that_dies_is_replaced_and_the_other_model_goes_on(service: Service, http: httpx.Client) -> None:
    replica = process("ray::ServeReplica:rayllm:demo--plain")
    [engine] = engines_of([replica])
    engine.kill()
    with ThreadPoolExecutor(1) as pool:
        # The model has one replica: the request waits for the one that takes its place.
        waiting = pool.submit(http.post, "/v1/completions", json=PLAIN, timeout=300)
        while not waiting.done():
            assert "Paris" in http.post("/v1/chat/completions", json=DEMO).text
            time.sleep(0.5)
    assert waiting.result().status_code == 200
    assert http.get("/ready").status_code == 200
    assert not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE
    assert not replica.is_running()


@pytest.mark.skipif("TRITON_INTERPRET" not in os.environ, reason="needs Triton: `make test-second-runner`")
def test_engines_run_the_second_model_runner(service: Service) -> None:
    """vLLM takes it on CPUs where it finds Triton with a backend for them."""
    for engine in engines_of([process("ray::ServeReplica:rayllm:rayllm-demo")]):
        assert any("libtriton" in library.path for library in engine.memory_maps())
