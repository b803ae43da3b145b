"""Numbers that are worked out where nobody says them."""

from __future__ import annotations

from rayllm.authoring.subject import Subject
from rayllm.errors import ConfigError
from rayllm.sizing.choice import choose
from rayllm.sizing.fit import Fit, Setting, fit, obstacles
from rayllm.sizing.gpus import GIB, GPUS, Gpu
from rayllm.sizing.measure import Measured

TOKENS = 8192
"""Tokens of a sequence that GPUs have to hold, where nothing is said."""

# Of the longest sequences so many are to fit at once: one alone would keep all others waiting.
_AT_ONCE = 2
# They compute no bfloat16, and vLLM's fast attention not at all: a choice for who has them.
_OLD = ("T4", "V100")
# Tokens that most requests stay below, prompt and answer together; and vLLM's own limit of sequences on most GPUs.
_USUAL, _MOST_SEQUENCES = 2048, 256


def tokens_wanted(measured: Measured, said: int | None) -> int:
    """Tokens of one sequence that there has to be room for."""
    return min(said or TOKENS, measured.architecture.context)


def first_gpu(measured: Measured, setting: Setting, tokens: int) -> Gpu | None:
    """The GPU of which the least memory holds the model, all of its GPUs together; None where none does."""
    fits = (_choose(measured, gpu, setting, tokens) for gpu in GPUS if gpu.name not in _OLD)
    found = [each for each in fits if each]
    return min(found, key=lambda each: each.gpu.memory * each.setting.gpus).gpu if found else None


def split(measured: Measured, gpu: Gpu, setting: Setting, tokens: int) -> tuple[int, int] | None:
    """The smallest tensor and pipeline parallelism that fit; None where none do."""
    found = _choose(measured, gpu, setting, tokens)
    return (found.setting.tensor_parallel, found.setting.pipeline_parallel) if found else None


def check_split(subject: Subject, setting: Setting) -> None:
    """Refuse a split that vLLM would refuse on any GPUs. Of models that are not measured only the heads are known.

    Raises:
        ConfigError: the model cannot be split so.
    """

    def found(tensor: int, stages: int) -> list[str]:
        if subject.measured:
            return obstacles(subject.measured.architecture, Setting(tensor, stages))
        heads = subject.heads
        return [f"{heads} attention heads cannot be shared by {tensor} GPUs"] if heads and heads % tensor else []

    tensor, stages = setting.tensor_parallel, setting.pipeline_parallel
    if faults := found(tensor, stages):
        degrees = f"tensor parallelism {tensor}" + (f", pipeline parallelism {stages}" if stages > 1 else "")
        possible = ", ".join(str(degree) for degree in range(1, 9) if not found(degree, 1))
        hint = f"\nhint: --tensor-parallelism may be {possible}." if found(tensor, 1) else ""
        raise ConfigError(f"{degrees}: {faults[0]}.{hint}")


def fitted(measured: Measured, gpu: Gpu, setting: Setting) -> Fit:
    """What a split leaves room for.

    Raises:
        ConfigError: the model does not fit; the message says what does.
    """
    room = fit(measured.architecture, measured.weights, gpu, setting)
    if room.cache <= room.layout.bytes_of(1, 1):
        taken = f"{room.weights / GIB:.1f} of {gpu.memory_gib:.1f} GiB are weights"
        raise ConfigError(
            f"{gpu.name} × {setting.gpus}: the model does not fit: {taken}.\nhint: {_way_out(measured, gpu, setting)}"
        )
    return room


def check_context(room: Fit, tokens: int) -> None:
    """Refuse a context that vLLM would refuse, even with the whole error in its favour.

    Raises:
        ConfigError: no sequence of so many tokens fits; the message says what does.
    """
    if room.cache + room.uncertain < room.layout.bytes_of(tokens, room.setting.batched_tokens or tokens):
        raise ConfigError(
            f"--max-model-len: no sequence of {tokens:,} tokens fits {room.gpu.name} × {room.setting.gpus}.\n"
            f"hint: {room.longest(tokens):,} tokens do; so does a higher --tensor-parallelism."
        )


def _way_out(measured: Measured, gpu: Gpu, setting: Setting) -> str:
    better = split(measured, gpu, setting, tokens_wanted(measured, None))
    if better is None:
        return f"no number of {gpu.name} holds it; `rayllm plan` shows what does."
    tensor, stages = better
    return f"--tensor-parallelism {tensor}" + (f" --pipeline-parallelism {stages}" if stages > 1 else "") + " does."


def context(room: Fit, most: int) -> int:
    """The longest sequence of which several fit at once, as a round number, where the model was made for it.

    Args:
        room: what is left.
        most: tokens that the model was made for.
    """
    rounds = [1024 << power for power in range(32) if 1024 << power < most]
    for tokens in (most, *reversed(rounds)):
        if room.sequences_of(tokens) >= _AT_ONCE:
            return tokens
    return max(1, room.longest(most))


def sequences(room: Fit, tokens: int) -> int:
    """Sequences of usual length that fit at once, at most as many as vLLM takes by itself."""
    count = min(_MOST_SEQUENCES, int(room.sequences_of(min(tokens, _USUAL))))
    return count // 8 * 8 if count > 8 else max(1, count)


def _choose(measured: Measured, gpu: Gpu, setting: Setting, tokens: int) -> Fit | None:
    return choose(measured.architecture, measured.weights, gpu, setting, tokens, _AT_ONCE)
