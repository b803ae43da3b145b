"""A Ray cluster of a program's own, whose GPUs are fake: vLLM computes on CPUs, and all else is as on GPUs.

The platform is in the folder `fake_gpu`. Engines run vLLM's second model runner, as they do on GPUs.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from tests.integration.service import DEMO, ROOT
from tests.servers.process import free_port
from tests.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server

FRANCE = "What is the capital of France?"
PARIS = "The capital of France is Paris."
# What selects the node of the head.
ON_HEAD = {"node:__internal_head__": 0.001}
_FOLDERS = Path(__file__).with_name("fake_gpu"), Path(__file__).with_name("interpreted_triton"), ROOT
PLATFORM = {
    "PYTHONPATH": os.pathsep.join(map(str, _FOLDERS)),
    "TRITON_INTERPRET": "1",
}
"""The environment of processes that find fake GPUs, and run vLLM's second model runner on them."""


@dataclass(frozen=True)
class Place:
    """Where a node runs: the address of its machine, and what commands there begin with."""

    ip: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()


HERE = Place()


class GpuCluster:
    """Nodes with fake H100.

    Attributes:
        address: that of the GCS, for `rayllm apply`.
        url: where the routers listen.
        faults: a folder whose files cause faults: see the worker.
    """

    def __init__(self, folder: Path, gpus: int, head: Place = HERE) -> None:
        self._folder, self._head = folder, head
        self._token = secrets.token_hex(32)
        self.faults = folder / "faults"
        self.faults.mkdir()
        self.url = f"http://{head.ip}:{free_port()}"
        port = free_port()
        self.address = f"{head.ip}:{port}"
        # Not below pytest's folder, whose path is too long for Ray's sockets.
        self.session = tempfile.mkdtemp(prefix="rayllm-gpu-")
        ports = [f"--port={port}", f"--ray-client-server-port={free_port()}"]
        self._nodes: list[subprocess.Popen[bytes]] = []
        self._start("--head", "--include-dashboard=false", f"--temp-dir={self.session}", *ports, gpus=gpus, place=head)
        until(self._is_up)
        self._wait_for_nodes()

    def _is_up(self) -> bool:
        host, port = self.address.split(":")
        with socket.socket() as connection:
            return connection.connect_ex((host, int(port))) == 0

    def add_node(self, gpus: int, place: Place = HERE) -> None:
        """Start another node."""
        self._start(f"--address={self.address}", gpus=gpus, place=place)
        self._wait_for_nodes()

    def raylet(self, number: int) -> psutil.Process:
        """That of a node, counted from the head, which is 0."""
        children = psutil.Process(self._nodes[number].pid).children()
        return next(child for child in children if child.name() == "raylet")

    def alive(self) -> int:
        """How many nodes Ray takes for alive."""
        return self._count("sum(node['Alive'] for node in ray.nodes())")

    def _wait_for_nodes(self) -> None:
        until(lambda: self._count("len(ray.nodes())") == len(self._nodes))

    def _count(self, expression: str) -> int:
        # Ray prints what it has to say of nodes, too.
        counted = re.search(r"^counted (\d+)$", self._run(f"print('counted', {expression})"), re.MULTILINE)
        assert counted is not None
        return int(counted[1])

    def _start(self, *options: str, gpus: int, place: Place) -> None:
        command = [*place.prefix, str(Path(sys.executable).with_name("ray")), "start", "--block", "--num-cpus=8"]
        command += [f"--num-gpus={gpus}", '--resources={"accelerator_type:H100": 1}'] if gpus else ["--num-gpus=0"]
        # GPUs of different nodes have the same numbers.
        environment = self.environment() | {"FAKE_GPU_MEMORY": str(self._folder / f"memory-{len(self._nodes)}")}
        self._nodes.append(subprocess.Popen([*command, *options], env=environment, stdout=subprocess.DEVNULL))

    def environment(self) -> dict[str, str]:
        """The environment of the cluster and of commands that talk to it."""
        variables = {name: value for name, value in os.environ.items() if name != "_RAYLLM_FORKED_WORKERS"}
        return variables | {
            **PLATFORM,
            "FAKE_GPU_FAULTS": str(self.faults),
            "RAYLLM_CACHE_DIR": str(self._folder / "cache"),
            "RAY_worker_niceness": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self._token,
        }

    def apply(self, *models: dict[str, Any]) -> None:
        """Deploy an application with these models, and wait until all are healthy."""
        router = {"listen": self.url.removeprefix("http://"), "num_replicas": 1, "allow_anyone": True}
        application: dict[str, Any] = {"name": "gpu", "route_prefix": "/", "import_path": "rayllm:app"}
        if self._head != HERE:
            actor = {"num_cpus": 0, "resources": ON_HEAD}
            application["deployments"] = [{"name": "Router", "ray_actor_options": actor}]
        file = self._folder / "serve.yaml"
        args = {"llm_configs": list(models), "router": router}
        file.write_text(yaml.safe_dump({"proxy_location": "Disabled", "applications": [application | {"args": args}]}))
        command = [*self._head.prefix, sys.executable, "-m", "rayllm", "apply", str(file)]
        command += ["--address", self.address, "--timeout", "300"]
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True, cwd=ROOT, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def delete(self) -> None:
        """Delete the application."""
        self._run("from ray import serve; serve.delete('gpu')")

    def groups(self) -> list[str]:
        """The placement groups that there are."""
        table = "ray.util.placement_group_table().items() if group['state'] != 'REMOVED'"
        return self._run(f"print(*(key for key, group in {table}), sep='\\n')").split()

    def _run(self, code: str) -> str:
        """What a program prints that is connected to the cluster."""
        program = f"import ray; ray.init('{self.address}', namespace='serve', log_to_driver=False)\n{code}"
        command = [*self._head.prefix, sys.executable, "-c", program]
        done = subprocess.run(command, env=self.environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def processes(self, title: str) -> list[psutil.Process]:
        """The cluster's processes whose command line begins so."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                log = os.readlink(f"/proc/{process.pid}/fd/1")
                if log.startswith(self.session) and " ".join(process.cmdline()).startswith(title):
                    found.append(process)
        return found

    def engine_processes(self) -> list[psutil.Process]:
        """The engines' own processes and their workers."""
        return self.processes("VLLM::")

    def stop(self) -> None:
        """Kill the nodes, which take half a minute to end in peace."""
        for node in self._nodes:
            for process in [*psutil.Process(node.pid).children(recursive=True), *self.processes(""), node]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            node.wait(60)


@contextmanager
def running(folder: Path, gpus: int = 8, head: Place = HERE) -> Iterator[GpuCluster]:
    """A cluster of one node with so many GPUs, for as long as the block runs."""
    cluster = GpuCluster(folder, gpus, head)
    try:
        yield cluster
    finally:
        cluster.stop()


def gpu_model(model_id: str = "rayllm-demo", degree: int = 1, **keys: Any) -> dict[str, Any]:
    """The demo on GPUs.

    Args:
        degree: of tensor parallelism.
        keys: of the model's file, beside or instead of the demo's.
    """
    demo: dict[str, Any] = yaml.safe_load(DEMO.read_text())
    root = DEMO.parent / "rayllm-demo"
    demo["model_loading_config"] = {"model_id": model_id, "model_source": str(root / "weights")}
    demo["lora_config"]["dynamic_lora_loading_path"] = str(root / "adapters")
    demo |= {"accelerator_type": "H100", "tensor_parallelism": {"degree": degree}}
    # What RayLLM chooses for engines on CPUs.
    demo["engine_kwargs"] |= {"enforce_eager": True, "dtype": "float32"}
    # Workers run the largest batch when they start, which takes seconds on a CPU.
    demo["engine_kwargs"]["max_num_batched_tokens"] = 1024
    return demo | keys


def take_from(s3: S3Server, model: dict[str, Any]) -> None:
    """Put the demo's weights and its adapter into a store, and have the model fetch them from there."""
    demo = DEMO.parent / "rayllm-demo"
    s3.put("models", {f"demo/{file.name}": file for file in (demo / "weights").iterdir()})
    s3.put("adapters", {f"pirate/{file.name}": file for file in (demo / "adapters" / "pirate").iterdir()})
    model["model_loading_config"]["model_source"] = "s3://models/demo"
    model["lora_config"]["dynamic_lora_loading_path"] = "s3://adapters"
    model["runtime_env"]["env_vars"] |= {
        "AWS_ENDPOINT_URL_S3": s3.url,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": REGION,
    }


def copy_adapters(folder: Path) -> None:
    """Fill a folder with adapters: one that is sound, one that is broken, and one that the second GPU fails to load."""
    for name in ("pirate", "broken", "unlucky"):
        shutil.copytree(DEMO.parent / "rayllm-demo" / "adapters" / "pirate", folder / name)
    with (folder / "broken" / "adapter_model.safetensors").open("r+b") as weights:
        weights.truncate(1000)


def say(url: str, model: str = "rayllm-demo", question: str = FRANCE) -> str:
    """The answer of a model at temperature 0, which may have to start first."""
    body = {"model": model, "messages": [{"role": "user", "content": question}], "temperature": 0}
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=400)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["message"]["content"])


def until(condition: Callable[[], object], timeout_s: float = 120) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"not within {timeout_s} s"
        time.sleep(0.2)
