"""Which replica an adapter's requests go to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from rayllm.serving.affinity import AdapterAffinityRouter


@dataclass(frozen=True)
class Replica:
    """A running replica, as far as it is looked at."""

    replica_id: Any


def replicas(count: int) -> list[Replica]:
    return [Replica(Id(f"replica{number}")) for number in range(count)]


@dataclass(frozen=True)
class Id:
    unique_id: str


@dataclass
class Pending:
    """A request that waits for a replica, with the arguments of its call."""

    args: tuple[Any, ...]
    routing_context: Any = field(default_factory=lambda: SimpleNamespace(should_backoff=False))


class Router(AdapterAffinityRouter):
    """Without Serve's constructor, which asks a running controller."""

    def __init__(self, queues: dict[Id, int]) -> None:
        self._replica_queue_len_cache = queues


async def ranks(adapter: str, running: list[Replica], queues: dict[Id, int] | None = None) -> list[list[Replica]]:
    """The ranks for a request that asks for an adapter."""
    pending = Pending(("lease", adapter))
    found = await Router(queues or {}).choose_replicas(running, pending)
    assert pending.routing_context.should_backoff
    return found


async def home(adapter: str, running: list[Replica]) -> Replica:
    return (await ranks(adapter, running))[0][0]


async def test_an_adapter_has_one_home_whoever_asks_and_in_whatever_order() -> None:
    running = replicas(5)
    assert await ranks("x", running) == await ranks("x", running[::-1])
    first, second, others = await ranks("x", running)
    assert (len(first), len(second), len(others)) == (1, 1, 3)
    assert {*first, *second, *others} == set(running)


async def test_adapters_spread_over_the_replicas() -> None:
    homes = Counter([await home(f"adapter{number}", replicas(4)) for number in range(200)])
    assert len(homes) == 4
    assert all(30 <= count <= 70 for count in homes.values())


async def test_a_replica_that_goes_moves_only_its_own() -> None:
    running = replicas(4)
    gone = running[1]
    for number in range(100):
        before, after = await home(str(number), running), await home(str(number), [r for r in running if r != gone])
        assert before in (gone, after)
        if before == gone:
            # Who helped before is at home now: it may have the adapter already.
            assert [after] == (await ranks(str(number), running))[1]


async def test_the_next_one_helps_when_home_is_far_ahead() -> None:
    running = replicas(3)
    [first], [second], [third] = await ranks("x", running)
    assert await ranks("x", running, {first.replica_id: 8}) == [[first], [second], [third]]
    assert await ranks("x", running, {first.replica_id: 9}) == [[first, second], [third]]
    assert await ranks("x", running, {first.replica_id: 9, second.replica_id: 2}) == [[first], [second], [third]]


async def test_one_replica_is_all_there_is() -> None:
    running = replicas(1)
    assert await ranks("x", running) == await ranks("", running) == [running]
    assert await ranks("x", []) == [[]]


async def test_a_base_goes_to_one_of_any_two() -> None:
    running = replicas(4)
    chosen = [await ranks("", running) for _ in range(100)]
    assert all(len(found) == 1 and len(set(found[0])) == 2 for found in chosen)
    assert {replica for [pair] in chosen for replica in pair} == set(running)


async def test_calls_without_an_adapter_are_a_bases() -> None:
    running = replicas(3)
    [pair] = await Router({}).choose_replicas(running, Pending(()))
    assert len(pair) == 2
    assert await Router({}).choose_replicas(running) == [running]
