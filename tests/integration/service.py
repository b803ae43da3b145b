"""The application under test, as its tests see it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import yaml
from openai import OpenAI
from ray import serve
from ray.serve.handle import DeploymentHandle

from rayllm.plan.cpu import this_cpu

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "models" / "rayllm-demo.yaml"
APP = "rayllm"
BACKENDS = Path(__file__).parent / "backends"


@dataclass(frozen=True)
class Service:
    """The running application, at its own address and behind Ray Serve's proxy."""

    url: str
    proxy_url: str
    adapters: Path
    """The folder of the second model's adapters."""

    def client(self) -> httpx.Client:
        """A plain HTTP client."""
        return httpx.Client(base_url=self.url, timeout=120)

    def openai(self) -> OpenAI:
        """OpenAI's own client; without retries, so that what is seen is what was answered."""
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def unfinished(self, deployment: str = "rayllm-demo") -> int:
        """Requests in the model's engine now."""
        return int(_handle(deployment).unfinished_requests.remote().result(timeout_s=30))

    def queued_tokens(self, deployment: str = "rayllm-demo") -> int:
        """Prompt tokens of requests that the model's engine has said nothing to yet."""
        return int(_handle(deployment).record_autoscaling_stats.remote().result(timeout_s=30)["queued_tokens"])


@cache
def _handle(deployment: str) -> DeploymentHandle[Any]:
    # Making a handle takes seconds, in which a request that is watched would end.
    return serve.get_deployment_handle(deployment, APP)


def plain_model(adapters: Path, backends: Path) -> dict[str, Any]:
    """The demo's weights as a second model with no prompt format.

    Its id holds a slash and a colon; it has vLLM's metrics in Ray's exporter, defaults, stops, a folder of adapters
    and one of guided decoding backends, another library for structured output than the others, and it computes in
    another type than the demo.
    """
    demo = yaml.safe_load(DEMO.read_text())
    weights = DEMO.parent / demo["model_loading_config"]["model_source"]
    return {
        "model_loading_config": {"model_id": "demo/plain:1.0", "model_source": str(weights.resolve())},
        "generation_config": {
            "stopping_sequences": ["Germany", "<|im_end|>"],
            "generate_kwargs": {"temperature": 0, "max_tokens": 24},
        },
        "max_request_context_length": 512,
        "max_tokens": "clip",
        "engine_kwargs": demo["engine_kwargs"]
        | {
            "dtype": other_dtype(),
            "max_num_seqs": 8,
            "num_gpu_blocks_override": 64,
            # What the demo's adapters are for, but not its first and last layer.
            "lora_target_modules": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
            "structured_outputs_config": {"backend": "xgrammar"},
        },
        "log_engine_metrics": True,
        "runtime_env": demo["runtime_env"],
        "deployment_config": {"max_queued_requests": 1},
        "lora_config": {"dynamic_lora_loading_path": str(adapters), "max_num_adapters_per_replica": 2},
        "guided_decoding": {"backends_dir": str(backends), "trust_custom_code": True, "default_backend": "by-default"},
    }


def other_dtype() -> str:
    """The type that an engine on this CPU would not be given."""
    cpu = this_cpu()
    return "float32" if cpu is not None and cpu.dtype == "bfloat16" else "bfloat16"


def make_adapters(root: Path) -> None:
    """Adapters of the second model: one that works under its full name, and broken ones."""
    pirate = DEMO.parent / "rayllm-demo" / "adapters" / "pirate"
    shutil.copytree(pirate, root / "demo" / "plain:1.0:pirate")
    shutil.copytree(pirate, root / "no-weights", ignore=shutil.ignore_patterns("*.safetensors"))
    shutil.copytree(pirate, root / "cut-short")
    weights = root / "cut-short" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
