"""Slots of a replica whose engine may be saturated."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from rayllm.core.priority import Priority
from rayllm.serving.replica import slots as slots_module
from rayllm.serving.replica.slots import SlotHolder, Slots
from tests.fakes.clock import pass_time, settle


class Count:
    """A fake of Ray Serve's count."""

    capacity = 4

    def __init__(self) -> None:
        self._tokens = itertools.count()

    def add(self) -> str:
        return str(next(self._tokens))

    def remove(self, token: str) -> None:
        pass


def holder() -> SlotHolder:
    return SlotHolder(10, Priority.STANDARD, lambda: None)


async def test_a_saturated_engine_gets_no_more_and_its_relief_is_reported() -> None:
    is_saturated, freed = True, asyncio.Event()
    slots = Slots(Count(), lambda: is_saturated)
    slots.on_slot_freed = freed.set
    async with slots.reserve(holder()) as first:
        # An idle replica takes a request of any size.
        assert first
        async with slots.reserve(holder()) as second:
            assert not second
        for _ in range(5):
            # The time of the next check passes.
            pass_time(1)
            await settle()
        assert not freed.is_set()
        is_saturated = False
        async with asyncio.timeout(5):
            await freed.wait()
        async with slots.reserve(holder()) as second:
            assert second
            assert (slots.taken, slots.work) == (2, 20)
    assert (slots.taken, slots.work) == (0, 0)


async def test_a_request_that_does_not_stop_keeps_its_slot() -> None:
    slots = Slots(Count())
    slots._count.capacity = 1  # type: ignore[misc]
    stubborn = SlotHolder(1, Priority.BATCH, lambda: None)
    async with slots.reserve(stubborn):
        async with slots.reserve(SlotHolder(1, Priority.INTERACTIVE, lambda: None)) as has_slot:
            assert not has_slot
        assert stubborn.is_preempted


async def test_in_a_saturated_engine_a_higher_class_takes_the_place_of_a_lower_one() -> None:
    slots, stopped = Slots(Count(), lambda: True), asyncio.Event()

    async def batch() -> None:
        async with slots.reserve(SlotHolder(1, Priority.BATCH, stopped.set)):
            await stopped.wait()

    task = asyncio.create_task(batch())
    await asyncio.sleep(0)
    async with slots.reserve(SlotHolder(1, Priority.INTERACTIVE, lambda: None)) as has_slot:
        assert has_slot
        assert slots.taken == 1
    await task


async def test_a_request_that_keeps_its_slot_is_not_stopped() -> None:
    stopped: list[str] = []
    slots = Slots(Count())
    slots._count.capacity = 2  # type: ignore[misc]
    old = SlotHolder(1, Priority.BATCH, lambda: stopped.append("old"), keeps_slot=True)
    async with slots.reserve(old), slots.reserve(holder()):
        # Nor does it take the slot of a higher class.
        async with slots.reserve(SlotHolder(1, Priority.BATCH, lambda: None, keeps_slot=True)) as has_slot:
            assert not has_slot
        async with slots.reserve(SlotHolder(1, Priority.STANDARD, lambda: None)) as has_slot:
            assert not has_slot
    assert stopped == []


def waiting(tenant: str, priority: Priority = Priority.STANDARD) -> SlotHolder:
    return SlotHolder(10, priority, lambda: None, tenant=tenant, waits=True)


async def start(slots: Slots, holder: SlotHolder, order: list[str], until: asyncio.Event) -> asyncio.Task[None]:
    """A request that notes when it begins, and ends at an event."""

    async def run() -> None:
        async with slots.reserve(holder) as has_slot:
            order.append(holder.tenant if has_slot else f"not {holder.tenant}")
            if has_slot:
                await until.wait()

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    return task


async def test_the_next_slot_is_the_tenants_that_was_served_least(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "_WAIT_S", 3600.0)
    slots, order, end = Slots(Count()), list[str](), asyncio.Event()
    slots._count.capacity = 1  # type: ignore[misc]
    tasks = [await start(slots, waiting("a"), order, end)]
    tasks += [await start(slots, waiting(tenant), order, end) for tenant in ("a", "a", "b", "b")]
    tasks.append(await start(slots, waiting("c", Priority.INTERACTIVE), order, end))
    tasks.append(await start(slots, holder(), order, end))
    assert order == ["a", "not "], "who does not wait is refused at once"
    end.set()
    async with asyncio.timeout(10):
        await asyncio.gather(*tasks)
    assert order[2:] == ["c", "b", "a", "b", "a"]


async def test_what_a_request_really_took_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "_WAIT_S", 3600.0)
    slots, order, end = Slots(Count()), list[str](), asyncio.Event()
    slots._count.capacity = 1  # type: ignore[misc]
    first = waiting("a")
    tasks = [await start(slots, first, order, end)]
    tasks += [await start(slots, waiting(tenant), order, end) for tenant in ("a", "b", "b", "b")]
    first.served_tokens = 35
    end.set()
    async with asyncio.timeout(10):
        await asyncio.gather(*tasks)
    assert order == ["a", "b", "b", "b", "a"]


async def test_who_waits_too_long_or_leaves_takes_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "_WAIT_S", 0.01)
    slots, order, end = Slots(Count()), list[str](), asyncio.Event()
    slots._count.capacity = 1  # type: ignore[misc]
    first = await start(slots, waiting("a"), order, end)
    await (await start(slots, waiting("b"), order, end))
    assert order == ["a", "not b"]
    monkeypatch.setattr(slots_module, "_WAIT_S", 3600.0)
    leaving = await start(slots, waiting("b"), order, end)
    last = await start(slots, waiting("c"), order, end)
    # It leaves in the moment in which it gets the slot.
    end.set()
    while not slots._promised:
        await asyncio.sleep(0)
    leaving.cancel()
    async with asyncio.timeout(10):
        await asyncio.gather(first, last)
    assert order == ["a", "not b", "c"]
    assert leaving.cancelled()
    assert (slots.taken, slots._promised) == (0, 0)
