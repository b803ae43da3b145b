"""Architectures that the installed vLLM runs, and those that it refuses by name."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from packaging.version import Version

from rayllm.config.vllm_versions import installed_version, names_of
from rayllm.core.errors import ConfigError
from rayllm.plan.authoring.profile import check_architecture


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["LlamaForCausalLM"]},
        {"architectures": ["LlamaForSequenceClassification"]},  # made of the one above
        {"architectures": ["Qwen3Model"]},
        {"architectures": ["HeronForCausalLM", "LlamaForCausalLM"]},
        {"architectures": ["CodeGenForCausalLM"]},  # only transformers has it
        {"architectures": ["HeronForCausalLM"], "auto_map": {"AutoModel": "heron.Heron"}},
        {"architectures": None},
        {},
    ],
)
def test_architectures_that_vllm_runs(config: dict[str, Any]) -> None:
    check_architecture(config)


def test_an_architecture_that_vllm_lacks_is_refused_by_name() -> None:
    with pytest.raises(ConfigError) as refused:
        check_architecture({"architectures": ["LlamaaForCausalLM"]})
    assert refused.value.message == (
        f"config.json: architectures: `LlamaaForCausalLM`: vLLM {installed_version()} does not have it; "
        "did you mean `LlamaForCausalLM`."
    )


def test_an_architecture_of_another_vllm_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rayllm.config.vllm_versions.installed_version", lambda: Version("0.26.0"))
    newer = set(names_of("0.32")["architectures"]) - set(names_of("0.26")["architectures"])
    name = next(name for name in sorted(newer) if not hasattr(transformers, name))
    with pytest.raises(ConfigError, match=r"needs vLLM 0\.\d+ or newer; 0\.26\.0 is installed"):
        check_architecture({"architectures": [name]})
