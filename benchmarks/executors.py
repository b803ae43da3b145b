"""An engine on one GPU, with its worker in the engine's own process and with one that Ray has started, in turns.

python -m benchmarks.executors           print the table
python -m benchmarks.executors --write   also put it into docs/performance.md

GPUs are fake: vLLM computes on the CPU, and placement, processes and queues are as on GPUs.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks import load
from benchmarks.compare import publish, read_options, take_turns
from tests.integration.gpu_cluster import GpuCluster, gpu_model, running

OWN, BY_RAY = "own", "ray"
STREAMS = (1, 16)
ANSWERS, TOKENS = 4, 200


@dataclass(frozen=True)
class Turn:
    """What was seen of one model in one round."""

    seen: load.Seen
    cpu_s: float

    @property
    def cpu_per_1000_tokens(self) -> float:
        """CPU seconds of the replica's processes for 1,000 tokens."""
        return 1000 * self.cpu_s / self.seen.tokens


def processes(cluster: GpuCluster, model: str) -> list[psutil.Process]:
    """A model's replica, its engine, and the worker that Ray has started."""
    [replica] = cluster.processes(f"ray::ServeReplica:gpu:{model}")
    return [
        replica,
        *replica.children(recursive=True),
        *(cluster.processes("ray::RayWorkerProc") if model == BY_RAY else []),
    ]


def turn(cluster: GpuCluster, model: str, streams: int) -> Turn:
    """Ask one of the models."""
    before = cpu_seconds(processes(cluster, model))
    seen = asyncio.run(load.run(cluster.url, model, streams, ANSWERS * streams, TOKENS))
    return Turn(seen, cpu_seconds(processes(cluster, model)) - before)


def cpu_seconds(members: list[psutil.Process]) -> float:
    """CPU seconds of these processes so far."""
    return sum(sum(member.cpu_times()[:2]) for member in members)


MEASURES: dict[str, Callable[[Turn], float]] = {
    "tokens/s": lambda turn: turn.seen.tokens_per_s,
    "CPU s / 1000 tokens": lambda turn: turn.cpu_per_1000_tokens,
    "first token p50, ms": lambda turn: 1000 * turn.seen.first_token_p50,
    "gap p99, ms": lambda turn: 1000 * turn.seen.gap_p99,
}


def start(cluster: GpuCluster) -> dict[str, float]:
    """Deploy one model after the other; the seconds that each took to be healthy."""
    own = gpu_model(OWN)
    by_ray = gpu_model(BY_RAY, placement_group_config={"bundle_per_worker": {"GPU": 1}, "strategy": "SPREAD"})
    seconds = {}
    for models in ([own], [own, by_ray]):
        began = time.monotonic()
        cluster.apply(*models)
        seconds[models[-1]["model_loading_config"]["model_id"]] = time.monotonic() - began
    return seconds


def main() -> None:
    """Measure, and print or write the table."""
    read_options(__doc__)
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), gpus=0) as cluster:
        cluster.add_node(gpus=2)
        seconds = start(cluster)
        lines = ["| | measure | the engine's own process | a process that Ray starts |", "|---|---|--:|--:|"]
        members = {model: processes(cluster, model) for model in (OWN, BY_RAY)}
        sizes = {model: sum(each.memory_full_info().pss for each in found) / 2**30 for model, found in members.items()}
        lines.append(f"| at rest | processes | {len(members[OWN])} | {len(members[BY_RAY])} |")
        lines.append(f"| at rest | memory, GiB | {sizes[OWN]:.2f} | {sizes[BY_RAY]:.2f} |")
        lines.append(f"| start | seconds | {seconds[OWN]:.0f} | {seconds[BY_RAY]:.0f} |")
        for streams in STREAMS:
            own, by_ray = take_turns((OWN, BY_RAY), lambda model, count=streams: turn(cluster, model, count))
            for name, value in MEASURES.items():
                ratios = sorted(value(b) / value(a) for a, b in zip(own, by_ray, strict=True))
                middle = [statistics.median(map(value, turns)) for turns in (own, by_ray)]
                ratio = f"×{statistics.median(ratios):.2f}; {ratios[0]:.2f}–{ratios[-1]:.2f}"
                label = f"{streams} {'stream' if streams == 1 else 'streams'}"
                lines.append(f"| {label} | {name} | {middle[0]:.4g} | {middle[1]:.4g} ({ratio}) |")
    publish("executors", "\n".join(lines))


if __name__ == "__main__":
    main()
