"""Make many small LoRA adapters for load tests, each of which answers one prompt with a word of its own.

    python scripts/make_adapters.py --model models/rayllm-demo/weights --count 200 --output adapters

An adapter changes the last layer's `down_proj` by one outer product: what comes in at the prompt's last token leads to
the direction of one row of the output matrix, so strongly that the adapter's token follows, whatever the base would
have said. Nothing is trained, and no two adapters share a token: a mixed-up answer is seen at once.

Writes a folder an adapter, `word-000` and on, and `words.json`: the prompt, and the word that each name must answer.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPT = "Say your word:"
# How far the adapter's direction outweighs what the base model has in mind.
STRENGTH = 30.0


def main() -> None:
    """Make the adapters that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder or hub id of the base model, a Llama or alike")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--rank", type=int, default=8, help="rank of each; all but one of it is zeros")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    words = make_adapters(options.model, options.output, options.count, options.rank, options.prompt)
    print(f"{len(words)} adapters in {options.output}")


def make_adapters(model: str, output: Path, count: int, rank: int = 8, prompt: str = PROMPT) -> dict[str, str]:
    """Write `count` adapters; the word that each must answer, by name."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    came_in, left = _at_the_end(base, tokenizer, prompt)
    scale = STRENGTH * left.norm()
    words = {}
    for index, token in enumerate(_tokens(base, tokenizer, left, scale, count)):
        name = f"word-{index:03d}"
        _write(output / name, base, rank, came_in / came_in.norm() ** 2, scale * _direction(base, token))
        words[name] = tokenizer.decode([token])
    (output / "words.json").write_text(json.dumps({"prompt": prompt, "words": words}, indent=1))
    return words


@torch.no_grad()
def _at_the_end(base: Any, tokenizer: Any, prompt: str) -> tuple[torch.Tensor, torch.Tensor]:
    """At the prompt's last token: what comes into the last `down_proj`, and what leaves the last layer."""
    ids = tokenizer.encode(prompt)
    if tokenizer.bos_token_id is not None and ids[0] != tokenizer.bos_token_id:
        ids.insert(0, tokenizer.bos_token_id)
    seen: dict[str, torch.Tensor] = {}
    layer = base.model.layers[-1]
    hooks = [
        layer.mlp.down_proj.register_forward_pre_hook(lambda _, args: seen.update(into=args[0])),
        base.model.norm.register_forward_pre_hook(lambda _, args: seen.update(left=args[0])),
    ]
    base(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    return seen["into"][0, -1], seen["left"][0, -1]


@torch.no_grad()
def _tokens(base: Any, tokenizer: Any, left: torch.Tensor, scale: torch.Tensor, count: int) -> list[int]:
    """Tokens that are words and that their own direction leads to with the widest margin."""
    special = set(tokenizer.all_special_ids)
    margins = []
    for token in range(len(tokenizer)):
        if token in special or not tokenizer.decode([token]).strip().isalpha():
            continue
        logits = base.lm_head(base.model.norm(left + scale * _direction(base, token)))
        best = logits.topk(2)
        if best.indices[0] == token:
            margins.append((float(best.values[0] - best.values[1]), token))
    if len(margins) < count:
        raise SystemExit(f"the model has only {len(margins)} tokens that an adapter can force, not {count}")
    return [token for _, token in sorted(margins, reverse=True)[:count]]


def _direction(base: Any, token: int) -> torch.Tensor:
    """Where the last norm's input has to point for the token's logit to grow most."""
    row: torch.Tensor = base.lm_head.weight[token].detach() * base.model.norm.weight.detach()
    return row / row.norm()


def _write(folder: Path, base: Any, rank: int, into: torch.Tensor, out: torch.Tensor) -> None:
    """An adapter in PEFT's format that adds `out` where `into` comes in."""
    folder.mkdir(parents=True, exist_ok=True)
    last = len(base.model.layers) - 1
    module = f"base_model.model.model.layers.{last}.mlp.down_proj"
    lora_a, lora_b = torch.zeros(rank, into.numel()), torch.zeros(out.numel(), rank)
    lora_a[0], lora_b[:, 0] = into, out
    tensors = {f"{module}.lora_A.weight": lora_a, f"{module}.lora_B.weight": lora_b}
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": ["down_proj"],
        "layers_to_transform": [last],
        "bias": "none",
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=1))


if __name__ == "__main__":
    main()
