"""What a person decides of a model that is to be served."""

from __future__ import annotations

from dataclasses import dataclass

from rayllm.sizing.fit import Setting


@dataclass(frozen=True)
class Lora:
    """Adapters.

    `path` is their folder: a path, `s3://…`, `gs://…` or `hf://organisation`; `slots` of them are in the engine at
    once, of ranks up to `rank`.
    """

    path: str
    slots: int
    rank: int


@dataclass(frozen=True)
class Scaling:
    """How many replicas there are, and how many requests each is to have in hand."""

    min_replicas: int
    max_replicas: int
    target_ongoing_requests: int | None = None


@dataclass(frozen=True)
class Answers:
    """Everything that is decided.

    `accelerator` is Ray's accelerator type; None takes any GPU, or the CPU. `context` are tokens of prompt and answer
    together, `sequences` those worked on at once; None leaves them to vLLM.
    """

    accelerator: str | None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    context: int | None = None
    sequences: int | None = None
    lora: Lora | None = None
    scaling: Scaling | None = None
    on_cpu: bool = False

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def setting(self) -> Setting:
        """The same as the arithmetic takes it."""
        return Setting(
            tensor_parallel=self.tensor_parallel,
            pipeline_parallel=self.pipeline_parallel,
            sequences=self.sequences,
            adapter_slots=self.lora.slots if self.lora else 0,
            adapter_rank=self.lora.rank if self.lora else 0,
        )
