"""A small and a tiny model on this machine's CPU: RayLLM without a file, `vllm serve` and llama.cpp's server.

python -m benchmarks.cpu small    0.5 billion parameters, Qwen2.5-0.5B's shape
python -m benchmarks.cpu tiny     10 million parameters, which both servers compile

Each server has its defaults, and the machine to itself: an idle vLLM takes CPU from the others. Models have random
weights in bfloat16 and the demo's tokenizer. llama.cpp takes part with the small one if `llama-server` is on PATH, with
the same weights in bfloat16 and in Q4_0; that needs the package `gguf`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.compare import publish
from benchmarks.servers import PATIENCE, ROOT, Server, free_port, running
from benchmarks.turns import Round, Running, streams_turn

STREAMS = {"small": (1, 8, 32), "tiny": (1, 16)}
TOKENS = 48
# Starts of each server, and turns for each number of streams after each start.
STARTS, TURNS = 2, 3
NAME = "half-billion"
CONTEXT = 4096
MEASURES = ("tokens/s", "first token p50, ms", "gap p50, ms", "CPU s / 1000 tokens")
_WEIGHTS = ROOT / "models" / "rayllm-demo" / "weights"
_SHAPE = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_SHAPES = {
    "small": _SHAPE,
    "tiny": _SHAPE
    | {"vocab_size": 8192, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8}
    | {"num_attention_heads": 8, "num_key_value_heads": 4},
}
_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"

Start = Callable[[], AbstractContextManager[Server]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", choices=_SHAPES)
    parser.add_argument("--write", action="store_true", help="also write the table to the docs")
    measure(parser.parse_args().size)


def measure(size: str) -> None:
    """Measure all servers with a model of this size, and publish the table."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = make_checkpoint(Path(folder) / NAME, size)
        servers: dict[str, Start] = {
            "RayLLM": partial(rayllm_run, checkpoint),
            "vLLM": partial(vllm_serve, checkpoint),
        }
        if size == "small" and shutil.which("llama-server"):
            for kind in ("BF16", "Q4_0"):
                servers[f"llama.cpp {kind}"] = partial(llama_server, write_gguf(checkpoint, kind), kind)
        turns = _run_all(servers, STREAMS[size])
    name = "cpu" if size == "small" else f"cpu-{size}"
    publish(name, "\n".join(_table(list(servers), turns)), threads=f"{len(os.sched_getaffinity(0))} threads or fewer")


def _run_all(servers: dict[str, Start], loads: Sequence[int]) -> dict[tuple[str, int], list[Round]]:
    """The turns of each server by number of streams."""
    turns: dict[tuple[str, int], list[Round]] = defaultdict(list)
    for _ in range(STARTS):
        for name, start in servers.items():
            with start() as server:
                asked = Running(name, server, NAME)
                for streams in loads:
                    streams_turn(asked, streams, TOKENS)
                    turns[name, streams] += [streams_turn(asked, streams, TOKENS) for _ in range(TURNS)]
            print(f"{name}: done", file=sys.stderr)
    return turns


def _table(names: Sequence[str], turns: dict[tuple[str, int], list[Round]]) -> list[str]:
    """Medians of each server, and RayLLM's over vLLM's."""
    others = names[2:]
    table = [
        f"| {' | '.join(['streams', 'measure', *names[:2], 'ratio', *others])} |",
        f"|---|---|{'--:|' * (len(names) + 1)}",
    ]
    for streams in dict.fromkeys(streams for _, streams in turns):
        for measure_name in MEASURES:
            medians = [statistics.median(turn[measure_name] for turn in turns[name, streams]) for name in names]
            cells = [f"{value:.4g}" for value in medians]
            ratio = f"{medians[0] / medians[1]:.2f}" if medians[1] else "–"
            row = [str(streams), measure_name, *cells[:2], ratio, *cells[2:]]
            table.append(f"| {' | '.join(row)} |")
    return table


def make_checkpoint(folder: Path, size: str) -> Path:
    """Write a checkpoint with random weights; returns its folder."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**_SHAPES[size])).to(torch.bfloat16)
    with torch.no_grad():
        # So that greedy answers consist of tokens that the demo's tokenizer has.
        model.model.embed_tokens.weight[3000:] = 0
    model.save_pretrained(folder)
    for file in _WEIGHTS.glob("*token*"):
        shutil.copy(file, folder / file.name)
    (folder / "chat_template.jinja").write_text(_TEMPLATE)
    return folder


def rayllm_run(checkpoint: Path) -> AbstractContextManager[Server]:
    """`rayllm run FOLDER`."""
    port = free_port()
    command = [sys.executable, "-m", "rayllm", "run", str(checkpoint), "--port", str(port)]
    return running("rayllm cpu", command, port, os.environ | PATIENCE)


def vllm_serve(checkpoint: Path) -> AbstractContextManager[Server]:
    """`vllm serve FOLDER`."""
    port = free_port()
    # What `vllm serve` starts; the command itself wants a package named vllm, which the CPU build is not. It takes
    # nearly all memory for its KV cache, and does not start if any is in use; 4 GiB are the most that it needs.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(checkpoint)]
    command += ["--served-model-name", NAME, "--port", str(port), "--host", "127.0.0.1"]
    variables = {"VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    return running("vllm serve", command, port, os.environ | variables)


@contextmanager
def llama_server(file: Path, kind: str) -> Iterator[Server]:
    """`llama-server` with a slot for each stream."""
    port = free_port()
    most = max(max(loads) for loads in STREAMS.values())
    command = ["llama-server", "--model", str(file), "--alias", NAME, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--parallel", str(most), "--ctx-size", str(most * 512), "--no-webui"]
    with running(f"llama {kind}", command, port, dict(os.environ), health="/health") as server:
        yield server


def write_gguf(checkpoint: Path, kind: str) -> Path:
    """Write the checkpoint as llama.cpp reads it, its matrices as `kind`; returns the file."""
    import gguf
    import torch
    from safetensors.torch import load_file

    file = checkpoint.parent / f"{NAME}.{kind}.gguf"
    writer = gguf.GGUFWriter(file, "qwen2")
    _write_shape(writer)
    _write_tokenizer(writer, checkpoint)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, _SHAPE["num_hidden_layers"])
    quantization = gguf.GGMLQuantizationType[kind]
    for name, tensor in load_file(checkpoint / "model.safetensors").items():
        values = tensor.to(torch.float32).numpy()
        title = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if values.ndim == 1:
            writer.add_tensor(title, values)
        else:
            writer.add_tensor(title, gguf.quants.quantize(values, quantization), raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _write_shape(writer: Any) -> None:
    writer.add_context_length(_SHAPE["max_position_embeddings"])
    writer.add_embedding_length(_SHAPE["hidden_size"])
    writer.add_feed_forward_length(_SHAPE["intermediate_size"])
    writer.add_block_count(_SHAPE["num_hidden_layers"])
    writer.add_head_count(_SHAPE["num_attention_heads"])
    writer.add_head_count_kv(_SHAPE["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10_000.0)


def _write_tokenizer(writer: Any, checkpoint: Path) -> None:
    """The demo's tokenizer, with placeholders for the rest of the vocabulary."""
    model = json.loads((checkpoint / "tokenizer.json").read_text())["model"]
    by_id = {number: token for token, number in model["vocab"].items()}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([by_id.get(number, f"[PAD{number}]") for number in range(_SHAPE["vocab_size"])])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]])
    writer.add_eos_token_id(_SHAPE["eos_token_id"])
    writer.add_chat_template(_TEMPLATE)


if __name__ == "__main__":
    main()
