"""Names of the installed vLLM's engine and server arguments, parsers and request fields."""

from functools import cache
from typing import Any

from rayllm.config import vllm_versions
from rayllm.config.faults import did_you_mean
from rayllm.core.data_files import read_data
from rayllm.core.endpoints import CHAT, COMPLETIONS

_TABLES = read_data("rayllm.config", "arguments.yaml")
OWNED: dict[str, str] = _TABLES["owned"]
"""Argument that RayLLM sets itself → key that determines the value."""
_SERVER = frozenset(_TABLES["server"].split())
_SIZES = ["max_model_len", "max_num_batched_tokens", "block_size", "max_loras", "max_cpu_loras", "max_lora_rank"]

_DTYPES = ("auto", "bfloat16", "float16", "half", "float32", "float")


@cache
def vllm_names() -> dict[str, frozenset[str]]:
    """vLLM's names by kind.

    Arguments of the `engine` and of its OpenAI `server`, fields of a `request` for text, `tool_parser`s,
    `reasoning_parser`s and `architectures`.
    """
    names = vllm_versions.names_of(vllm_versions.current_series())
    kinds = {kind: frozenset(values) for kind, values in names.items() if kind != "requests"}
    return {**kinds, "request": request_fields(CHAT) | request_fields(COMPLETIONS)}


@cache
def request_fields(path: str) -> frozenset[str]:
    """Fields of a request to `path`, one of vLLM's endpoints that generate text."""
    return frozenset(vllm_versions.names_of(vllm_versions.current_series())["requests"][path])


def known_arguments() -> frozenset[str]:
    """All arguments of vLLM's engine and of its OpenAI server."""
    return vllm_names()["engine"] | vllm_names()["server"]


def settable_arguments() -> frozenset[str]:
    """Arguments that are allowed in `engine_kwargs`."""
    return known_arguments() - OWNED.keys() - _SERVER


def check_parser(kind: str, name: str | None) -> None:
    """Check that vLLM has a parser; the ValueError without one suggests a similar name."""
    known = vllm_names()[kind]
    if name and name not in known:
        if reason := vllm_versions.other_version(kind, name):
            raise ValueError(f"the parser `{name}` {reason}")
        hint = did_you_mean(name, known).rstrip("?") or f"; it has {', '.join(sorted(known))}"
        raise ValueError(f"vLLM has no parser `{name}`{hint}")


def faults_in(engine_kwargs: dict[str, Any]) -> list[str]:
    """Check the names in `engine_kwargs`, and the values that RayLLM reads; returns one sentence per fault."""
    faults = [fault for name in engine_kwargs if (fault := _fault(name))]
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "max_num_seqs"):
        value = engine_kwargs.get(name, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            faults.append(f"`{name}` must be a whole number of at least 1, not {value!r}")
    for name in _SIZES:
        value = engine_kwargs.get(name)
        # vLLM also takes texts such as "8k" and, for `max_model_len`, -1.
        if isinstance(value, int) and value < 1 and (name, value) != ("max_model_len", -1):
            faults.append(f"`{name}` must be at least 1, not {value!r}")
    for name in ("quantization", "load_format"):
        if engine_kwargs.get(name) == "gguf":
            faults.append(f"`{name}: gguf`: RayLLM does not load GGUF; leave it out and name a source with safetensors")
    if (dtype := engine_kwargs.get("dtype", "auto")) not in _DTYPES:
        faults.append(f"`dtype` {dtype!r} is not a type that vLLM computes in; use {', '.join(_DTYPES)}")
    if engine_kwargs.get("prefill_context_parallel_size", 1) != 1:
        faults.append("`prefill_context_parallel_size` is not supported; use tensor_parallelism")
    return faults


def _fault(name: str) -> str | None:
    if name in OWNED:
        return f"`{name}` is set by RayLLM; use {OWNED[name]}"
    if name in _SERVER:
        return f"`{name}` is an option of vLLM's own server, which replicas do not expose; leave it out"
    if name not in known_arguments():
        if reason := vllm_versions.other_version("engine", name) or vllm_versions.other_version("server", name):
            return f"`{name}` {reason}"
        return f"`{name}` is not an engine argument of vLLM{did_you_mean(name, settable_arguments()) or ''}".rstrip("?")
    return None
