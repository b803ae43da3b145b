"""The servers that are compared, each a process tree of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml

from rayllm.config import LocalSource, ModelConfig, load_model
from rayllm.engine.arguments import STRUCTURED_OUTPUTS
from rayllm.prompt import compile_template

ROOT = Path(__file__).parent.parent
DEMO = ROOT / "models" / "rayllm-demo.yaml"


@dataclass(frozen=True)
class Server:
    """A running server."""

    name: str
    url: str
    process: psutil.Process

    def cpu_s(self) -> float:
        """CPU seconds spent so far by all its processes, the ended ones aside."""
        total = 0.0
        for member in [self.process, *self.process.children(recursive=True)]:
            try:
                times = member.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return total


@contextmanager
def rayllm(model: Path = DEMO) -> Iterator[Server]:
    """RayLLM with one model, as `make run` starts it."""
    port = _free_port()
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        args = {"llm_configs": [str(model)]}
        application = {"name": "rayllm", "route_prefix": "/", "import_path": "rayllm:app", "args": args}
        yaml.safe_dump({"applications": [application]}, config)
        config.flush()
        command = [sys.executable, "-m", "rayllm", "run", config.name, "--port", str(port)]
        with _running("rayllm", command, port, os.environ | {}) as server:
            yield server


@contextmanager
def bare_vllm(path: Path = DEMO) -> Iterator[Server]:
    """vLLM's own server on the same weights, template and engine arguments."""
    model, port = load_model(path), _free_port()
    assert isinstance(model.source, LocalSource)
    with ExitStack() as files:
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
        options = {
            "--model": model.source.path,
            "--served-model-name": model.model_id,
            "--max-model-len": str(model.max_model_len),
            "--dtype": model.engine_kwargs["dtype"],
            "--max-num-seqs": str(model.engine_kwargs["max_num_seqs"]),
            "--port": str(port),
            "--host": "127.0.0.1",
        }
        if prompt_format := model.generation_config.prompt_format:
            template = files.enter_context(tempfile.NamedTemporaryFile("w", suffix=".jinja"))
            template.write(compile_template(prompt_format))
            template.flush()
            options["--chat-template"] = template.name
        if model.task == "embed":
            options |= {"--runner": "pooling", "--convert": "embed"}
        command += [word for option in options.items() for word in option] + _features(model)
        variables = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", **model.runtime_env["env_vars"]}
        # Ray gives an actor as many threads as it has CPUs, here one; the other server gets the same.
        variables["OMP_NUM_THREADS"] = "1"
        with _running("vllm", command, port, os.environ | variables) as server:
            yield server


def _features(model: ModelConfig) -> list[str]:
    """Switches for adapters and tools, as vLLM's command line has them."""
    switches = ["--disable-uvicorn-access-log", "--structured-outputs-config", json.dumps(STRUCTURED_OUTPUTS)]
    if model.lora_config:
        most = str(model.lora_config.max_num_adapters_per_replica)
        switches += ["--enable-lora", "--max-loras", most, "--max-cpu-loras", most]
        switches += ["--lora-modules", *(f"{model.model_id}:{name}={path}" for name, path in _adapters(model))]
    if model.tool_calling:
        switches += ["--enable-auto-tool-choice", "--tool-call-parser", str(model.tool_calling.parser)]
    return switches


def _adapters(model: ModelConfig) -> list[tuple[str, Path]]:
    folder = model.lora_config.dynamic_lora_loading_path if model.lora_config else None
    return sorted((path.name, path) for path in Path(folder).iterdir()) if folder else []


@contextmanager
def _running(name: str, command: list[str], port: int, environment: dict[str, str]) -> Iterator[Server]:
    log = Path(tempfile.gettempdir()) / f"rayllm-benchmark-{name}.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
    try:
        server = Server(name, f"http://127.0.0.1:{port}", psutil.Process(process.pid))
        _wait(server, process, log)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def _wait(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 600
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"{server.name} ended while it was starting; see {log}")
        try:
            urllib.request.urlopen(f"{server.url}/v1/models", timeout=5).close()
            return
        except OSError:
            time.sleep(1)
    raise RuntimeError(f"{server.name} was not ready within 600 s; see {log}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
