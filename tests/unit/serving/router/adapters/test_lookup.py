"""Lookup of adapters: batching, limits and caching."""

from __future__ import annotations

import asyncio

import pytest

from rayllm.core.errors import ModelNotFoundError, UnavailableError
from rayllm.lora import Adapter
from rayllm.serving.router.adapters import lookup as module
from rayllm.serving.router.adapters.lookup import AdapterLookup


class Replicas:
    """Say that adapters are missing but for `there`, as soon as `open` is set."""

    def __init__(self, *there: str) -> None:
        self.there = set(there)
        self.asked: list[tuple[str, list[str]]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.error: Exception | None = None

    async def missing(self, model_id: str, names: list[str]) -> list[str]:
        self.asked.append((model_id, names))
        await self.open.wait()
        if self.error:
            raise self.error
        return [name for name in names if name not in self.there]


def named(name: str, base: str = "m") -> Adapter:
    return Adapter(base, name)


async def is_there(lookup: AdapterLookup, adapter: str, base: str = "m") -> bool:
    try:
        await lookup.check(named(adapter, base))
    except ModelNotFoundError:
        return False
    return True


async def test_what_is_there_goes_on_and_what_is_not_is_404() -> None:
    replicas = Replicas("x")
    lookup = AdapterLookup(replicas.missing)
    assert not lookup.is_known(named("x"))
    assert [await is_there(lookup, name) for name in ("x", "y", "x", "y")] == [True, False, True, False]
    assert lookup.is_known(named("x"))
    assert not lookup.is_known(named("y"))
    assert replicas.asked == [("m", ["x"]), ("m", ["y"])]
    with pytest.raises(ModelNotFoundError, match="The model `m` has no adapter `y`"):
        await lookup.check(named("y"))


async def test_a_thousand_names_are_few_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = Replicas("7")
    lookup = AdapterLookup(replicas.missing)
    found = await asyncio.gather(*(is_there(lookup, str(number)) for number in [*range(1000), *range(1000)]))
    assert [number for number, there in enumerate(found) if there] == [7, 1007]
    # The first ones go out at once, each by itself; the rest are asked together.
    assert len(replicas.asked) <= 2 + -(-1000 // 64)
    assert sorted(name for _, names in replicas.asked for name in names) == sorted(map(str, range(1000)))


async def test_only_so_many_questions_are_asked_at_once() -> None:
    replicas = Replicas()
    replicas.open.clear()
    lookup = AdapterLookup(replicas.missing)
    tasks = [asyncio.create_task(is_there(lookup, str(number))) for number in range(500)]
    await asyncio.sleep(0.01)
    assert len(replicas.asked) == 2
    replicas.open.set()
    assert not any(await asyncio.gather(*tasks))


async def test_a_question_has_names_of_one_model() -> None:
    replicas = Replicas()
    lookup = AdapterLookup(replicas.missing)
    await asyncio.gather(*(is_there(lookup, str(number), "ab"[number % 2]) for number in range(20)))
    assert all(int(name) % 2 == (model_id == "b") for model_id, names in replicas.asked for name in names)


async def test_a_name_whose_clients_have_left_is_not_asked() -> None:
    replicas = Replicas("y")
    replicas.open.clear()
    lookup = AdapterLookup(replicas.missing)
    busy = [asyncio.create_task(is_there(lookup, name)) for name in "ab"]
    await asyncio.sleep(0.01)
    left, stays, leaves = (asyncio.create_task(is_there(lookup, name)) for name in "xyy")
    await asyncio.sleep(0.01)
    left.cancel()
    leaves.cancel()
    await asyncio.wait((left, leaves))
    replicas.open.set()
    assert await stays
    await asyncio.gather(*busy)
    assert [names for _, names in replicas.asked] == [["a"], ["b"], ["y"]]
    assert not lookup._pending


async def test_an_adapter_that_was_just_added_is_found_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = Replicas()
    lookup = AdapterLookup(replicas.missing)
    assert not await is_there(lookup, "x")
    replicas.there.add("x")
    assert not await is_there(lookup, "x")
    now = module.time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: now + module._MISSING_TTL_S + 1)
    assert await is_there(lookup, "x")


@pytest.mark.parametrize("error", [UnavailableError("down"), TimeoutError(), ValueError("no JSON")])
async def test_where_nobody_can_tell_requests_go_on(error: Exception) -> None:
    replicas = Replicas()
    replicas.error = error
    lookup = AdapterLookup(replicas.missing)
    assert await is_there(lookup, "x")
    replicas.error = None
    assert not await is_there(lookup, "x")


async def test_what_is_remembered_and_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CACHED_NAMES", 10)
    monkeypatch.setattr(module, "_MAX_PENDING", 20)
    replicas = Replicas()
    lookup = AdapterLookup(replicas.missing)
    for number in range(20):
        await is_there(lookup, str(number))
    assert len(lookup._cache) == 10
    replicas.open.clear()
    waiting = [asyncio.create_task(is_there(lookup, f"w{number}")) for number in range(20)]
    await asyncio.sleep(0.01)
    with pytest.raises(UnavailableError, match="Too many"):
        await is_there(lookup, "one-more")
    replicas.open.set()
    assert not any(await asyncio.gather(*waiting))
