"""The order of queued requests."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayllm.core.priority import Priority
from rayllm.routing.fair_queue import FairQueue, Ticket

INTERACTIVE, STANDARD, BATCH = Priority


def ticket(value: str, tenant: str = "", cost: int = 100, priority: Priority = STANDARD) -> Ticket[str]:
    return Ticket(value, priority, tenant, cost)


def queue_of(*tickets: Ticket[str]) -> FairQueue[str]:
    queue: FairQueue[str] = FairQueue()
    for each in tickets:
        queue.push(each)
    return queue


def drain(queue: FairQueue[str]) -> list[str]:
    return [queue.pop().value for _ in range(len(queue))]


def test_one_tenant_is_served_in_order_of_arrival() -> None:
    costs = [3000, 1, 20, 700, 5]
    assert drain(queue_of(*(ticket(str(n), cost=cost) for n, cost in enumerate(costs)))) == ["0", "1", "2", "3", "4"]


def test_higher_classes_go_first() -> None:
    queue = queue_of(ticket("b", priority=BATCH), ticket("s"), ticket("i", priority=INTERACTIVE), ticket("t"))
    assert drain(queue) == ["i", "s", "t", "b"]


def test_an_empty_queue_has_no_head() -> None:
    queue = queue_of()
    assert queue.head is None
    with pytest.raises(IndexError):
        queue.pop()


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), heavy=st.integers(6, 100))
def test_tenants_get_equal_shares_of_tokens_whatever_they_send(seed: int, heavy: int) -> None:
    chance = random.Random(seed)
    queue: FairQueue[str] = FairQueue()
    for tenant in range(5):
        for _ in range(2000 if tenant else 200 * heavy):
            queue.push(ticket("", f"t{tenant}", chance.choice([10, 300, 2000])))
    served: Counter[str] = Counter()
    while sum(served.values()) < 200_000:
        popped = queue.pop()
        served[popped.tenant] += popped.cost
    # All have tickets left. Each differs from its share by at most two tickets and two quanta.
    assert all(abs(tokens - 40_000) <= 2 * 2000 + 2 * 16 for tokens in served.values())


def test_a_tenant_that_was_idle_has_saved_nothing_up() -> None:
    queue = queue_of(*(ticket("a", "a") for _ in range(100)))
    for _ in range(50):
        queue.pop()
    for _ in range(50):
        queue.push(ticket("b", "b"))
    assert Counter(queue.pop().tenant for _ in range(20)) == {"a": 10, "b": 10}


def test_what_was_served_beyond_the_cost_is_charged() -> None:
    queue = queue_of(*(ticket(name, name) for name in "ab" for _ in range(50)))
    queue.charge(STANDARD, "a", 1000)
    queue.charge(STANDARD, "nobody", 1000)
    first = [queue.pop().tenant for _ in range(30)]
    assert first.count("b") - first.count("a") in range(6, 16)


def test_a_returned_ticket_is_the_next() -> None:
    queue = queue_of(*(ticket(f"{name}{n}", name, 600) for name in "ab" for n in range(3)))
    first = queue.pop()
    queue.pop()
    queue.push(first, at_head=True)
    assert queue.pop() is first


def test_looking_at_the_head_changes_nothing() -> None:
    tickets = [ticket(f"{name}{n}", name, 400) for n in range(20) for name in "abc"]
    looked, other = queue_of(*tickets), queue_of(*tickets)
    order = []
    while len(looked):
        assert looked.head is looked.head
        order.append(looked.pop())
    assert order == [other.pop() for _ in range(len(other))]


def test_a_removed_ticket_is_not_served() -> None:
    first, second = ticket("1"), ticket("2")
    queue = queue_of(first, second)
    assert queue.remove(first)
    assert not queue.remove(first)
    assert drain(queue) == ["2"]


def test_tokens_ahead_count_what_goes_first() -> None:
    queue = queue_of(
        ticket("i", "x", 50, INTERACTIVE), *(ticket("a", "a", 100) for _ in range(10)), ticket("b", "b", 30)
    )
    assert queue.tokens_ahead(INTERACTIVE, "y", 60) == 50
    # A tenant of its own is served as much as the others before its turn.
    assert queue.tokens_ahead(STANDARD, "c", 60) == 50 + 60 + 30
    assert queue.tokens_ahead(STANDARD, "a", 100) == 50 + 1000 + 30
    assert queue.tokens_ahead(BATCH, "c", 1) == 50 + 1000 + 30


def test_a_full_queue_gives_up_what_has_least_right_to_its_place() -> None:
    tickets = [ticket(f"a{n}", "a") for n in range(5)]
    queue = queue_of(*tickets, ticket("b", "b"))
    assert queue.to_displace(STANDARD, "c", 100) is tickets[-1]
    assert queue.to_displace(STANDARD, "b", 100) is tickets[-1]
    assert queue.to_displace(STANDARD, "a", 100) is None
    assert queue.to_displace(BATCH, "c", 100) is None
    assert queue.to_displace(INTERACTIVE, "a", 100) is tickets[-1]
    batch = ticket("x", "x", 1, BATCH)
    queue.push(batch)
    assert queue.to_displace(STANDARD, "a", 100) is batch
    assert queue_of().to_displace(STANDARD, "a", 1) is None


def test_a_cleared_queue_is_empty() -> None:
    queue = queue_of(ticket("1"), ticket("2", "b", priority=BATCH))
    assert [each.value for each in queue.clear()] == ["1", "2"]
    assert len(queue) == 0
    assert queue.head is None


def test_tenants_alternate_however_small_their_requests() -> None:
    queue = queue_of(*(ticket("a", "a", 20) for _ in range(100)), *(ticket("b", "b", 20) for _ in range(3)))
    assert Counter(queue.pop().tenant for _ in range(8))["b"] == 3
