"""Rewrite sampling values in `generation_config`."""

from __future__ import annotations

from rayllm.config.engine_arguments import vllm_names
from rayllm.config.faults import did_you_mean
from rayllm.config.legacy import Changes
from rayllm.config.legacy.nested import Mapping, at

RENAMED = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "ignore_eos_token": "ignore_eos"}
"""Name in Hugging Face's generation config → field of a request."""
_STOPS = {"stop": "stopping_sequences", "stop_token_ids": "stopping_tokens"}


def carry_sampling(config: Mapping, changes: Changes) -> None:
    """Rewrite `generation_config.generate_kwargs`."""
    generation = at(config, "generation_config")
    values, where = at(generation, "generate_kwargs"), "generation_config.generate_kwargs"
    for name in list(values):
        key, value = f"{where}.{name}", values[name]
        if value is None:
            del values[name]
            changes.dropped(key, "null leaves it to vLLM")
        elif name in RENAMED and RENAMED[name] not in values:
            values[RENAMED[name]] = values.pop(name)
            changes.renamed(key, f"{where}.{RENAMED[name]}")
        elif name in _STOPS:
            _stop(generation, _STOPS[name], values.pop(name))
            changes.renamed(key, f"generation_config.{_STOPS[name]}")
        elif name not in (fields := vllm_names()["request"]):
            del values[name]
            why = f"a request has no such field{did_you_mean(name, fields).rstrip('?')}"
            changes.dropped(key, "`temperature: 0` is greedy, anything else samples" if name == "do_sample" else why)


def _stop(generation: Mapping, key: str, value: object) -> None:
    stops, more = generation.get(key) or [], value if isinstance(value, list) else [value]
    generation[key] = [*stops, *(stop for stop in more if stop not in stops)]
