"""The adapter pool, with a fake engine and a fake store."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from rayllm.core.errors import ModelNotFoundError, RayLLMError, RequestError, UnavailableError
from rayllm.engine.adapters import pool as module
from rayllm.engine.adapters.pool import AdapterPool
from rayllm.engine.request_plan import RequestPlan
from rayllm.lora import Adapter, AdapterFiles
from rayllm.sources import UnreachableError
from rayllm.sources.cache import Entry
from tests.fakes.clock import Clock


class Engine:
    """Records the loaded adapters; refuses removed ones."""

    def __init__(self) -> None:
        self.held: dict[int, str] = {}
        self.added: list[str] = []
        self.names: dict[str, int] = {}
        self.refuses = ""
        self.pause_s = 0.0

    async def add(self, adapter: Adapter, version: str, folder: Path) -> int:
        key = f"{adapter}@{version}"
        await asyncio.sleep(self.pause_s)
        if self.refuses == key:
            raise RequestError(f"`{key}` is refused.", "model", "adapter_broken")
        self.added.append(key)
        self.held[len(self.added)] = key
        return len(self.added)

    def serve_as(self, model: str, lora_request: Any) -> None:
        assert lora_request in self.held
        self.names[model] = lora_request

    async def remove(self, lora_request: Any) -> None:
        await asyncio.sleep(0)
        del self.held[lora_request]


class Place:
    """Has any adapter, at version 1 unless scripted otherwise, and counts requests. It is also the node's cache."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self.errors: dict[str, RayLLMError] = {}
        self.asked: list[str] = []
        self.open = threading.Event()
        self.open.set()
        self.locked: Counter[Entry] = Counter()
        self.base = "m"
        self.there: set[str] = set()

    def exists(self, adapter: Adapter) -> bool:
        self.asked.append(adapter.name)
        if error := self.errors.get(adapter.name):
            raise error
        return adapter.name in self.there

    def fetch(self, adapter: Adapter) -> AdapterFiles:
        self.asked.append(adapter.name)
        assert self.open.wait(5)
        if error := self.errors.get(adapter.source or adapter.name):
            raise error
        version = self.versions.get(adapter.name, "1")
        entry = Entry(Path(f"/cache/{adapter.source or adapter.name}/{version}"))
        self.locked[entry] += 1
        return AdapterFiles(entry, version, None)

    def adapters(self) -> list[Adapter]:
        return []

    def release(self, entry: Entry) -> None:
        assert self.locked[entry] > 0
        self.locked[entry] -= 1


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    found = Place()
    monkeypatch.setattr(module, "node_cache", lambda: found)
    return found


def no_plan(adapter: Adapter, files: AdapterFiles) -> RequestPlan | None:
    return None


def adapter_pool_with(engine: Engine, place: Place, capacity: int = 2, **times: float) -> AdapterPool:
    return AdapterPool(place, engine, no_plan, capacity, **times)  # type: ignore[arg-type]


@pytest.fixture
async def adapter_pool(engine: Engine, place: Place) -> AsyncIterator[AdapterPool]:
    found = adapter_pool_with(engine, place)
    yield found
    await settled(found)


async def settled(adapter_pool: AdapterPool) -> None:
    """Wait for all that happens in the background."""
    while tasks := {*adapter_pool._loading.values(), *adapter_pool._unloading}:
        await asyncio.wait(tasks)
        await asyncio.sleep(0)


def named(name: str, source: str = "") -> Adapter:
    return Adapter("m", name, source)


async def use(adapter_pool: AdapterPool, *names: str, source: str = "") -> None:
    for name in names:
        async with adapter_pool.use(named(name, source), f"m:{name}"):
            pass


async def refused(adapter_pool: AdapterPool, name: str, source: str = "") -> RayLLMError:
    with pytest.raises(RayLLMError) as caught:
        await use(adapter_pool, name, source=source)
    return caught.value


async def test_twenty_at_once_load_an_adapter_once(adapter_pool: AdapterPool, engine: Engine, place: Place) -> None:
    engine.pause_s = 0.01
    await asyncio.gather(*(use(adapter_pool, "x") for _ in range(20)))
    assert (place.asked, engine.added) == (["x"], ["m:x@1"])


async def test_a_client_that_leaves_takes_the_adapter_from_nobody(adapter_pool: AdapterPool, place: Place) -> None:
    place.open.clear()
    first, second = (asyncio.create_task(use(adapter_pool, "x")) for _ in range(2))
    await asyncio.sleep(0.01)
    first.cancel()
    place.open.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
    assert place.asked == ["x"]


async def test_the_name_asked_for_leads_to_the_version(adapter_pool: AdapterPool, engine: Engine) -> None:
    async with adapter_pool.use(named("x"), "short") as resident:
        assert engine.names == {"short": resident.lora_request}


async def test_the_one_not_used_for_longest_makes_room(adapter_pool: AdapterPool, engine: Engine) -> None:
    await use(adapter_pool, "a", "b", "a", "c")
    await settled(adapter_pool)
    assert adapter_pool.loaded_adapters == ["m:a", "m:c"]
    assert sorted(engine.held.values()) == ["m:a@1", "m:c@1"]


async def test_no_more_make_room_than_have_to(engine: Engine, place: Place) -> None:
    adapter_pool = adapter_pool_with(engine, place, capacity=3)
    await use(adapter_pool, "a", "b", "c", "d")
    assert adapter_pool.loaded_adapters == ["m:b", "m:c", "m:d"]


async def test_those_in_use_stay_until_they_are_done(adapter_pool: AdapterPool, engine: Engine) -> None:
    async with AsyncExitStack() as stack:
        for adapter in "abcd":
            await stack.enter_async_context(adapter_pool.use(named(adapter), adapter))
        await use(adapter_pool, "e")
        await settled(adapter_pool)
        assert sorted(engine.held.values()) == [f"m:{adapter}@1" for adapter in "abcd"]
    await settled(adapter_pool)
    assert len(engine.held) == len(adapter_pool.loaded_adapters) == 2


async def test_more_busy_adapters_than_there_is_room_for_are_each_loaded_once(engine: Engine, place: Place) -> None:
    adapter_pool = adapter_pool_with(engine, place, capacity=1)

    async def busy(adapter: str) -> None:
        async with adapter_pool.use(named(adapter), adapter):
            await asyncio.sleep(0.05)

    await asyncio.wait_for(asyncio.gather(*(busy(str(number % 8)) for number in range(40))), 5)
    assert len(place.asked) == 8


async def test_a_new_version_answers_while_the_old_one_finishes(engine: Engine, place: Place) -> None:
    adapter_pool = adapter_pool_with(engine, place, refresh_s=0)
    async with adapter_pool.use(named("x"), "x") as old:
        place.versions["x"] = "2"
        async with adapter_pool.use(named("x"), "x") as unchanged:
            # Nobody waits for the new version.
            assert unchanged is old
        await settled(adapter_pool)
        async with adapter_pool.use(named("x"), "x") as new:
            assert (new.files.version, engine.held[new.lora_request]) == ("2", "m:x@2")
            assert engine.names == {"x": new.lora_request}
        assert engine.held[old.lora_request] == "m:x@1"
    await settled(adapter_pool)
    assert list(engine.held.values()) == ["m:x@2"]


async def test_a_place_is_asked_again_only_after_a_while(adapter_pool: AdapterPool, place: Place) -> None:
    await use(adapter_pool, "x", "x", "x")
    assert place.asked == ["x"]


@pytest.mark.parametrize(
    "error", [UnavailableError("down", "model"), RequestError("broken", "model", "adapter_broken")]
)
async def test_trouble_with_a_new_version_keeps_the_old_one(engine: Engine, place: Place, error: RayLLMError) -> None:
    adapter_pool = adapter_pool_with(engine, place, refresh_s=0)
    await use(adapter_pool, "x")
    place.errors["x"] = error
    await use(adapter_pool, "x")
    await settled(adapter_pool)
    await use(adapter_pool, "x")
    assert list(engine.held.values()) == ["m:x@1"]
    assert len(place.asked) >= 2


async def test_a_new_version_that_the_engine_refuses_keeps_the_old_one(engine: Engine, place: Place) -> None:
    adapter_pool = adapter_pool_with(engine, place, refresh_s=0)
    await use(adapter_pool, "x")
    place.versions["x"], engine.refuses = "2", "m:x@2"
    await use(adapter_pool, "x")
    await settled(adapter_pool)
    await use(adapter_pool, "x")
    await settled(adapter_pool)
    assert list(engine.held.values()) == ["m:x@1"]
    assert {entry.root.name for entry in +place.locked} == {"1"}


async def test_an_adapter_that_is_gone_from_its_place_is_dropped(engine: Engine, place: Place) -> None:
    adapter_pool = adapter_pool_with(engine, place, refresh_s=0)
    await use(adapter_pool, "x")
    place.errors["x"] = ModelNotFoundError("gone", "model")
    await use(adapter_pool, "x")
    await settled(adapter_pool)
    assert (adapter_pool.loaded_adapters, engine.held) == ([], {})
    assert await refused(adapter_pool, "x") is place.errors["x"]
    assert +place.locked == {}


async def test_a_failure_is_remembered_for_a_short_while(
    engine: Engine, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "time", clock := Clock())
    adapter_pool = adapter_pool_with(engine, place, forget_s=10)
    place.errors["x"] = RequestError("broken")
    assert [(await refused(adapter_pool, "x")).message for _ in range(3)] == ["broken"] * 3
    assert place.asked == ["x"]
    del place.errors["x"]
    clock.now += 10
    await use(adapter_pool, "x")


async def test_a_remembered_failure_does_not_grow(adapter_pool: AdapterPool, place: Place) -> None:
    place.errors["x"] = RequestError("broken")
    await refused(adapter_pool, "x")

    async def frames() -> int:
        traceback, count = (await refused(adapter_pool, "x")).__traceback__, 0
        while traceback:
            traceback, count = traceback.tb_next, count + 1
        return count

    assert await frames() == await frames()


async def test_only_so_many_failures_are_remembered(
    adapter_pool: AdapterPool, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_FAILURES", 3)
    for number in range(5):
        place.errors[str(number)] = ModelNotFoundError("none")
        await refused(adapter_pool, str(number))
    await refused(adapter_pool, "4")
    await refused(adapter_pool, "0")
    assert place.asked == ["0", "1", "2", "3", "4", "0"]


async def test_loading_asks_again_whatever_failed_before(adapter_pool: AdapterPool, place: Place) -> None:
    place.errors["x"] = RequestError("broken")
    await refused(adapter_pool, "x")
    del place.errors["x"]
    await adapter_pool.load(named("x"))
    await use(adapter_pool, "x")
    assert place.asked == ["x", "x"]


async def test_an_adapter_moves_to_the_place_that_it_was_loaded_from(adapter_pool: AdapterPool, engine: Engine) -> None:
    await use(adapter_pool, "x")
    assert not adapter_pool.has_registered
    await use(adapter_pool, "x", source="/p")
    await settled(adapter_pool)
    assert adapter_pool.has_registered
    assert len(engine.held) == 1


async def test_trouble_with_one_place_takes_nothing_from_another(adapter_pool: AdapterPool, place: Place) -> None:
    await use(adapter_pool, "x", source="/good")
    place.errors["/bad"] = ModelNotFoundError("none")
    await refused(adapter_pool, "x", "/bad")
    await refused(adapter_pool, "x", "/bad")
    await use(adapter_pool, "x", source="/good")
    assert place.asked == ["x", "x"]


async def test_what_was_unloaded_is_dropped(adapter_pool: AdapterPool, engine: Engine) -> None:
    await use(adapter_pool, "found")
    await use(adapter_pool, "loaded", source="/p")
    adapter_pool.drop_unregistered([named("loaded", "/p")])
    assert adapter_pool.loaded_adapters == ["m:found", "m:loaded"]
    adapter_pool.drop_unregistered([])
    await settled(adapter_pool)
    assert list(engine.held.values()) == ["m:found@1"]


async def test_files_that_another_name_uses_stay(adapter_pool: AdapterPool, place: Place) -> None:
    await use(adapter_pool, "a", "b", source="/p")
    adapter_pool.drop("m:a")
    await settled(adapter_pool)
    assert place.locked.total() == 1
    adapter_pool.drop("m:b")
    await settled(adapter_pool)
    assert +place.locked == {}


async def test_thousands_of_uses_leave_everything_in_order(engine: Engine, place: Place) -> None:
    """Versions change, places fail, clients leave, adapters are dropped; each use has what it was promised."""
    adapter_pool = adapter_pool_with(engine, place, capacity=3, refresh_s=0.01, forget_s=0.01)
    chance = random.Random(7)
    served = 0

    async def client() -> None:
        nonlocal served
        name = str(chance.randrange(8))
        adapter = named(name, chance.choice(["", "", "", f"/{name}"]))
        with suppress(RayLLMError):
            async with adapter_pool.use(adapter, str(adapter)) as resident:
                for _ in range(2):
                    assert resident.users > 0
                    assert engine.held[resident.lora_request].startswith(f"{adapter}@")
                    assert place.locked[resident.files.entry] > 0
                    await asyncio.sleep(chance.random() * 0.004)
                served += 1

    async def trouble(until: float) -> None:
        while time.monotonic() < until:
            adapter = str(chance.randrange(8))
            place.errors.pop(adapter, None)
            match chance.randrange(5):
                case 0 | 1:
                    place.versions[adapter] = str(chance.randrange(3))
                case 2:
                    place.errors[adapter] = chance.choice([ModelNotFoundError, RequestError, UnavailableError])(
                        "made up"
                    )
                case 3:
                    adapter_pool.drop(f"m:{adapter}")
                case 4:
                    adapter_pool.drop_unregistered([named(name, f"/{name}") for name in chance.choice(["", "123"])])
            await asyncio.sleep(0.002)

    troubling = asyncio.create_task(trouble(time.monotonic() + 4))
    while not troubling.done():
        clients = [asyncio.create_task(client()) for _ in range(20)]
        await asyncio.sleep(chance.random() * 0.01)
        chance.choice(clients).cancel()
        for result in await asyncio.gather(*clients, return_exceptions=True):
            assert result is None or isinstance(result, asyncio.CancelledError), result
    await troubling
    await settled(adapter_pool)
    assert served > 2000
    found = list(adapter_pool._loaded.values())
    assert [resident.users for resident in found] == [0] * len(found)
    assert engine.held.keys() == {resident.lora_request for resident in found}
    assert +place.locked == Counter(resident.files.entry for resident in found)


async def test_what_is_missing_is_told_without_a_load(adapter_pool: AdapterPool, engine: Engine, place: Place) -> None:
    await use(adapter_pool, "held")
    place.there = {"there"}
    place.errors = {
        "trouble": UnreachableError("down"),
        "gone": ModelNotFoundError("none"),
        "broken": RequestError("no"),
    }
    for adapter in ("gone", "broken"):
        await refused(adapter_pool, adapter)
    place.asked.clear()
    assert await adapter_pool.missing(["held", "there", "none", "trouble", "gone", "broken"]) == ["none", "gone"]
    # What the engine holds, and what failed just now, is known.
    assert sorted(place.asked) == ["none", "there", "trouble"]
    assert engine.added == ["m:held@1"]


async def test_lookups_hold_up_no_load(
    adapter_pool: AdapterPool, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_ = threading.Event()
    monkeypatch.setattr(place, "exists", lambda name: open_.wait(5))
    looking = asyncio.create_task(adapter_pool.missing([f"invented-{number}" for number in range(1000)]))
    await use(adapter_pool, "x")
    assert not looking.done()
    open_.set()
    assert await looking == []


async def test_other_nodes_have_an_adapter_before_it_is_loaded(engine: Engine, place: Place) -> None:
    pool = adapter_pool_with(engine, place)
    fetched: list[tuple[str, list[str]]] = []
    pool.fetch_elsewhere = lambda adapter, version: fetched.append((f"{adapter}@{version}", list(engine.added)))
    await pool.load(Adapter("m", "x"))
    assert (fetched, engine.added) == ([("m:x@1", [])], ["m:x@1"])
