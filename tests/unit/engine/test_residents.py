"""The adapters in one engine: an engine and a place by hand, and what must hold whoever asks when."""

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

from rayllm.engine import residents as module
from rayllm.engine.plan import RequestPlan
from rayllm.engine.residents import Residents
from rayllm.errors import ModelNotFoundError, RayLLMError, RequestError, UnavailableError
from rayllm.lora import AdapterFiles, AdapterName
from rayllm.sources import UnreachableError
from rayllm.sources.entry import Entry


class Engine:
    """Knows what it holds; refuses what was removed before."""

    def __init__(self) -> None:
        self.held: dict[int, str] = {}
        self.added: list[str] = []
        self.names: dict[str, int] = {}
        self.refuses = ""
        self.pause_s = 0.0

    async def add(self, name: str, key: str, folder: Path) -> int:
        await asyncio.sleep(self.pause_s)
        if self.refuses == key:
            raise RequestError(f"`{key}` is refused.", "model", "adapter_broken")
        self.added.append(key)
        self.held[len(self.added)] = key
        return len(self.added)

    def answer_to(self, name: str, loaded: Any) -> None:
        assert loaded in self.held
        self.names[name] = loaded

    async def remove(self, loaded: Any) -> None:
        await asyncio.sleep(0)
        del self.held[loaded]


class Place:
    """Has any adapter, at version 1 unless told otherwise, and counts who asks. It is the node's cache as well."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self.errors: dict[str, RayLLMError] = {}
        self.asked: list[str] = []
        self.open = threading.Event()
        self.open.set()
        self.locked: Counter[Entry] = Counter()
        self.base = "m"
        self.there: set[str] = set()

    def holds(self, name: AdapterName) -> bool:
        self.asked.append(name.adapter)
        if error := self.errors.get(name.adapter):
            raise error
        return name.adapter in self.there

    def have(self, name: AdapterName, path: str | None = None) -> AdapterFiles:
        self.asked.append(name.adapter)
        assert self.open.wait(5)
        if error := self.errors.get(path or name.adapter):
            raise error
        version = self.versions.get(name.adapter, "1")
        entry = Entry(Path(f"/cache/{path or name.adapter}/{version}"))
        self.locked[entry] += 1
        return AdapterFiles(entry, version, None)

    def names(self) -> list[AdapterName]:
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


def no_plan(name: AdapterName, files: AdapterFiles) -> RequestPlan | None:
    return None


def residents_with(engine: Engine, place: Place, capacity: int = 2, **times: float) -> Residents:
    return Residents(place, engine, no_plan, capacity, **times)  # type: ignore[arg-type]


@pytest.fixture
async def residents(engine: Engine, place: Place) -> AsyncIterator[Residents]:
    found = residents_with(engine, place)
    yield found
    await settled(found)


async def settled(residents: Residents) -> None:
    """Wait for all that happens in the background."""
    while tasks := {*residents._loading.values(), *residents._leaving}:
        await asyncio.wait(tasks)
        await asyncio.sleep(0)


def named(adapter: str) -> AdapterName:
    return AdapterName("m", adapter)


async def use(residents: Residents, *adapters: str, path: str | None = None) -> None:
    for adapter in adapters:
        async with residents.use(named(adapter), path, f"m:{adapter}"):
            pass


async def refused(residents: Residents, adapter: str, path: str | None = None) -> RayLLMError:
    with pytest.raises(RayLLMError) as caught:
        await use(residents, adapter, path=path)
    return caught.value


async def test_twenty_at_once_load_an_adapter_once(residents: Residents, engine: Engine, place: Place) -> None:
    engine.pause_s = 0.01
    await asyncio.gather(*(use(residents, "x") for _ in range(20)))
    assert (place.asked, engine.added) == (["x"], ["m:x@1"])


async def test_a_client_that_leaves_takes_the_adapter_from_nobody(residents: Residents, place: Place) -> None:
    place.open.clear()
    first, second = (asyncio.create_task(use(residents, "x")) for _ in range(2))
    await asyncio.sleep(0.01)
    first.cancel()
    place.open.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
    assert place.asked == ["x"]


async def test_the_name_asked_for_leads_to_the_version(residents: Residents, engine: Engine) -> None:
    async with residents.use(named("x"), None, "short") as resident:
        assert engine.names == {"short": resident.loaded}


async def test_the_one_not_used_for_longest_makes_room(residents: Residents, engine: Engine) -> None:
    await use(residents, "a", "b", "a", "c")
    await settled(residents)
    assert residents.names == ["m:a", "m:c"]
    assert sorted(engine.held.values()) == ["m:a@1", "m:c@1"]


async def test_no_more_make_room_than_have_to(engine: Engine, place: Place) -> None:
    residents = residents_with(engine, place, capacity=3)
    await use(residents, "a", "b", "c", "d")
    assert residents.names == ["m:b", "m:c", "m:d"]


async def test_those_in_use_stay_until_they_are_done(residents: Residents, engine: Engine) -> None:
    async with AsyncExitStack() as stack:
        for adapter in "abcd":
            await stack.enter_async_context(residents.use(named(adapter), None, adapter))
        await use(residents, "e")
        await settled(residents)
        assert sorted(engine.held.values()) == [f"m:{adapter}@1" for adapter in "abcd"]
    await settled(residents)
    assert len(engine.held) == len(residents.names) == 2


async def test_more_busy_adapters_than_there_is_room_for_are_each_loaded_once(engine: Engine, place: Place) -> None:
    residents = residents_with(engine, place, capacity=1)

    async def busy(adapter: str) -> None:
        async with residents.use(named(adapter), None, adapter):
            await asyncio.sleep(0.05)

    await asyncio.wait_for(asyncio.gather(*(busy(str(number % 8)) for number in range(40))), 5)
    assert len(place.asked) == 8


async def test_a_new_version_answers_while_the_old_one_finishes(engine: Engine, place: Place) -> None:
    residents = residents_with(engine, place, refresh_s=0)
    async with residents.use(named("x"), None, "x") as old:
        place.versions["x"] = "2"
        async with residents.use(named("x"), None, "x") as unchanged:
            # Nobody waits for the new version.
            assert unchanged is old
        await settled(residents)
        async with residents.use(named("x"), None, "x") as new:
            assert (new.files.version, engine.held[new.loaded]) == ("2", "m:x@2")
            assert engine.names == {"x": new.loaded}
        assert engine.held[old.loaded] == "m:x@1"
    await settled(residents)
    assert list(engine.held.values()) == ["m:x@2"]


async def test_a_place_is_asked_again_only_after_a_while(residents: Residents, place: Place) -> None:
    await use(residents, "x", "x", "x")
    assert place.asked == ["x"]


@pytest.mark.parametrize(
    "error", [UnavailableError("down", "model"), RequestError("broken", "model", "adapter_broken")]
)
async def test_trouble_with_a_new_version_keeps_the_old_one(engine: Engine, place: Place, error: RayLLMError) -> None:
    residents = residents_with(engine, place, refresh_s=0)
    await use(residents, "x")
    place.errors["x"] = error
    await use(residents, "x")
    await settled(residents)
    await use(residents, "x")
    assert list(engine.held.values()) == ["m:x@1"]
    assert len(place.asked) >= 2


async def test_a_new_version_that_the_engine_refuses_keeps_the_old_one(engine: Engine, place: Place) -> None:
    residents = residents_with(engine, place, refresh_s=0)
    await use(residents, "x")
    place.versions["x"], engine.refuses = "2", "m:x@2"
    await use(residents, "x")
    await settled(residents)
    await use(residents, "x")
    await settled(residents)
    assert list(engine.held.values()) == ["m:x@1"]
    assert {entry.root.name for entry in +place.locked} == {"1"}


async def test_an_adapter_that_is_gone_from_its_place_is_dropped(engine: Engine, place: Place) -> None:
    residents = residents_with(engine, place, refresh_s=0)
    await use(residents, "x")
    place.errors["x"] = ModelNotFoundError("gone", "model")
    await use(residents, "x")
    await settled(residents)
    assert (residents.names, engine.held) == ([], {})
    assert await refused(residents, "x") is place.errors["x"]
    assert +place.locked == {}


async def test_a_failure_is_remembered_for_a_short_while(engine: Engine, place: Place) -> None:
    residents = residents_with(engine, place, forget_s=0.2)
    place.errors["x"] = RequestError("broken")
    assert [(await refused(residents, "x")).message for _ in range(3)] == ["broken"] * 3
    assert place.asked == ["x"]
    del place.errors["x"]
    await asyncio.sleep(0.25)
    await use(residents, "x")


async def test_a_remembered_failure_does_not_grow(residents: Residents, place: Place) -> None:
    place.errors["x"] = RequestError("broken")
    await refused(residents, "x")

    async def frames() -> int:
        traceback, count = (await refused(residents, "x")).__traceback__, 0
        while traceback:
            traceback, count = traceback.tb_next, count + 1
        return count

    assert await frames() == await frames()


async def test_only_so_many_failures_are_remembered(
    residents: Residents, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_FAILURES", 3)
    for number in range(5):
        place.errors[str(number)] = ModelNotFoundError("none")
        await refused(residents, str(number))
    await refused(residents, "4")
    await refused(residents, "0")
    assert place.asked == ["0", "1", "2", "3", "4", "0"]


async def test_loading_asks_again_whatever_failed_before(residents: Residents, place: Place) -> None:
    place.errors["x"] = RequestError("broken")
    await refused(residents, "x")
    del place.errors["x"]
    await residents.load(named("x"))
    await use(residents, "x")
    assert place.asked == ["x", "x"]


async def test_an_adapter_moves_to_the_place_that_it_was_loaded_from(residents: Residents, engine: Engine) -> None:
    await use(residents, "x")
    assert not residents.has_loaded
    await use(residents, "x", path="/p")
    await settled(residents)
    assert residents.has_loaded
    assert len(engine.held) == 1


async def test_trouble_with_one_place_takes_nothing_from_another(residents: Residents, place: Place) -> None:
    await use(residents, "x", path="/good")
    place.errors["/bad"] = ModelNotFoundError("none")
    await refused(residents, "x", "/bad")
    await refused(residents, "x", "/bad")
    await use(residents, "x", path="/good")
    assert place.asked == ["x", "x"]


async def test_what_was_unloaded_is_dropped(residents: Residents, engine: Engine) -> None:
    await use(residents, "found")
    await use(residents, "loaded", path="/p")
    residents.keep_loaded(["/p"])
    assert residents.names == ["m:found", "m:loaded"]
    residents.keep_loaded([])
    await settled(residents)
    assert list(engine.held.values()) == ["m:found@1"]


async def test_files_that_another_name_uses_stay(residents: Residents, place: Place) -> None:
    await use(residents, "a", "b", path="/p")
    residents.drop("m:a")
    await settled(residents)
    assert place.locked.total() == 1
    residents.drop("m:b")
    await settled(residents)
    assert +place.locked == {}


async def test_thousands_of_uses_leave_everything_in_order(engine: Engine, place: Place) -> None:
    """Versions change, places fail, clients leave, adapters are dropped; each use has what it was promised."""
    residents = residents_with(engine, place, capacity=3, refresh_s=0.01, forget_s=0.01)
    chance = random.Random(7)
    served = 0

    async def client() -> None:
        nonlocal served
        name = named(str(chance.randrange(8)))
        with suppress(RayLLMError):
            async with residents.use(
                name, chance.choice([None, None, None, f"/{name.adapter}"]), str(name)
            ) as resident:
                for _ in range(2):
                    assert resident.users > 0
                    assert engine.held[resident.loaded].startswith(f"{name}@")
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
                    residents.drop(f"m:{adapter}")
                case 4:
                    residents.keep_loaded(chance.choice([[], ["/1", "/2", "/3"]]))
            await asyncio.sleep(0.002)

    troubling = asyncio.create_task(trouble(time.monotonic() + 4))
    while not troubling.done():
        clients = [asyncio.create_task(client()) for _ in range(20)]
        await asyncio.sleep(chance.random() * 0.01)
        chance.choice(clients).cancel()
        for result in await asyncio.gather(*clients, return_exceptions=True):
            assert result is None or isinstance(result, asyncio.CancelledError), result
    await troubling
    await settled(residents)
    assert served > 2000
    found = list(residents._residents.values())
    assert [resident.users for resident in found] == [0] * len(found)
    assert engine.held.keys() == {resident.loaded for resident in found}
    assert +place.locked == Counter(resident.files.entry for resident in found)


async def test_what_is_missing_is_told_without_a_load(residents: Residents, engine: Engine, place: Place) -> None:
    await use(residents, "held")
    place.there = {"there"}
    place.errors = {
        "trouble": UnreachableError("down"),
        "gone": ModelNotFoundError("none"),
        "broken": RequestError("no"),
    }
    for adapter in ("gone", "broken"):
        await refused(residents, adapter)
    place.asked.clear()
    assert await residents.missing(["held", "there", "none", "trouble", "gone", "broken"]) == ["none", "gone"]
    # What the engine holds, and what failed just now, is known.
    assert sorted(place.asked) == ["none", "there", "trouble"]
    assert engine.added == ["m:held@1"]


async def test_lookups_hold_up_no_load(residents: Residents, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    open_ = threading.Event()
    monkeypatch.setattr(place, "holds", lambda name: open_.wait(5))
    looking = asyncio.create_task(residents.missing([f"invented-{number}" for number in range(1000)]))
    await use(residents, "x")
    assert not looking.done()
    open_.set()
    assert await looking == []
