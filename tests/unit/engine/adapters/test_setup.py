"""The effect of an adapter's own settings on its requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rayllm.config import GenerationConfig, ModelConfig, model_from
from rayllm.core.errors import RequestError
from rayllm.engine.adapters.setup import MAX_STOPS, _plan
from rayllm.engine.request_plan import RequestPlan
from rayllm.lora import Adapter, AdapterFiles
from rayllm.prompt import PromptError
from rayllm.sources.cache import Entry

FORMAT = {"system": "{instruction}", "user": "U{instruction}", "assistant": "A{instruction}", "trailing_assistant": "A"}
X = Adapter("m", "x")


def planned(settings: dict[str, Any] | None, **base: Any) -> ModelConfig | None:
    """The configuration that an adapter's requests are planned by."""
    seen: list[ModelConfig] = []

    def plan(model: ModelConfig) -> RequestPlan:
        seen.append(model)
        return RequestPlan()

    generation = None if settings is None else GenerationConfig.model_validate(settings)
    files = AdapterFiles(Entry(Path("/cache/x")), "1", generation)
    _plan(X, files, model_from({"model_loading_config": {"model_id": "m"}, **base}, "m", ()), plan)
    return seen[0] if seen else None


def test_an_adapter_without_settings_has_no_plan_of_its_own() -> None:
    assert planned(None) is None


def test_the_bases_settings_hold_where_the_adapter_says_nothing() -> None:
    own = {"stopping_sequences": ["BASE"], "generate_kwargs": {"temperature": 0.5}}
    merged = planned({"stopping_sequences": ["MINE"]}, generation_config=own)
    assert merged
    assert merged.generation_config.stopping_sequences == ("MINE",)
    assert merged.generation_config.generate_kwargs == {"temperature": 0.5}


def test_an_adapter_may_say_that_it_has_no_stops() -> None:
    merged = planned({"stopping_sequences": []}, generation_config={"stopping_sequences": ["BASE"]})
    assert merged
    assert merged.generation_config.stopping_sequences == ()


def test_an_adapters_format_wins_over_its_bases_template() -> None:
    base = {"chat_template": "{{ messages }}"}
    merged, kept = planned({"prompt_format": FORMAT}, **base), planned({"stopping_tokens": [1]}, **base)
    assert merged
    assert kept
    assert (merged.chat_template, kept.chat_template) == (None, "{{ messages }}")
    assert merged.generation_config.prompt_format


def test_so_many_stops_are_taken_and_no_more() -> None:
    assert planned({"stopping_sequences": [str(number) for number in range(MAX_STOPS)]})
    with pytest.raises(RequestError, match="`m:x` cannot be used: it has more than 16 `stopping_sequences`"):
        planned({"stopping_sequences": [str(number) for number in range(MAX_STOPS + 1)]})


def test_the_stops_of_a_base_are_counted_apart() -> None:
    """The engine's limit has room for them, however many they are."""
    base = {"stopping_sequences": [str(number) for number in range(MAX_STOPS + 1)]}
    assert planned({"stopping_tokens": [1]}, generation_config=base)


def test_a_format_that_cannot_be_written_is_the_adapters_fault() -> None:
    def plan(model: ModelConfig) -> RequestPlan:
        raise PromptError("it has no end.")

    files = AdapterFiles(Entry(Path("/cache/x")), "1", GenerationConfig())
    model = model_from({"model_loading_config": {"model_id": "m"}}, "m", ())
    with pytest.raises(RequestError, match="its `prompt_format`: it has no end") as caught:
        _plan(X, files, model, plan)
    assert caught.value.code == "adapter_broken"
