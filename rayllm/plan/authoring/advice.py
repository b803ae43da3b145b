"""Recommendations for what the user leaves open: GPU, split, context length, batch size."""

from rayllm.core.errors import ConfigError
from rayllm.plan.authoring.profile import ModelProfile, number
from rayllm.plan.fit import EngineSettings, Fit, fit, shape_errors, smallest_split, split_errors
from rayllm.plan.gpus import GIB, GPUS, Gpu
from rayllm.plan.measure import Measured

TOKENS = 8192
"""Default length of a sequence that the GPUs must hold, in tokens."""

# So many sequences of full length should fit at once: with one, all others would wait.
_MIN_CONCURRENCY = 2
# Never recommended: without bfloat16 and vLLM's fast attention kernels, or not found in data centres.
_NOT_RECOMMENDED = ("T4", "GeForce-RTX-4090", "GeForce-RTX-5090")
# Typical length of a request in tokens; and vLLM's default limit of sequences on most GPUs.
_TYPICAL_TOKENS, _MAX_SEQUENCES = 2048, 256


def required_tokens(measured: Measured, requested: int | None) -> int:
    """Length of a sequence that must fit, in tokens."""
    return min(requested or TOKENS, measured.architecture.context)


def recommended_gpu(measured: Measured, settings: EngineSettings, tokens: int) -> Gpu | None:
    """The GPU model that holds the model with the least total memory; None if none does."""
    gpus = [gpu for gpu in GPUS if gpu.name not in _NOT_RECOMMENDED]
    fits = [room for gpu in gpus if (room := smallest_split(measured, gpu, settings, tokens, _MIN_CONCURRENCY))]
    return min(fits, key=lambda room: room.gpu.memory * room.settings.gpus).gpu if fits else None


def recommended_split(measured: Measured, gpu: Gpu, settings: EngineSettings, tokens: int) -> tuple[int, int] | None:
    """The smallest tensor and pipeline parallelism that fit; None if none do."""
    room = smallest_split(measured, gpu, settings, tokens, _MIN_CONCURRENCY)
    return (room.settings.tensor_parallel, room.settings.pipeline_parallel) if room else None


def check_split(profile: ModelProfile, tensor: int, stages: int) -> None:
    """Refuse a split, into tensor parallelism and pipeline stages, that vLLM would refuse, on GPUs and on CPUs.

    Of an unmeasured model, the heads and layers in config.json are checked. Raises ConfigError.
    """

    def errors_of(tensor: int, stages: int) -> list[str]:
        if profile.measured:
            return split_errors(profile.measured.architecture, EngineSettings(tensor, stages))
        names = ("num_attention_heads", "num_key_value_heads", "num_hidden_layers")
        heads, key_values, layers = (number(profile.info.config, name) for name in names)
        return shape_errors(tensor, stages, heads, key_values, layers)

    if errors := errors_of(tensor, stages):
        degrees = f"tensor parallelism {tensor}" + (f", pipeline parallelism {stages}" if stages > 1 else "")
        possible = ", ".join(str(degree) for degree in range(1, 9) if not errors_of(degree, 1))
        hint = f"\nhint: --tensor-parallelism may be {possible}." if errors_of(tensor, 1) else ""
        raise ConfigError(f"{degrees}: {errors[0]}.{hint}")


def checked_fit(measured: Measured, gpu: Gpu, settings: EngineSettings) -> Fit:
    """Estimate the memory of a split.

    Raises:
        ConfigError: the model does not fit; the message says which split does.
    """
    room = fit(measured, gpu, settings)
    if room.cache <= room.layout.bytes_of(1, 1):
        usage = f"{room.weights / GIB:.1f} of {gpu.memory_gib:.1f} GiB are weights"
        hint = f"no number of {gpu.name} holds it; `rayllm plan` shows what does."
        if better := recommended_split(measured, gpu, settings, required_tokens(measured, None)):
            stages = f" --pipeline-parallelism {better[1]}" if better[1] > 1 else ""
            hint = f"--tensor-parallelism {better[0]}{stages} does."
        raise ConfigError(f"{gpu.name} × {settings.gpus}: the model does not fit: {usage}.\nhint: {hint}")
    return room


def check_context(room: Fit, tokens: int) -> None:
    """Refuse a context length that cannot fit even if the estimate is off by its whole uncertainty.

    Raises:
        ConfigError: no sequence of `tokens` fits; the message says what does.
    """
    if room.cache + room.uncertainty < room.bytes_of(tokens):
        raise ConfigError(
            f"--max-model-len: no sequence of {tokens:,} tokens fits {room.gpu.name} × {room.settings.gpus}.\n"
            f"hint: {room.longest_sequence(tokens):,} tokens do; so does a higher --tensor-parallelism."
        )


def recommended_context(room: Fit, limit: int) -> int:
    """The longest context of which several sequences fit at once, as a power of two or the model's limit, in tokens."""
    powers = [1024 << power for power in range(32) if 1024 << power < limit]
    for tokens in (limit, *reversed(powers)):
        if room.sequences_of(tokens) >= _MIN_CONCURRENCY:
            return tokens
    return max(1, room.longest_sequence(limit))


def recommended_sequences(room: Fit, tokens: int) -> int:
    """Number of sequences of typical length that fit at once, at most vLLM's default."""
    count = min(_MAX_SEQUENCES, int(room.sequences_of(min(tokens, _TYPICAL_TOKENS))))
    return count // 8 * 8 if count > 8 else max(1, count)
