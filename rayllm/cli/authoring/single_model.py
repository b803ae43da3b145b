"""A model that is served without a file."""

from __future__ import annotations

from dataclasses import replace

from rayllm.authoring.rendering import model_config
from rayllm.cli.authoring.interview import NO_ACCELERATOR, Interview, Options
from rayllm.cli.authoring.local_gpus import local_gpus
from rayllm.cli.terminal.user_input import UserInput
from rayllm.cluster.environment import has_cpu_engine
from rayllm.config import ModelConfig
from rayllm.errors import ClusterError
from rayllm.sizing.gpus import GIB


def single_model(name: str, tensor_parallel: int | None, context: int | None) -> ModelConfig:
    """What a model needs on this machine, worked out.

    Args:
        name: a hub id, a folder or an address of a bucket.
        tensor_parallel: GPUs that share each layer; None works it out for this machine's.
        context: tokens of prompt and answer together; None works it out as well.

    Raises:
        SourceError, ConfigError: it cannot be read, or does not fit.
        ClusterError: this machine has no GPU, and its memory is too small.
    """
    here = next((card.kind for card in local_gpus() if card.kind), None)
    accelerator = here.name if here else NO_ACCELERATOR
    options = Options(model_id=name, accelerator=accelerator, tensor_parallel=tensor_parallel, context=context)
    interview = Interview(options, UserInput(False))
    profile = interview.profile()
    answers, _ = interview.answers(profile)
    if has_cpu_engine() and not answers.on_cpu and profile.measured:
        size = f"{profile.measured.weights.bytes / GIB:.1f} GiB"
        hint = "`rayllm plan` shows which GPUs hold it."
        raise ClusterError(f"{name}: its weights, {size}, are more than half of this machine's memory.\nhint: {hint}")
    # The GPUs are those of this machine, whatever Ray calls them; and it serves one replica.
    return model_config(profile, replace(answers, accelerator=None, scaling=None))
