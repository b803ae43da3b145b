"""Whether the installed vLLM runs a model's architecture."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from rayllm.config.faults import did_you_mean
from rayllm.config.vllm_versions import current_series, installed_version, names_of, other_version
from rayllm.core.errors import ConfigError

# vLLM makes embedders and classifiers of models that write text, so these endings stand for each other.
_ENDING = re.compile(r"(For[A-Z]\w+|LMHeadModel|ChatModel|RewardModel|Model)$")


def check_architecture(config: Mapping[str, Any]) -> None:
    """Refuse an architecture in a config.json that neither the installed vLLM nor the installed transformers has.

    Raises:
        ConfigError: names the architecture, and the vLLM that has it or the most similar one that there is.
    """
    names = [str(name) for name in config.get("architectures") or ()]
    known = names_of(current_series())["architectures"]
    if not names or config.get("auto_map"):
        return
    stems = {_ENDING.sub("", name) for name in known}
    if any(name in known or _ENDING.sub("", name) in stems for name in names):
        return
    # vLLM runs models of transformers too, by their classes there.
    if any(hasattr(import_module("transformers"), name) for name in names):
        return
    here = installed_version() or current_series()
    reason = other_version("architectures", names[0]) or (
        f"vLLM {here} does not have it{did_you_mean(names[0], known).rstrip('?')}"
    )
    raise ConfigError(f"config.json: architectures: `{names[0]}`: {reason}.")
