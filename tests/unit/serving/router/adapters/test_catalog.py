"""The list of available adapters while models answer, are slow or do not answer."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from rayllm.core.errors import UnavailableError
from rayllm.serving.router.adapters import catalog as adapter_index
from rayllm.serving.router.adapters.catalog import AdapterCatalog


class Models:
    """Answer at once, unless scripted otherwise."""

    def __init__(self) -> None:
        self.found: dict[str, list[str] | None] = {"a": ["x"], "b": ["y"]}
        self.asked: list[str] = []
        self.open = asyncio.Event()
        self.open.set()
        self.is_failing = False

    async def ask(self, model_id: str) -> list[str] | None:
        self.asked.append(model_id)
        await self.open.wait()
        if self.is_failing:
            raise UnavailableError("down")
        return self.found[model_id]


async def names(index: AdapterCatalog) -> list[str]:
    return [str(adapter) for adapter in await index.adapters()]


async def told_of_late(index: AdapterCatalog) -> list[str]:
    """The names, once what was asked in the background has come."""
    await names(index)
    await asyncio.sleep(0.01)
    return await names(index)


async def test_the_adapters_of_all_models_are_told() -> None:
    assert await names(AdapterCatalog(["a", "b"], Models().ask)) == ["a:x", "b:y"]


async def test_adapters_are_told_in_the_order_of_their_models_whoever_answers_first() -> None:
    async def ask(model_id: str) -> list[str]:
        await asyncio.sleep(0.01 if model_id == "a" else 0)
        return ["x"]

    assert await names(AdapterCatalog(["a", "b"], ask)) == ["a:x", "b:x"]


async def test_many_at_once_ask_once_and_again_only_after_a_while() -> None:
    models = Models()
    index = AdapterCatalog(["a"], models.ask)
    await asyncio.gather(*(index.adapters() for _ in range(20)))
    await index.adapters()
    assert models.asked == ["a"]


async def test_models_are_asked_outside_of_the_request_that_asks_for_the_list() -> None:
    # In one request's context Ray Serve loses one of two calls that are made at once.
    request = ContextVar("request", default="none")
    seen: list[str] = []

    async def ask(model_id: str) -> list[str]:
        seen.append(request.get())
        return []

    request.set("of a client")
    await AdapterCatalog(["a"], ask).adapters()
    assert seen == ["none"]


async def test_nobody_waits_for_a_later_answer() -> None:
    models = Models()
    index = AdapterCatalog(["a"], models.ask, max_age_s=0)
    await index.adapters()
    models.open.clear()
    models.found["a"] = ["new"]
    # A call that waited would never end: the model answers only after these.
    assert [await names(index) for _ in range(3)] == [["a:x"]] * 3
    models.open.set()
    assert await told_of_late(index) == ["a:new"]


async def test_a_model_that_could_not_answer_yet_is_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_index, "_RETRY_S", 0.0)
    models = Models()
    models.found["a"] = None
    index = AdapterCatalog(["a"], models.ask)
    assert await names(index) == []
    models.found["a"] = ["x"]
    assert await names(index) == ["a:x"]


async def test_the_first_answer_is_not_waited_for_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_index, "_FIRST_S", 0.05)
    models = Models()
    index = AdapterCatalog(["a"], models.ask)
    models.open.clear()
    assert await names(index) == []
    models.open.set()
    assert await told_of_late(index) == ["a:x"]
    assert models.asked == ["a"]


@pytest.mark.parametrize("is_failing", [True, False])
async def test_what_was_found_before_counts_where_there_is_no_answer(
    is_failing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_index, "_RETRY_S", 0.0)
    models = Models()
    index = AdapterCatalog(["a"], models.ask, max_age_s=0)
    await index.adapters()
    models.found["a"], models.is_failing = None, is_failing
    assert await told_of_late(index) == ["a:x"]
    assert len(models.asked) > 1
    models.found["a"], models.is_failing = [], False
    assert await told_of_late(index) == []


async def test_a_silent_model_hides_no_other() -> None:
    models = Models()
    models.found["a"] = None
    assert await names(AdapterCatalog(["a", "b"], models.ask)) == ["b:y"]
