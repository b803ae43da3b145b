"""The demo's weights and adapters in every kind of store, with one model served from each."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file, save_file

from tests.integration.service import DEMO
from tests.servers.faults import FaultProxy
from tests.servers.gcs import GcsServer
from tests.servers.hub import HubServer
from tests.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server

WEIGHTS = DEMO.parent / "rayllm-demo" / "weights"
ADAPTERS = DEMO.parent / "rayllm-demo" / "adapters"
ADMIN_KEY = "the-administrators-key"
REFRESH_S = 1

SOURCES = {
    "from/s3": ("s3://models/demo", "s3://adapters/demo"),
    "from-gcs": ("gs://models/demo", "gs://adapters"),
    "from-hub": ("org/demo", "hf://adapters"),
}
# Settings of an adapter: a prompt format that appends a question, and a stop within the answer to it.
SETTINGS = {
    "prompt_format": {
        "system": "{instruction}",
        "user": "<|im_start|>user\n{instruction}<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of Germany?<|im_end|>\n",
        "assistant": "{instruction}",
        "trailing_assistant": "<|im_start|>assistant\n",
    },
    "stopping_sequences": ["Berlin", "<|im_end|>"],
    "generate_kwargs": {"max_tokens": 30},
}


@dataclass
class Stores:
    """The stores. S3 is behind a proxy that can inject faults."""

    s3: S3Server
    gcs: GcsServer
    hub: HubServer
    proxy: FaultProxy
    root: Path
    environment: dict[str, str] = field(default_factory=dict)

    def put_adapter(self, name: str, folder: Path) -> None:
        """Upload an adapter of the S3 model."""
        self.s3.put("adapters", {f"demo/{name}/{path.name}": path for path in folder.iterdir()})


@contextmanager
def open_stores(root: Path) -> Iterator[Stores]:
    """Start the stores with the demo in each; `environment` holds the variables to reach them."""
    with ExitStack() as stack:
        s3, gcs, hub = (stack.enter_context(server()) for server in (S3Server, GcsServer, HubServer))
        proxy = stack.enter_context(FaultProxy(s3.url))
        variables = {
            "AWS_ENDPOINT_URL_S3": proxy.url,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_DEFAULT_REGION": REGION,
            "STORAGE_EMULATOR_HOST": gcs.url,
            "HF_ENDPOINT": hub.url,
            "HF_HUB_OFFLINE": "0",
            "HF_HOME": str(root / "hf"),
            "RAYLLM_CACHE_DIR": str(root / "cache"),
            "RAYLLM_ADAPTER_REFRESH_S": str(REFRESH_S),
            "RAYLLM_DOWNLOAD_TRIES": "3",
        }
        stores = Stores(s3, gcs, hub, proxy, root, variables)
        _fill(stores)
        yield stores


def _fill(stores: Stores) -> None:
    weights = {path.name: path for path in WEIGHTS.iterdir()}
    stores.s3.put("models", {f"demo/{name}": path for name, path in weights.items()})
    stores.gcs.put("models", {f"demo/{name}": path for name, path in weights.items()})
    stores.hub.commit("org/demo", weights)
    for name in ("pirate", "shout"):
        files = {path.name: path for path in (ADAPTERS / name).iterdir()}
        stores.gcs.put("adapters", {f"from-gcs:{name}/{path}": file for path, file in files.items()})
        stores.hub.commit(f"adapters/{name}", files)
        stores.hub.label(f"adapters/{name}", "peft")
    stores.put_adapter("from/s3:pirate", ADAPTERS / "pirate")
    stores.put_adapter("shout", ADAPTERS / "shout")
    for name, folder in _variations(stores.root).items():
        stores.put_adapter(name, folder)


def _variations(root: Path) -> dict[str, Path]:
    """Adapters with settings, and adapters broken in different ways."""
    folders = {}
    for name in (
        "with-settings",
        "truncated",
        "no-config",
        "invalid-config",
        "too-large",
        "other-base",
        "changing",
        "cold",
    ):
        folders[name] = root / name
        shutil.copytree(ADAPTERS / ("shout" if name == "cold" else "pirate"), folders[name])
    (folders["with-settings"] / "rayllm.yaml").write_text(yaml.safe_dump(SETTINGS))
    weights = folders["truncated"] / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    (folders["no-config"] / "adapter_config.json").unlink()
    (folders["invalid-config"] / "adapter_config.json").write_text("{")
    config = json.loads((folders["too-large"] / "adapter_config.json").read_text())
    (folders["too-large"] / "adapter_config.json").write_text(json.dumps(config | {"r": 512}))
    tensors = load_file(folders["other-base"] / "adapter_model.safetensors")
    wider = {name: torch.cat([tensor, tensor], 1) if "lora_A" in name else tensor for name, tensor in tensors.items()}
    save_file(wider, folders["other-base"] / "adapter_model.safetensors")
    return folders


def store_model(model_id: str, stores: Stores, **keys: Any) -> dict[str, Any]:
    """The demo's YAML with another name, source and catalog of adapters."""
    demo = yaml.safe_load(DEMO.read_text())
    source, adapters = SOURCES[model_id]
    demo["model_loading_config"] = {"model_id": model_id, "model_source": source}
    demo["lora_config"] = {"dynamic_lora_loading_path": adapters, "max_num_adapters_per_replica": 4}
    demo["runtime_env"]["env_vars"] |= stores.environment
    demo["engine_kwargs"] |= {"num_gpu_blocks_override": 64, "max_num_seqs": 8}
    return demo | keys


@contextmanager
def exported(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables for the `with` block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
