"""Expensive work: few calls at once, each result computed once, and no more for clients that leave."""

from __future__ import annotations

import asyncio

import pytest

from rayllm.core.errors import UnavailableError
from rayllm.core.shares import current_tenant
from rayllm.engine.bounded_work import BoundedWork


class Work:
    """Work that ends when it is told to."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.end = asyncio.Event()

    async def __call__(self, text: str) -> str:
        self.begun.append(text)
        await self.end.wait()
        if text == "broken":
            raise ValueError(text)
        return text.upper()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_equal_texts_are_worked_on_once() -> None:
    work = Work()
    bounded = BoundedWork(work, UnavailableError)
    waiting = [asyncio.create_task(bounded.answer("a")) for _ in range(3)]
    await settle()
    work.end.set()
    assert await asyncio.gather(*waiting) == ["A"] * 3
    assert await bounded.answer("a") == "A"
    assert work.begun == ["a"]


async def test_a_client_that_leaves_makes_no_room_for_more() -> None:
    work = Work()
    bounded = BoundedWork(work, UnavailableError)
    tasks = [asyncio.create_task(bounded.answer(text)) for text in ("a", "b", "c")]
    await settle()
    for task in tasks[:2]:
        task.cancel()
    await settle()
    assert work.begun == ["a", "b"]
    work.end.set()
    assert await tasks[2] == "C"
    # What they asked for is there for the next one.
    assert await bounded.answer("a") == "A"
    assert work.begun == ["a", "b", "c"]


async def test_one_tenant_does_not_take_all_of_them() -> None:
    work = Work()
    bounded = BoundedWork(work, UnavailableError)
    tasks = []
    for tenant, text in (("a", "a"), ("a", "b"), ("a", "c"), ("b", "c"), ("c", "d")):
        current_tenant.set(tenant)
        tasks.append(asyncio.create_task(bounded.answer(text)))
    await settle()
    # The same as another one asks for, before whose turn.
    assert work.begun == ["a", "c"]
    work.end.set()
    assert await asyncio.gather(*tasks) == ["A", "B", "C", "C", "D"]


async def test_errors_are_not_remembered() -> None:
    work = Work()
    work.end.set()
    bounded = BoundedWork(work, UnavailableError)
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            await bounded.answer("broken")
    assert work.begun == ["broken", "broken"]


async def test_odd_texts_have_a_key() -> None:
    work = Work()
    work.end.set()
    assert await BoundedWork(work, UnavailableError).answer("\ud800") == "\ud800"
