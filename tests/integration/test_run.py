"""`rayllm run` as a person uses it: what is wrong is one sentence and a non-zero exit."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from tests.integration.service import ROOT, Service


def rayllm(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    command = [sys.executable, "-m", "rayllm", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=cwd, check=False)


def failure(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that a failed command says."""
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    [line] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    return line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "not valid YAML"),
        ("model_loading_config: {model_id: m}\nnope: 1\n", "nope: unknown key"),
        ("model_loading_config: {model_id: m, model_source: ./none}\n", "no such file or folder"),
        (
            "model_loading_config: {model_id: m}\nengine_kwargs: {tensor_paralel_size: 2}\n",
            "mean `tensor_parallel_size`",
        ),
        ("model_loading_config: {model_id: m, model_source: .}\n", "holds no config.json"),
    ],
)
def test_a_wrong_file(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(text)
    assert said in failure(rayllm("run", str(path), "--port", "0"))


def test_a_missing_file() -> None:
    assert "none.yaml: cannot be read" in failure(rayllm("run", "none.yaml"))


def test_a_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        line = failure(rayllm("run", "serve_configs/demo.yaml", "--port", port))
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in line


def test_gpus_that_are_not_there(service: Service) -> None:
    address = ray.get_runtime_context().gcs_address
    line = failure(rayllm("run", "serve_configs/llama3_1-405b.yaml", "--port", "0", "--address", address))
    assert "one replica needs 1 CPU, 8 GPUs, accelerator type H100 on one node" in line


def test_a_wrong_call_is_usage() -> None:
    done = rayllm("run")
    assert done.returncode == 2
    assert "Missing argument 'MODEL'" in done.stderr
