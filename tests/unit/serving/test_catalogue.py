"""Names and cards."""

from __future__ import annotations

from typing import Any

import pytest

from rayllm.config import load_app
from rayllm.errors import ModelNotFoundError
from rayllm.serving.catalogue import Catalogue


def catalogue(**router: Any) -> Catalogue:
    models: list[dict[str, Any]] = [
        {"model_loading_config": {"model_id": "org/a"}, "max_request_context_length": 8},
        {"model_loading_config": {"model_id": "b:c", "model_source": "/secret/folder"}},
    ]
    return Catalogue(load_app({"llm_configs": models, "router": router}))


def test_an_alias_means_its_model() -> None:
    found = catalogue(model_aliases={"gpt": "org/a"})
    assert [found.find(name) for name in ("gpt", "org/a", "b:c")] == ["org/a", "org/a", "b:c"]
    assert found.names == ["org/a", "b:c", "gpt"]


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        catalogue().find("b" * 5000)
    assert "`org/a`, `b:c`" in caught.value.message
    assert len(caught.value.message) < 400
    assert (caught.value.status, caught.value.param, caught.value.code) == (404, "model", "model_not_found")


def test_fallbacks_follow_the_model() -> None:
    found = catalogue(fallbacks={"org/a": ["b:c"]})
    assert found.candidates("org/a") == ("org/a", "b:c")
    assert found.candidates("b:c") == ("b:c",)


def test_a_card_learns_from_the_replica() -> None:
    found = catalogue()
    assert found.card("org/a")["max_model_len"] == 8
    assert found.card("b:c")["max_model_len"] is None
    found.learn("b:c", {"max_model_len": 99})
    assert found.card("b:c")["max_model_len"] == 99
    assert found.knows("b:c")
    assert not found.knows("org/a")


def test_a_card_has_what_clients_of_openai_and_vllm_read_and_no_path() -> None:
    card = catalogue().card("b:c")
    assert card.keys() == {"id", "object", "created", "owned_by", "root", "parent", "max_model_len"}
    assert "secret" not in str(card)
    assert catalogue().card("org/a")["root"] == "org/a"
