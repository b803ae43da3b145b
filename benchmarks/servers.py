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
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import psutil
import yaml

from benchmarks.processes import engines_of
from rayllm.config import LocalSource, ModelConfig, load_model
from rayllm.engine.cpu import CPU_VARIABLES, with_cpu_defaults
from rayllm.prompt import compile_template

ROOT = Path(__file__).parent.parent
DEMO = ROOT / "models" / "rayllm-demo.yaml"
# Beside other servers Ray's own daemons may take longer to start than it waits by itself.
PATIENCE = {"RAY_raylet_start_wait_time_s": "400"}
# No server of ours may refuse what it could serve.
MAX_STREAMS = 4096
# Of vLLM's own backends, only xgrammar reads what vLLM makes of tools. Like RayLLM, it writes no free white space.
_STRUCTURED_OUTPUTS = {"backend": "xgrammar", "disable_any_whitespace": True}


@dataclass(frozen=True)
class Server:
    """A running server."""

    name: str
    url: str
    process: psutil.Process
    headers: Mapping[str, str] = field(default_factory=dict)
    """What its clients send besides."""

    def cpu_s(self) -> float:
        """CPU seconds spent so far by all its processes, the ended ones aside."""
        return sum(self.cpu_by_kind().values())

    def cpu_by_kind(self) -> dict[str, float]:
        """CPU seconds spent so far by its processes, the ended ones aside, by what the processes are."""
        return self._by_kind(lambda member: sum(member.cpu_times()[:2]))

    def memory_mb(self) -> dict[str, float]:
        """MB that its processes hold, what they share divided among them, by what the processes are."""
        return self._by_kind(lambda member: member.memory_full_info().pss / 1e6)

    def _by_kind(self, value: Callable[[psutil.Process], float]) -> dict[str, float]:
        sums: dict[str, float] = defaultdict(float)
        for member in self._processes():
            with suppress(psutil.NoSuchProcess):
                sums[self._kind(member)] += value(member)
        return sums

    def open_files(self) -> list[str]:
        """What the descriptors of all its processes lead to."""
        targets = []
        for member in self._processes():
            with suppress(OSError):
                targets += [os.readlink(file) for file in Path(f"/proc/{member.pid}/fd").iterdir()]
        return targets

    def _processes(self) -> list[psutil.Process]:
        members = [self.process, *self.process.children(recursive=True)]
        engines = [engine for engine in engines_of(members) if engine not in members]
        return [*members, *engines, *{server for engine in engines if (server := engine.parent())}]

    def _kind(self, member: psutil.Process) -> str:
        command = member.cmdline() or [member.name()]
        if member == self.process:
            return "main"
        if command[0].startswith("ray::ServeReplica:"):
            # ray::ServeReplica:<application>:<deployment>
            return command[0].split()[0].split(":")[-1]
        if command[0].startswith(("ray::", "VLLM::")):
            return command[0].split()[0].split("::")[1].split(".")[0]
        return "haproxy" if Path(command[0]).name == "haproxy" else "other"


@contextmanager
def rayllm(
    model: Path = DEMO,
    variables: Mapping[str, str] = MappingProxyType({}),
    proxy_location: str = "Disabled",
    name: str = "rayllm",
    router: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[Server]:
    """RayLLM with one model, as `make run` starts it, and room for whatever load there is.

    Args:
        model: its YAML.
        variables: more environment for all its processes.
        proxy_location: where Ray Serve's proxies are, which stand before the routers then.
        name: tells it from others that run beside it.
        router: more of its router's options.
    """
    port = free_port()
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        args = {"llm_configs": [str(model)], "router": {"max_ongoing_requests": MAX_STREAMS, **router}}
        application = {"name": "rayllm", "route_prefix": "/", "import_path": "rayllm:app", "args": args}
        yaml.safe_dump({"proxy_location": proxy_location, "applications": [application]}, config)
        config.flush()
        command = [sys.executable, "-m", "rayllm", "run", config.name, "--port", str(port)]
        # Other paths need a key, where there are some.
        health = "/health" if "keys" in router else "/v1/models"
        with running(name, command, port, os.environ | PATIENCE | dict(variables), health) as server:
            yield server


@contextmanager
def rayllm_relaying(path: Path = DEMO, variables: Mapping[str, str] = MappingProxyType({})) -> Iterator[Server]:
    """RayLLM whose routers relay replies by HTTP, as they do for web pages of other origins and to other nodes."""
    origin = "http://elsewhere"
    with rayllm(path, variables, name="rayllm relaying", router={"cors": {"allow_origins": [origin]}}) as server:
        yield replace(server, headers={"Origin": origin})


@contextmanager
def rayllm_behind_proxy(path: Path = DEMO, variables: Mapping[str, str] = MappingProxyType({})) -> Iterator[Server]:
    """RayLLM behind Ray Serve's own proxy."""
    with rayllm(path, variables, "HeadOnly", "rayllm behind proxy") as server:
        yield server


@contextmanager
def rayllm_behind_haproxy(path: Path = DEMO, variables: Mapping[str, str] = MappingProxyType({})) -> Iterator[Server]:
    """RayLLM behind the HAProxy that Ray Serve can start in place of its proxy."""
    variables = {**variables, "RAY_SERVE_ENABLE_HA_PROXY": "1"}
    with rayllm(path, variables, "HeadOnly", "rayllm behind haproxy") as server:
        yield server


@contextmanager
def bare_vllm(
    path: Path = DEMO, variables: Mapping[str, str] = MappingProxyType({}), executor: str | None = None
) -> Iterator[Server]:
    """vLLM's own server on the same weights, template and engine arguments.

    Args:
        path: the model's file.
        variables: environment variables of the server.
        executor: import path of an executor in place of the one that vLLM chooses.
    """
    model, port = load_model(path), free_port()
    assert isinstance(model.source, LocalSource)
    arguments, environment = _on_this_cpu(model)
    with ExitStack() as files:
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager"]
        options = {
            "--model": model.source.path,
            "--served-model-name": model.model_id,
            "--max-model-len": str(model.max_model_len),
            "--dtype": arguments["dtype"],
            "--max-num-seqs": str(arguments["max_num_seqs"]),
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
        if executor is not None:
            options["--distributed-executor-backend"] = executor
        command += [word for option in options.items() for word in option] + _features(model)
        with running("vllm", command, port, os.environ | environment | dict(variables)) as server:
            yield server


@contextmanager
def ray_serve_llm(path: Path = DEMO, variables: Mapping[str, str] = MappingProxyType({})) -> Iterator[Server]:
    """ray.serve.llm as it comes, on the same weights, template and engine arguments."""
    with _ray_serve_llm("ray.serve.llm", path, variables, {}) as server:
        yield server


@contextmanager
def ray_serve_llm_grpc(path: Path = DEMO, variables: Mapping[str, str] = MappingProxyType({})) -> Iterator[Server]:
    """ray.serve.llm with Ray Serve's bundle of options for throughput, gRPC between deployments in it."""
    tuned = {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}
    experimental = {"stream_batching_interval_ms": 0}
    with _ray_serve_llm("ray.serve.llm grpc", path, {**variables, **tuned}, experimental) as server:
        yield server


@contextmanager
def ray_serve_llm_tuned(path: Path = DEMO, variables: Mapping[str, str] = MappingProxyType({})) -> Iterator[Server]:
    """ray.serve.llm with all that its manual has for speed: HAProxy, streams past the ingress, no batches of chunks."""
    tuned = {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING": "1",
    }
    experimental = {"stream_batching_interval_ms": 0}
    with _ray_serve_llm("ray.serve.llm tuned", path, {**variables, **tuned}, experimental) as server:
        yield server


@contextmanager
def _ray_serve_llm(
    name: str, path: Path, variables: Mapping[str, str], experimental: dict[str, Any]
) -> Iterator[Server]:
    model, port = load_model(path), free_port()
    assert isinstance(model.source, LocalSource)
    arguments, environment = _on_this_cpu(model)
    engine = {**arguments, "max_model_len": model.max_model_len}
    engine["structured_outputs_config"] = _STRUCTURED_OUTPUTS
    if model.lora_config:
        # The engine computes adapters, as the others do; they are listed in a bucket, which none of the loads needs.
        slots = model.lora_config.max_num_adapters_per_replica
        engine |= {"enable_lora": True, "max_loras": slots, "max_cpu_loras": slots}
    if prompt_format := model.generation_config.prompt_format:
        engine["chat_template"] = compile_template(prompt_format)
    config = {
        "model_loading_config": {"model_id": model.model_id, "model_source": model.source.path},
        "placement_group_config": {"bundles": [{"CPU": 1}]},
        "engine_kwargs": engine,
        "experimental_configs": experimental,
        "runtime_env": {"env_vars": environment},
    }
    command = [sys.executable, "-m", "benchmarks.serve_llm", json.dumps(config), str(port)]
    with running(name, command, port, os.environ | PATIENCE | dict(variables)) as server:
        yield server


def _on_this_cpu(model: ModelConfig) -> tuple[dict[str, Any], dict[str, str]]:
    """Engine arguments and environment variables of the model's engine, with RayLLM's choices for this CPU: for all."""
    assert isinstance(model.source, LocalSource)
    with patch.dict(os.environ, model.runtime_env["env_vars"]):
        arguments = with_cpu_defaults(model, Path(model.source.path)).engine_kwargs
        chosen = {name: os.environ[name] for name in CPU_VARIABLES if name in os.environ}
    return arguments, {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", **model.runtime_env["env_vars"], **chosen}


def _features(model: ModelConfig) -> list[str]:
    """Switches for adapters and tools, as vLLM's command line has them."""
    switches = ["--disable-uvicorn-access-log", "--structured-outputs-config", json.dumps(_STRUCTURED_OUTPUTS)]
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
def running(
    name: str, command: list[str], port: int, environment: dict[str, str], health: str = "/v1/models"
) -> Iterator[Server]:
    """A server in a process group of its own, once `health` answers. Its output goes to a temporary file."""
    log = Path(tempfile.gettempdir()) / f"rayllm-benchmark-{name.replace(' ', '-')}.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
    try:
        server = Server(name, f"http://127.0.0.1:{port}", psutil.Process(process.pid))
        _wait(server, process, log, health)
        yield server
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    try:
        left = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        left = []
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
    # What a killed cluster leaves behind would weigh on the next measurement.
    for member in psutil.wait_procs(left, 10)[1]:
        member.kill()


def _wait(server: Server, process: subprocess.Popen[bytes], log: Path, health: str) -> None:
    end = time.monotonic() + 600
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"{server.name} ended while it was starting: {_last_line(log)} (see {log})")
        try:
            urllib.request.urlopen(f"{server.url}{health}", timeout=5).close()
            return
        except OSError:
            time.sleep(1)
    raise RuntimeError(f"{server.name} was not ready within 600 s: {_last_line(log)} (see {log})")


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
