"""Resolution of model names, and model cards."""

from __future__ import annotations

from typing import Any

import pytest

from rayllm.config import load_app
from rayllm.core.errors import ModelNotFoundError
from rayllm.lora import Adapter
from rayllm.serving.router.model_registry import ModelRegistry, ResolvedModel


def models(**router: Any) -> ModelRegistry:
    models: list[dict[str, Any]] = [
        {"model_loading_config": {"model_id": "org/a"}, "max_request_context_length": 8},
        {"model_loading_config": {"model_id": "b:c", "model_source": "/secret/folder"}},
    ]
    return ModelRegistry(load_app({"llm_configs": models, "router": router}))


def test_an_alias_means_its_model() -> None:
    found = models(model_aliases={"gpt": "org/a"})
    assert [found.resolve(name).model_id for name in ("gpt", "org/a", "b:c")] == ["org/a", "org/a", "b:c"]
    assert found.names == ["org/a", "b:c", "gpt"]


def adapted(**lora: Any) -> ModelRegistry:
    """Two bases, of which one's id continues the other's, and one without adapters."""
    bases = [
        {"model_loading_config": {"model_id": name}, "lora_config": {"dynamic_lora_loading_path": "/x"} | lora}
        for name in ("q", "q:7b")
    ]
    plain = {"model_loading_config": {"model_id": "plain"}}
    return ModelRegistry(load_app({"llm_configs": [*bases, plain], "router": {"model_aliases": {"gpt": "q"}}}))


@pytest.mark.parametrize(
    ("name", "resolved"),
    [
        ("q", ResolvedModel("q")),
        ("gpt", ResolvedModel("q")),
        ("q:7b", ResolvedModel("q:7b")),
        ("q:x", ResolvedModel.for_adapter(Adapter("q", "x"))),
        ("q:7b:x", ResolvedModel.for_adapter(Adapter("q:7b", "x"))),
    ],
)
def test_a_name_means_a_model_and_perhaps_an_adapter(name: str, resolved: ResolvedModel) -> None:
    assert adapted().resolve(name) == resolved


@pytest.mark.parametrize("name", ["plain:x", "gpt:x", "q:", "q:../x", "x", ""])
def test_what_is_no_adapters_name_means_nothing(name: str) -> None:
    with pytest.raises(ModelNotFoundError):
        adapted().resolve(name)


def test_an_adapter_registered_by_its_own_name_has_its_full_name_too() -> None:
    registered = {"x": Adapter("q", "x", "/place")}
    expected = ResolvedModel.for_adapter(Adapter("q", "x", "/place"))
    assert adapted().resolve("q:x", registered) == adapted().resolve("x", registered) == expected
    assert adapted().resolve("q:7b:x", registered) == ResolvedModel.for_adapter(Adapter("q:7b", "x"))


def test_a_registered_adapter_wins_over_a_found_one_but_never_over_a_model() -> None:
    registered = {name: Adapter("q", "x", "/place") for name in ("q:x", "mine", "q:7b", "gpt")}
    found = {name: adapted().resolve(name, registered) for name in registered}
    assert found["q:x"] == found["mine"] == ResolvedModel.for_adapter(Adapter("q", "x", "/place"))
    assert (found["q:7b"], found["gpt"]) == (ResolvedModel("q:7b"), ResolvedModel("q"))


def test_a_configured_adapter_has_a_short_name_too() -> None:
    base = {"model_loading_config": {"model_id": "q"}, "lora_config": {"lora_modules": ["x=/place"]}}
    found = ModelRegistry(load_app({"llm_configs": [base]}))
    assert found.resolve("x") == found.resolve("q:x") == ResolvedModel.for_adapter(Adapter("q", "x"))
    assert found.modules == [Adapter("q", "x")]


def test_an_adapters_card_names_its_base_as_the_parent() -> None:
    card = adapted().card("q:x", "q")
    assert (card["id"], card["parent"], card["root"]) == ("q:x", "q", "q")
    assert adapted().card("gpt", "q")["parent"] is None


def test_a_place_goes_into_a_header_whatever_it_is_named() -> None:
    headers = ResolvedModel.for_adapter(Adapter("q", "x", "/a b/ä\r\n")).headers("mine")
    assert headers == {
        "x-rayllm-model": "mine",
        "x-rayllm-adapter": "x",
        "x-rayllm-adapter-path": "/a%20b/%C3%A4%0D%0A",
    }
    assert ResolvedModel("q").headers("q") == {"x-rayllm-model": "q"}


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        models().resolve("b" * 5000)
    assert "`org/a`, `b:c`" in caught.value.message
    assert len(caught.value.message) < 400
    assert (caught.value.status, caught.value.param, caught.value.code) == (404, "model", "model_not_found")


def test_fallbacks_follow_the_model() -> None:
    found = models(fallbacks={"org/a": ["b:c"]})
    assert found.fallbacks("org/a") == ("b:c",)
    assert found.fallbacks("b:c") == ()


def test_a_card_learns_from_the_replica() -> None:
    found = models()
    assert found.card("org/a", "org/a")["max_model_len"] == 8
    assert found.card("b:c", "b:c")["max_model_len"] is None
    assert found.card("b:c", "b:c")["endpoints"] is None
    found.descriptions["b:c"] = {"max_model_len": 99, "endpoints": ["/score"], "input_modalities": ["text"]}
    card = found.card("b:c", "b:c")
    assert (card["max_model_len"], card["endpoints"], card["input_modalities"]) == (99, ["/score"], ["text"])


def test_a_card_has_what_clients_of_openai_and_vllm_read_and_no_path() -> None:
    card = models().card("b:c", "b:c")
    vllms = {"id", "object", "created", "owned_by", "root", "parent", "max_model_len"}
    assert card.keys() == vllms | {"endpoints", "input_modalities"}
    assert "secret" not in str(card)
    assert models().card("org/a", "org/a")["root"] == "org/a"
