"""The effect of a new configuration on each model."""

from __future__ import annotations

from typing import Any

import pytest

from rayllm.cli.shared.application import inlined_models
from rayllm.config import AppConfig, load_app
from rayllm.serving.cluster.deployment.diff import Change, Effect, changes, different, router_keys
from tests.unit.deploy.test_composition import config


def app(*models: dict[str, Any], **router: Any) -> AppConfig:
    return load_app({"llm_configs": list(models), "router": router})


def replicas(count: int) -> dict[str, Any]:
    return {"deployment_config": {"num_replicas": count}}


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (config("a"), config("a"), Change("a", Effect.UNTOUCHED)),
        (
            config("a", **replicas(1)),
            config("a", **replicas(2)),
            Change("a", Effect.IN_PLACE, ("deployment_config.num_replicas",)),
        ),
        (
            config("a", engine_kwargs={"max_num_seqs": 1}),
            config("a", engine_kwargs={"max_num_seqs": 2, "seed": 1}, **replicas(2)),
            Change(
                "a",
                Effect.ROLLED,
                ("deployment_config.num_replicas", "engine_kwargs.max_num_seqs", "engine_kwargs.seed"),
            ),
        ),
        (
            config("a"),
            config("a", runtime_env={"env_vars": {"A": "1"}}),
            Change("a", Effect.ROLLED, ("runtime_env.env_vars",)),
        ),
    ],
    ids=lambda value: str(value.effect) if isinstance(value, Change) else "",
)
def test_one_model(before: dict[str, Any], after: dict[str, Any], change: Change) -> None:
    assert changes(app(before, config("b")), app(after, config("b"))) == [change, Change("b", Effect.UNTOUCHED)]


def test_models_come_and_go() -> None:
    assert changes(app(config("a"), config("b")), app(config("b"), config("c"))) == [
        Change("a", Effect.REMOVED),
        Change("b", Effect.UNTOUCHED),
        Change("c", Effect.ADDED),
    ]
    assert changes(None, app(config("a"))) == [Change("a", Effect.ADDED)]
    assert changes(app(config("a")), None) == [Change("a", Effect.REMOVED)]
    assert changes(None, app(config("a")), frozenset("a")) == [Change("a", Effect.UNKNOWN)]


def test_a_new_alias_is_a_matter_of_its_model() -> None:
    before, after = app(config("a"), config("b")), app(config("a"), config("b"), model_aliases={"x": "a"})
    assert changes(before, after) == [
        Change("a", Effect.ROLLED, ("router.model_aliases",)),
        Change("b", Effect.UNTOUCHED),
    ]


def test_the_router_has_keys_of_its_own() -> None:
    assert router_keys(app(config("a")), app(config("a"), max_body_bytes=2048)) == ("max_body_bytes",)


def test_differences_have_dotted_names() -> None:
    old, new = {"a": {"b": 1, "c": [1]}, "d": None}, {"a": {"b": 1, "c": [1, 2]}, "d": {"e": 1}, "f": 0}
    assert different(old, new) == ("a.c", "d", "f")


def test_a_configuration_that_was_inlined_is_the_same() -> None:
    whole = app(config("a", tensor_parallelism={"degree": 1}, **replicas(2)), config("b", reasoning_parser="qwen3"))
    again = load_app({"llm_configs": inlined_models(whole), "router": whole.router.model_dump(mode="json")})
    assert {change.effect for change in changes(whole, again)} == {Effect.UNTOUCHED}
    assert again == whole
