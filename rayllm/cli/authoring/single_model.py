"""Configure a model that is served without a file."""

from __future__ import annotations

from dataclasses import replace

from rayllm.authoring.rendering import model_config
from rayllm.cli.authoring.interview import NO_ACCELERATOR, Interview, Options
from rayllm.cli.authoring.local_gpus import local_gpus
from rayllm.cli.terminal.user_input import UserInput
from rayllm.cluster.environment import has_cpu_engine
from rayllm.config import ModelConfig
from rayllm.errors import ClusterError
from rayllm.sizing.cpu import memory_bytes, this_cpu
from rayllm.sizing.gpus import GIB


def single_model(name: str, tensor_parallel: int | None, context: int | None) -> ModelConfig:
    """Compute a configuration for a model on this machine.

    Args:
        name: a hub id, a folder or a bucket URI.
        tensor_parallel: GPUs that share each layer; None computes it.
        context: tokens of prompt and completion together; None computes it.

    Raises:
        SourceError, ConfigError: the model cannot be read, or does not fit.
        ClusterError: this machine has no GPU, and too little memory.
    """
    gpu = next((each.kind for each in local_gpus() if each.kind), None)
    accelerator = gpu.name if gpu else NO_ACCELERATOR
    options = Options(model_id=name, accelerator=accelerator, tensor_parallel=tensor_parallel, context=context)
    interview = Interview(options, UserInput(False))
    profile = interview.profile()
    answers, _ = interview.answers(profile)
    size_on_cpu = profile.cpu_bytes(this_cpu())
    if has_cpu_engine() and not answers.on_cpu and size_on_cpu:
        size = f"{size_on_cpu / GIB:.1f} GiB"
        memory = f"{memory_bytes() / GIB:.1f} GiB"
        hint = "`rayllm plan` shows which GPUs it fits on."
        raise ClusterError(
            f"{name}: its weights, {size}, are more than half of this machine's memory, {memory}.\nhint: {hint}"
        )
    # Any GPU of this machine will do, and there is one replica.
    return model_config(profile, replace(answers, accelerator=None, scaling=None))
