"""The file that `rayllm gen-config` writes for a CPU, beside `vllm serve` with its defaults, on a 0.5 B model.

The model has Qwen2.5-0.5B's shape, random weights in bfloat16 and the demo's tokenizer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.compare import publish, read_options, rows, take_turns
from benchmarks.servers import ROOT, Server, free_port, rayllm, running
from benchmarks.turns import Round, Running, streams_turn

STREAMS = (1, 8, 32)
TOKENS = 48
ROUNDS = 4
NAME = "half-billion"
CONTEXT = 2048
MEASURES = ("tokens/s", "first token p50, ms", "gap p50, ms", "CPU s / 1000 tokens")
_WEIGHTS = ROOT / "models" / "rayllm-demo" / "weights"
_VOCABULARY = 151_936
_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"


def main() -> None:
    read_options(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = make_checkpoint(Path(folder) / NAME)
        with rayllm(generated_file(checkpoint), name="rayllm cpu") as ours, vllm_serve(checkpoint) as theirs:
            servers = [Running("rayllm", ours, NAME), Running("vllm", theirs, NAME)]
            table = ["| streams | measure | RayLLM | vLLM | ratio | range |", "|---|---|--:|--:|--:|---|"]
            for streams in STREAMS:
                rounds = take_turns(servers, partial(streams_turn, streams=streams, tokens=TOKENS), ROUNDS)
                table += rows(str(streams), *rounds, {name: partial(_measure, name) for name in MEASURES})
                print(f"{streams} streams: done", file=sys.stderr)
    publish("cpu", "\n".join(table))


def _measure(name: str, one: Round) -> float:
    return one[name]


def make_checkpoint(folder: Path) -> Path:
    """Write a checkpoint with random weights; returns its folder."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=_VOCABULARY,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
    )
    model = Qwen2ForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        # So that greedy answers consist of tokens that the demo's tokenizer has.
        model.model.embed_tokens.weight[3000:] = 0
    model.save_pretrained(folder)
    for file in _WEIGHTS.glob("*token*"):
        shutil.copy(file, folder / file.name)
    (folder / "chat_template.jinja").write_text(_TEMPLATE)
    return folder


def generated_file(checkpoint: Path) -> Path:
    """The model's file as `rayllm gen-config` writes it for this machine."""
    options = ["--model-id", NAME, "--model-source", str(checkpoint), "--accelerator-type", "none"]
    options += ["--max-model-len", str(CONTEXT), "--output-dir", str(checkpoint.parent)]
    subprocess.run([sys.executable, "-m", "rayllm", "gen-config", "--non-interactive", *options], check=True)
    [file] = (checkpoint.parent / "model_config").glob("*.yaml")
    return file


@contextmanager
def vllm_serve(checkpoint: Path) -> Iterator[Server]:
    """`vllm serve` as it comes, but for a KV cache of 4 GiB instead of most of the memory."""
    port = free_port()
    # What `vllm serve` starts; the command itself wants a package named vllm, which the CPU build is not.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(checkpoint)]
    command += ["--served-model-name", NAME, "--port", str(port), "--host", "127.0.0.1"]
    variables = {"VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    with running("vllm serve", command, port, os.environ | variables) as server:
        yield server


if __name__ == "__main__":
    main()
