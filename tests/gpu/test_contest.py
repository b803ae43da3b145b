"""RayLLM beside vLLM's own server on the same model without weights: both at once hold their part of the GPU."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import yaml

from benchmarks.compare import take_turns
from benchmarks.servers import Server, free_port, rayllm, running
from benchmarks.turns import Round, Running, streams_turn
from tests.gpu.device import Device
from tests.gpu.models import write_shape

NAME = "contest"
SHAPE = "meta-llama/Llama-3.1-8B-Instruct"
MEASURES = ("tokens/s", "first token p50, ms", "first token p99, ms", "gap p99, ms", "CPU s / 1000 tokens")
Record = Callable[[str, object], None]


def test_contest_with_vllms_own_server(device: Device, tmp_path: Path, record_property: Record) -> None:
    # The demo's tokenizer has to know all tokens.
    changes = {"vocab_size": 3072} | ({} if device.is_gpu else {"num_hidden_layers": 1, "hidden_size": 1024})
    folder = write_shape(tmp_path / NAME, SHAPE, **changes)
    streams, tokens = ((1, 32, 256), 128) if device.is_gpu else ((1, 4), 8)
    rounds: dict[int, list[list[Round]]] = {}
    with ours(device, folder, tmp_path) as first, theirs(device, folder) as second:
        servers = [Running("RayLLM", first, NAME), Running("vLLM", second, NAME)]
        for count in streams:
            rounds[count] = take_turns(servers, lambda asked, count=count: streams_turn(asked, count, tokens), 3)
    record_property("table", table(rounds))
    for taken in rounds.values():
        assert all(turn["tokens/s"] > 0 for turns in taken for turn in turns)


def engine_arguments(device: Device) -> dict[str, object]:
    """What both engines are given."""
    memory = {"gpu_memory_utilization": 0.42} if device.is_gpu else {"enforce_eager": True}
    return {"load_format": "dummy", "max_num_seqs": 256 if device.is_gpu else 8, **memory}


@contextmanager
def ours(device: Device, folder: Path, root: Path) -> Iterator[Server]:
    """RayLLM on a part of the device."""
    model = {
        "model_loading_config": {"model_id": NAME, "model_source": str(folder)},
        "max_request_context_length": 4096,
        **device.share(0.5, **engine_arguments(device)),
        "runtime_env": {"env_vars": {"VLLM_CPU_KVCACHE_SPACE": "1"}},
    }
    path = root / f"{NAME}.yaml"
    path.write_text(yaml.safe_dump(model))
    with rayllm(path) as server:
        yield server


def theirs(device: Device, folder: Path) -> AbstractContextManager[Server]:
    """vLLM's own server."""
    port = free_port()
    options = {"model": folder, "served_model_name": NAME, "max_model_len": 4096, "port": port, "host": "127.0.0.1"}
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--disable-uvicorn-access-log"]
    for name, value in {**options, **engine_arguments(device)}.items():
        command += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    variables = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    return running("vllm on a gpu", command, port, os.environ | variables)


def table(rounds: dict[int, list[list[Round]]]) -> str:
    """Medians of both, and of the ratios of neighbouring rounds."""
    lines = ["| streams | measure | RayLLM | vLLM | ratio |", "| --: | --- | --: | --: | --: |"]
    for streams, (first, second) in rounds.items():
        for measure in MEASURES:
            pairs = [(a[measure], b[measure]) for a, b in zip(first, second, strict=True)]
            medians = [f"{statistics.median(values):.4g}" for values in zip(*pairs, strict=True)]
            ratio = statistics.median(a / b for a, b in pairs)
            lines.append(f"| {streams} | {measure} | {' | '.join(medians)} | {ratio:.2f} |")
    return "\n".join(lines)
