"""Handmade adapters."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

CONFIG = {
    "r": 2,
    "lora_alpha": 4,
    "target_modules": ["q_proj"],
    "peft_type": "LORA",
    "bias": "none",
    "use_dora": False,
    "modules_to_save": None,
}
LAYER = "base_model.model.model.layers.0.self_attn"
SHAPES: dict[str, tuple[int, ...]] = {f"{LAYER}.q_proj.lora_A.weight": (2, 4), f"{LAYER}.q_proj.lora_B.weight": (6, 2)}


def safetensors(
    shapes: dict[str, tuple[int, ...]], dtype: str = "F8_E4M3", fill: bytes = b"\0", bytes_each: int = 1
) -> bytes:
    """A safetensors file."""
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        start, size = end, bytes_each
        for side in shape:
            size *= side
        end += size
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    return with_header(json.dumps(header).encode(), fill * end)


def with_header(header: bytes, data: bytes = b"") -> bytes:
    """A file with this header, valid or not."""
    return struct.pack("<Q", len(header)) + header + data


def adapter(shapes: dict[str, tuple[int, ...]] = SHAPES, fill: bytes = b"\0", **config: Any) -> dict[str, bytes]:
    """The files of an adapter. `fill` makes its content unique."""
    return {
        "adapter_config.json": json.dumps(CONFIG | config).encode(),
        "adapter_model.safetensors": safetensors(shapes, fill=fill),
    }


def write(folder: Path, files: dict[str, bytes]) -> Path:
    """Write files into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder
