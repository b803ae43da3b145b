"""What models cost that nobody uses: the demo beside copies of it that have scaled to zero.

python -m benchmarks.many_models                        with 0, 200 and 1,000 of them
python -m benchmarks.many_models --models 0,50 --write  with others; and put the table into docs/performance.md

A cluster for each number, one after the other. All models but the demo have no replica. `start` is the time from the
command until the demo answers, `apply` that of `rayllm apply` with a changed line for one of the models at zero.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import httpx
import yaml

from benchmarks.compare import publish
from benchmarks.servers import DEMO, PATIENCE, Server, free_port, running
from benchmarks.turns import Running, unary_turn

MODEL = "rayllm-demo"
IDLE_S = 30.0
SETTLE_S = 20.0
ANSWERS, PAGES = 50, 20
AT_ZERO = {"min_replicas": 0, "initial_replicas": 0, "max_replicas": 1}


def write_config(folder: Path, copies: int, is_changed: bool = False) -> Path:
    """A serve config with the demo and copies of it at zero.

    Args:
        folder: where its files go.
        copies: how many.
        is_changed: whether the first copy has another option of its engine.
    """
    demo = yaml.safe_load(DEMO.read_text())
    demo["model_loading_config"]["model_source"] = str(DEMO.parent / MODEL / "weights")
    paths = [str(DEMO)]
    for number in range(copies):
        copy = demo | {"model_loading_config": {**demo["model_loading_config"], "model_id": f"copy-{number:04d}"}}
        copy["deployment_config"] = {"autoscaling_config": AT_ZERO}
        copy.pop("lora_config", None)
        if is_changed and number == 0:
            copy["engine_kwargs"] = {**demo["engine_kwargs"], "max_num_seqs": 8}
        path = folder / f"copy-{number:04d}.yaml"
        path.write_text(yaml.safe_dump(copy))
        paths.append(str(path))
    application = {"name": "rayllm", "route_prefix": "/", "import_path": "rayllm:app", "args": {"llm_configs": paths}}
    config = folder / "serve.yaml"
    config.write_text(yaml.safe_dump({"proxy_location": "Disabled", "applications": [application]}))
    return config


def measure(copies: int) -> dict[str, float]:
    """Start a cluster with so many copies, and measure."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        config = write_config(folder, copies)
        rayllm = [sys.executable, "-m", "rayllm"]
        began = time.monotonic()
        environment = os.environ | PATIENCE
        with running("many models", [*rayllm, "run", str(config), "--port", str(port)], port, environment) as server:
            _latency_ms(server, 1)
            start_s = time.monotonic() - began
            time.sleep(SETTLE_S)
            cpu = _idle_cpu(server)
            pages_ms, warm_ms = _pages_ms(server), _latency_ms(server, ANSWERS)
            changed = str(write_config(folder, copies, is_changed=True))
            status_s = _seconds([*rayllm, "status"])
            apply_s = {"`rayllm apply` of one change, s": _seconds([*rayllm, "apply", changed])} if copies else {}
    return {
        "idle: router, % of a core": 100 * cpu.get("Router", 0.0),
        "idle: Serve's controller, % of a core": 100 * cpu.get("ServeController", 0.0),
        "idle: replica and engine of the demo, % of a core": 100 * (cpu.get(MODEL, 0.0) + cpu.get("EngineCore", 0.0)),
        "idle: all else, Ray's daemons, % of a core": 100 * _others(cpu),
        "`/v1/models`, ms": pages_ms,
        "warm answer of one token, ms": warm_ms,
        "`rayllm status`, s": status_s,
        "start to the first answer, s": start_s,
        **apply_s,
    }


def _idle_cpu(server: Server) -> dict[str, float]:
    """Share of a core that each kind of process takes while nobody asks."""
    before, began = server.cpu_by_kind(), time.monotonic()
    time.sleep(IDLE_S)
    after, wall = server.cpu_by_kind(), time.monotonic() - began
    return {kind: (spent - before.get(kind, 0.0)) / wall for kind, spent in after.items()}


def _others(cpu: Mapping[str, float]) -> float:
    named = {"Router", "ServeController", MODEL, "EngineCore"}
    return sum(share for kind, share in cpu.items() if kind not in named)


def _pages_ms(server: Server) -> float:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        took = []
        for _ in range(PAGES):
            began = time.perf_counter()
            client.get("/v1/models").raise_for_status()
            took.append(time.perf_counter() - began)
    return 1000 * statistics.median(took)


def _latency_ms(server: Server, answers: int) -> float:
    return unary_turn(Running("rayllm", server, MODEL), at_once=1, answers=answers)["latency p50, ms"]


def _seconds(command: list[str]) -> float:
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def main() -> None:
    """Measure, and print or publish the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", type=lambda text: [int(one) for one in text.split(",")], default=[0, 200, 1000], help="at zero"
    )
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    options = parser.parse_args()
    found = [measure(copies) for copies in options.models]
    lines = ["| | " + " | ".join(f"{copies:,} at zero" for copies in options.models) + " |"]
    lines.append("|---|" + "--:|" * len(found))
    for name in found[-1]:
        lines.append(f"| {name} | " + " | ".join(f"{each[name]:.3g}" if name in each else "–" for each in found) + " |")
    publish("many-models", "\n".join(lines))


if __name__ == "__main__":
    main()
