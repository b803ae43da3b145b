"""The user's decisions about a model to be served."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rayllm.plan.engine_arguments import engine_settings
from rayllm.plan.fit import EngineSettings
from rayllm.plan.measure import Measured


@dataclass(frozen=True)
class Lora:
    """LoRA adapters.

    `path` is their catalog: a path, `s3://…`, `gs://…` or `hf://organisation`; `slots` is how many the engine holds at
    once, of ranks up to `rank`.
    """

    path: str
    slots: int
    rank: int


@dataclass(frozen=True)
class Scaling:
    """Limits for the number of replicas, and the ongoing requests that each should have."""

    min_replicas: int
    max_replicas: int
    target_ongoing_requests: int | None = None


@dataclass(frozen=True)
class Answers:
    """All decisions.

    `accelerator` is Ray's accelerator type; None is any GPU, or the CPU. `context` is the maximum length of prompt and
    completion in tokens, `sequences` the maximum batch size; None is vLLM's default.
    """

    accelerator: str | None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    context: int | None = None
    sequences: int | None = None
    lora: Lora | None = None
    scaling: Scaling | None = None
    on_cpu: bool = False

    def engine_settings(self, measured: Measured) -> EngineSettings:
        """The decisions that affect memory."""
        return replace(
            engine_settings({}, measured.architecture, measured.element_bytes),
            tensor_parallel=self.tensor_parallel,
            pipeline_parallel=self.pipeline_parallel,
            sequences=self.sequences,
            draft_tokens=measured.draft_layers,
            adapter_slots=self.lora.slots if self.lora else 0,
            adapter_rank=self.lora.rank if self.lora else 0,
        )
