"""Versions of vLLM, and the names that each of them has."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from packaging.version import Version
from pydantic import ValidationError

from rayllm.config import ModelConfig, vllm_versions
from rayllm.config.engine_arguments import vllm_names
from rayllm.config.vllm_versions import PINNED, SERIES, current_series, names_of, other_version, unmet_requirement

Install = Callable[[str | None], None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Take a version for the installed one."""

    def install(version: str | None) -> None:
        monkeypatch.setattr(vllm_versions, "installed_version", lambda: Version(version) if version else None)
        vllm_names.cache_clear()

    return install


@pytest.fixture(autouse=True)
def names_of_the_real_one() -> Iterator[None]:
    yield
    vllm_names.cache_clear()


@pytest.mark.parametrize("series", SERIES)
def test_every_series_has_names_of_every_kind(series: str) -> None:
    names = names_of(series)
    assert names.keys() == {"engine", "server", "tool_parser", "reasoning_parser", "architectures", "requests"}
    assert all(names.values())


@pytest.mark.parametrize(
    ("version", "series"),
    [("0.27.1", "0.27"), ("0.30.0rc2", "0.30"), ("0.25.1", SERIES[0]), ("1.4.0", SERIES[-1]), (None, PINNED)],
)
def test_the_series_whose_names_apply(install: Install, version: str | None, series: str) -> None:
    install(version)
    assert current_series() == series


@pytest.mark.parametrize(
    ("kind", "name", "reason"),
    [
        ("engine", "log_level", "needs vLLM 0.31 or newer; 0.29.0 is installed"),
        ("engine", "calculate_kv_scales", "was removed from vLLM after 0.27; 0.29.0 is installed"),
        ("tool_parser", "qwen3_json", "needs vLLM 0.32 or newer; 0.29.0 is installed"),
        ("architectures", "Glm5NextForCausalLM", "needs vLLM 0.30 or newer; 0.29.0 is installed"),
        ("architectures", "NoSuchForCausalLM", None),
    ],
)
def test_why_a_name_is_missing(install: Install, kind: str, name: str, reason: str | None) -> None:
    install("0.29.0")
    assert other_version(kind, name) == reason


def model(**keys: object) -> ModelConfig:
    return ModelConfig.model_validate({"model_loading_config": {"model_id": "m"}, **keys})


def test_files_for_other_versions_are_refused(install: Install) -> None:
    install("0.29.0")
    for keys, fault in (
        ({"engine_kwargs": {"log_level": "debug"}}, "`log_level` needs vLLM 0.31 or newer; 0.29.0 is installed"),
        ({"tool_calling": {"parser": "qwen3_json"}}, "the parser `qwen3_json` needs vLLM 0.32 or newer"),
        ({"reasoning_parser": "hf"}, "the parser `hf` needs vLLM 0.32 or newer"),
        ({"vllm_version": ">=0.30"}, "needs vLLM >=0.30; 0.29.0 is installed; install that version of vLLM"),
        ({"vllm_version": "new"}, "'new' is not a version specifier; write one such as `>=0.30`"),
    ):
        with pytest.raises(ValidationError, match=fault):
            model(**keys)
    install("0.32.0")
    model(engine_kwargs={"log_level": "debug"}, tool_calling={"parser": "qwen3_json"}, vllm_version=">=0.30,<0.33")


def test_a_requirement_holds_only_where_vllm_is_installed(install: Install) -> None:
    install(None)
    assert unmet_requirement(">=9") is None
    install("0.31.0rc1")
    assert unmet_requirement(">=0.30") is None
