"""No tenant takes all of what tenants share."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from rayllm.core.errors import RateLimitError, UnavailableError
from rayllm.core.shares import Shares, Turns


def held(shares: Shares, stack: ExitStack, tenant: str) -> int:
    """What a tenant gets that takes all it can, one by one."""
    for count in range(1000):
        try:
            stack.enter_context(shares.holding(tenant))(1)
        except RateLimitError:
            return count
    raise AssertionError


def test_a_tenant_holds_as_much_as_it_leaves_free() -> None:
    shares = Shares("things", "router.most", 120, 1)
    with ExitStack() as first, ExitStack() as second:
        assert held(shares, first, "a") == 60
        assert held(shares, second, "b") == 30
        assert held(shares, second, "c") == 15
        # Who leaves makes room for all.
        second.close()
        assert held(shares, first, "a") == 0
        assert held(shares, second, "b") == 30
    assert not shares.held


def test_a_refusal_says_what_is_full_and_when_to_come_back() -> None:
    shares = Shares("things", "router.most", 10, 1)
    with shares.holding("a") as take:
        with pytest.raises(RateLimitError, match=r"their share of this service's things \(router.most\)") as refused:
            take(6)
        assert refused.value.headers() == {"retry-after": "1", "x-should-retry": "true"}
        take(5)


def test_two_that_take_all_they_can_leave_a_third() -> None:
    shares = Shares("things", "router.most", 120, 1)
    tenants = dict.fromkeys("ab", 0)
    with ExitStack() as stack:
        for tenant in "ab" * 60:
            try:
                stack.enter_context(shares.holding(tenant))(1)
                tenants[tenant] += 1
            except RateLimitError:
                pass
        assert tenants == {"a": 40, "b": 40}


def test_without_tenants_there_is_one_for_all() -> None:
    shares = Shares("things", "router.most", 10, 1)
    with ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(shares.holding(""))(1)
        with pytest.raises(UnavailableError, match=r"too many things \(router.most\)"):
            stack.enter_context(shares.holding(""))(1)
        with pytest.raises(UnavailableError):
            stack.enter_context(shares.holding("a"))(1)


def test_one_request_always_fits() -> None:
    shares = Shares("things", "router.most", 10, 8)
    with shares.holding("a") as take:
        for _ in range(8):
            take(1)
        with pytest.raises(RateLimitError):
            take(1)


class Jobs:
    """Jobs that end when they are told to."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.begun: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def add(self, *names: str) -> None:
        for name in names:
            self.ends[name] = asyncio.Event()
            self.tasks.append(asyncio.create_task(self._run(name)))
        await self.settle()

    async def end(self, name: str) -> None:
        self.ends[name].set()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def _run(self, name: str) -> None:
        # The first letter is the tenant.
        async with self.turns.turn(name[0].strip()):
            self.begun.append(name)
            await self.ends[name].wait()


async def test_tenants_take_turns() -> None:
    jobs = Jobs(Turns(2, 60, TimeoutError))
    await jobs.add("a1", "a2", "a3", "a4")
    assert jobs.begun == ["a1"]
    await jobs.add("b1", "b2", "c1")
    assert jobs.begun == ["a1", "b1"]
    await jobs.end("a1")
    assert jobs.begun == ["a1", "b1", "c1"]
    await jobs.end("b1")
    assert jobs.begun == ["a1", "b1", "c1", "a2"]
    for name in jobs.ends:
        await jobs.end(name)
    assert sorted(jobs.begun) == sorted(jobs.ends)


async def test_without_tenants_all_room_is_used() -> None:
    jobs = Jobs(Turns(2, 60, TimeoutError))
    await jobs.add(" 1", " 2", " 3")
    assert jobs.begun == [" 1", " 2"]
    for task in jobs.tasks[:2]:
        task.cancel()
    await jobs.settle()
    assert jobs.begun == [" 1", " 2", " 3"]
    await jobs.end(" 3")


@pytest.mark.parametrize("tenant", ["", "a"])
async def test_who_waits_too_long_is_refused(tenant: str) -> None:
    turns = Turns(1, 0.01, lambda: UnavailableError("busy"))
    async with turns.turn(tenant):
        with pytest.raises(UnavailableError, match="busy"):
            async with turns.turn(tenant):
                pass
    async with turns.turn(tenant):
        pass
