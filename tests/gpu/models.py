"""Models under test: the demo in several configurations, and shapes of well-known models without weights."""

from __future__ import annotations

import json
import shutil
import struct
from math import prod
from pathlib import Path
from typing import Any

import yaml

from rayllm.plan.known_models import known_config, outline_tensors
from tests.integration.service import DEMO

WEIGHTS = DEMO.parent / "rayllm-demo" / "weights"
ADAPTERS = DEMO.parent / "rayllm-demo" / "adapters"
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
}
_ITEM_BYTES = {"BF16": 2, "F16": 2}


def demo(name: str, placed: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """The demo under another name.

    Args:
        name: its id.
        placed: keys of `Device.whole` or `Device.share`.
        keys: further keys; `engine_kwargs` are added to those of the demo's file.
    """
    model: dict[str, Any] = yaml.safe_load(DEMO.read_text())
    model["model_loading_config"] = {"model_id": name, "model_source": str(WEIGHTS)}
    engine = {**model["engine_kwargs"], **placed.get("engine_kwargs", {}), **keys.pop("engine_kwargs", {})}
    lora = {"dynamic_lora_loading_path": str(ADAPTERS), "max_num_adapters_per_replica": 4}
    return {**model, "lora_config": lora, **placed, **keys, "engine_kwargs": engine}


def write_shape(folder: Path, model_id: str, **changes: Any) -> Path:
    """A folder with the config.json of a known model, the demo's tokenizer and weights that are a hole in the disk.

    Args:
        folder: where to write.
        model_id: of `known_models()`.
        changes: to the values of config.json.
    """
    shape = {**(known_config(model_id) or {}), **changes}
    folder.mkdir(parents=True)
    config = {**shape, "architectures": [_ARCHITECTURES[shape["model_type"]]], "bos_token_id": 0, "eos_token_id": 1}
    (folder / "config.json").write_text(json.dumps(config))
    for file in WEIGHTS.glob("*token*"):
        shutil.copy(file, folder / file.name)
    (folder / "chat_template.jinja").write_text("{% for message in messages %}{{ message.content }}\n{% endfor %}")
    header, end = {}, 0
    for name, tensor in outline_tensors(shape).items():
        begin, end = end, end + prod(tensor.shape) * _ITEM_BYTES[tensor.dtype]
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return folder
