"""The queue of requests for a replica, its count, and ejected replicas."""

from __future__ import annotations

import asyncio
import random
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayllm.core.errors import EngineError, UnavailableError
from rayllm.core.priority import Priority
from rayllm.routing import RoutingRequest
from rayllm.serving.cluster.replica_updates import ReplicaUpdate
from rayllm.serving.router.replicas import credit as credit_module
from rayllm.serving.router.replicas import replica as replica_module
from rayllm.serving.router.replicas.dispatcher import Dispatcher, SuspectError
from rayllm.serving.router.replicas.replica import Replica
from rayllm.serving.router.replicas.replica_search import ReplicaSearch
from rayllm.serving.router.replicas.replica_set import ReplicaSet
from rayllm.serving.wire.outcome import NotAnsweredError, Outcome
from tests.fakes.clock import pass_time, settle, simulated, until

T = TypeVar("T")


async def answered(
    dispatcher: Dispatcher,
    request: RoutingRequest,
    carry: Callable[[Replica, ReplicaSearch], Awaitable[T]],
    priority: Priority = Priority.STANDARD,
    tenant: str = "",
) -> T | None:
    """Dispatch a request; what `carry` returned in the end."""
    results: list[T | None] = [None]

    async def send(replica: Replica, search: ReplicaSearch) -> Outcome:
        try:
            results.append(await carry(replica, search))
        except NotAnsweredError as error:
            results.append(None)
            return error.outcome
        return Outcome.ANSWERED

    await dispatcher.dispatch("m", request, send, priority, tenant)
    return results[-1]


class Queue:
    """Ray Serve's count of queued requests."""

    def __init__(self, limit: int = -1) -> None:
        self.limit = limit
        self.count = 0
        self.is_available = True
        self.is_resting = False

    def enter(self) -> None:
        self.count += 1

    def rest(self) -> None:
        self.is_resting = True

    def leave(self) -> None:
        self.count -= 1


def replica_update(name: str, capacity: int) -> ReplicaUpdate:
    return ReplicaUpdate(name, capacity, {"address": "http://x", "key": "k", "socket": "", "node_id": "far"}, {})


def replica_set(queue: Queue, *capacities: int, queue_timeout_s: float = 10) -> ReplicaSet:
    made = ReplicaSet("m", queue, "here", "least_loaded", queue_timeout_s)
    made.update([replica_update(f"r{index}", capacity) for index, capacity in enumerate(capacities)])
    return made


class Crowd:
    """Clients of one model, which arrive, are served, and leave at random."""

    def __init__(self, found: ReplicaSet, queue: Queue) -> None:
        self.replica_set, self.queue = found, queue
        self.dispatcher = Dispatcher({"m": found})
        self.waiting: dict[int, asyncio.Task[None]] = {}
        self.held: dict[int, tuple[asyncio.Task[None], asyncio.Event]] = {}
        self.refused = 0

    def come(self, number: int) -> None:
        done = asyncio.Event()

        async def carry(_: Replica, search: ReplicaSearch) -> None:
            task = self.waiting.pop(number)
            self.held[number] = task, done
            try:
                await done.wait()
            finally:
                del self.held[number]

        async def ask() -> None:
            try:
                await answered(self.dispatcher, RoutingRequest(), carry)
            except UnavailableError:
                self.waiting.pop(number)
                self.refused += 1
            except asyncio.CancelledError:
                self.waiting.pop(number, None)

        self.waiting[number] = asyncio.create_task(ask())

    def leave(self, chance: random.Random) -> None:
        everybody = [*self.waiting.values(), *(task for task, _ in self.held.values())]
        if everybody:
            chance.choice(everybody).cancel()

    def finish(self, chance: random.Random) -> None:
        if self.held:
            chance.choice(list(self.held.values()))[1].set()

    async def disperse(self) -> None:
        everybody = [*self.waiting.values(), *(task for task, _ in self.held.values())]
        for task in everybody:
            task.cancel()
        await asyncio.gather(*everybody, return_exceptions=True)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    limit=st.integers(0, 12),
    capacity=st.integers(1, 5),
    steps=st.lists(st.sampled_from(["come", "come", "come", "leave", "finish"]), min_size=10, max_size=80),
)
def test_the_count_equals_those_who_wait_whoever_comes_and_leaves(
    seed: int, limit: int, capacity: int, steps: list[str]
) -> None:
    async def run() -> None:
        chance, queue = random.Random(seed), Queue(limit)
        crowd = Crowd(replica_set(queue, capacity), queue)
        for number, step in enumerate(steps):
            before = len(crowd.waiting)
            refused, was_full = crowd.refused, len(crowd.held) == capacity
            if step == "come":
                crowd.come(number)
            else:
                getattr(crowd, step)(chance)
            await settle()
            assert queue.count == crowd.replica_set.waiting == len(crowd.waiting)
            assert len(crowd.held) == capacity or not crowd.waiting, "somebody waits though there is room"
            if crowd.refused > refused:
                assert step == "come"
                assert was_full, "refused though there was room"
                assert before == limit, "refused before the line was full"
        await crowd.disperse()
        assert queue.count == crowd.replica_set.waiting == 0

    asyncio.run(run())


async def test_without_replicas_nothing_is_reported() -> None:
    queue = Queue()
    made = replica_set(queue, 1)
    assert not queue.is_resting
    made.update([])
    assert queue.is_resting


async def test_a_whole_queue_is_used_at_once_and_again_after_it_left() -> None:
    """120 at once at 32 slots and a queue of 128 are all taken in; so are 90 after 200 have waited and left."""
    queue = Queue(128)
    crowd = Crowd(replica_set(queue, 32), queue)
    for number in range(160):
        crowd.come(number)
    await settle()
    assert (len(crowd.held), queue.count, crowd.refused) == (32, 128, 0)
    crowd.come(1000)
    await settle()
    assert crowd.refused == 1
    for task in crowd.waiting.values():
        task.cancel()
    await settle()
    assert queue.count == 0
    for number in range(2000, 2128):
        crowd.come(number)
    await settle()
    assert (queue.count, crowd.refused) == (128, 1)
    await crowd.disperse()


async def test_those_who_wait_are_served_in_order_and_newcomers_do_not_overtake() -> None:
    queue = Queue()
    found = replica_set(queue, 1)
    order: list[int] = []
    dispatcher = Dispatcher({"m": found})

    async def carry(number: int) -> None:
        async def one(_: Replica, search: ReplicaSearch) -> None:
            order.append(number)
            await asyncio.sleep(0)

        await answered(dispatcher, RoutingRequest(), one)

    await asyncio.gather(*(carry(number) for number in range(30)))
    assert order == list(range(30))


async def test_a_request_that_other_routers_beat_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credit_module, "_RETRY_S", 0.01)
    queue = Queue(1)
    dispatcher = Dispatcher({"m": replica_set(queue, 1)})
    order: list[str] = []
    hold, beaten = asyncio.Event(), 0

    async def first(_: Replica, search: ReplicaSearch) -> None:
        await hold.wait()

    async def second(_: Replica, search: ReplicaSearch) -> None:
        nonlocal beaten
        beaten += 1
        while not queue.count:
            await asyncio.sleep(0)
        if beaten <= 3:
            raise NotAnsweredError(Outcome.FULL)
        order.append("second")

    async def third(_: Replica, search: ReplicaSearch) -> None:
        order.append("third")

    tasks = []
    for carry in (first, second):
        tasks.append(asyncio.create_task(answered(dispatcher, RoutingRequest(), carry)))
        await settle()
    hold.set()
    while not beaten:
        await asyncio.sleep(0)
    # The line, which holds one, is filled by another while the second one is on its way.
    tasks.append(asyncio.create_task(answered(dispatcher, RoutingRequest(), third)))
    await asyncio.gather(*tasks)
    assert order == ["second", "third"]


async def test_a_full_replica_is_asked_by_one_request_for_each_free_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credit_module, "_RETRY_S", 3600.0)
    found = replica_set(Queue(), 50)
    [replica] = found.replicas.values()
    dispatcher = Dispatcher({"m": found})
    tries = 0

    async def carry(_: Replica, search: ReplicaSearch) -> None:
        nonlocal tries
        tries += 1
        await asyncio.sleep(0)
        raise NotAnsweredError(Outcome.FULL)

    asked = [asyncio.create_task(answered(dispatcher, RoutingRequest(), carry)) for _ in range(50)]
    await settle()
    assert tries == 50, "all of them fit, as far as was known"
    for expected in (51, 52):
        replica.credit.on_slot_freed()
        await settle()
        assert tries == expected, "one slot is for one request"
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)


async def test_a_replica_that_says_it_has_room_is_asked_at_once() -> None:
    found = replica_set(Queue(), 5)
    [replica] = found.replicas.values()
    dispatcher = Dispatcher({"m": found})
    is_full = True

    async def carry(_: Replica, search: ReplicaSearch) -> str:
        if is_full:
            raise NotAnsweredError(Outcome.FULL)
        return "answered"

    asked = asyncio.create_task(answered(dispatcher, RoutingRequest(), carry))
    await settle()
    assert not asked.done()
    is_full = False
    replica.credit.on_slot_freed()
    await settle()
    assert asked.result() == "answered"


async def test_a_deployment_that_is_given_up_refuses_those_who_wait() -> None:
    queue = Queue()
    found = replica_set(queue)
    asked = [asyncio.create_task(answered(Dispatcher({"m": found}), RoutingRequest(), print)) for _ in range(3)]  # type: ignore[arg-type]
    await settle()
    queue.is_available = False
    found.update([])
    for task in asked:
        with pytest.raises(UnavailableError, match="not available"):
            await task
    with pytest.raises(UnavailableError, match="not available"):
        await answered(Dispatcher({"m": found}), RoutingRequest(), print)  # type: ignore[arg-type]


class Replicas:
    """Replicas that fail as a test scripts, and count their requests."""

    def __init__(self, *capacities: int) -> None:
        self.replica_set = replica_set(Queue(), *capacities, queue_timeout_s=1)
        self.dispatcher = Dispatcher({"m": self.replica_set})
        self.failing: dict[str, Outcome] = {}
        self.bad: set[str] = set()
        self.sent: Counter[str] = Counter()

    async def ask(self) -> str:
        """The id of the replica that answers."""
        answered_by = ""

        async def send(replica: Replica, search: ReplicaSearch) -> Outcome:
            nonlocal answered_by
            answered_by = replica.id
            self.sent[replica.id] += 1
            return self.failing.get(replica.id) or (Outcome.ERROR if replica.id in self.bad else Outcome.ANSWERED)

        await self.dispatcher.dispatch("m", RoutingRequest(), send)
        return answered_by


@pytest.mark.parametrize("outcome", [Outcome.DRAINING, Outcome.LOST, Outcome.UNREACHABLE])
async def test_a_request_that_no_client_saw_a_byte_of_goes_to_another_replica(outcome: Outcome) -> None:
    replicas = Replicas(10, 10)
    replicas.failing["r0"] = outcome
    assert [await replicas.ask() for _ in range(10)] == ["r1"] * 10


@pytest.mark.parametrize(("outcome", "attempts"), [(Outcome.LOST, 2), (Outcome.UNREACHABLE, 1)])
async def test_a_request_waits_for_the_next_replica_while_the_only_one_dies(outcome: Outcome, attempts: int) -> None:
    replicas = Replicas(10)
    replicas.failing["r0"] = outcome
    asked = asyncio.create_task(replicas.ask())
    await settle()
    assert replicas.sent["r0"] == attempts
    [dying] = replicas.dispatcher.replicas("m")
    dying.mark_draining()
    replicas.replica_set.update([replica_update("r0", 10), replica_update("new", 10)])
    assert await asked == "new"


async def test_a_replica_that_cannot_be_reached_gets_requests_once_it_accepts_connections() -> None:
    """No request is lost to finding out that, and none takes the time that a connection to a lost node takes."""
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        host, port = reserved.getsockname()
    found = replica_set(Queue(), queue_timeout_s=60)
    metadata = {**replica_update("r0", 10).metadata, "address": f"http://{host}:{port}"}
    found.update([replace(replica_update("r0", 10), metadata=metadata)])
    dispatcher, attempts, is_there = Dispatcher({"m": found}), 0, False

    async def carry(replica: Replica, search: ReplicaSearch) -> str:
        nonlocal attempts
        attempts += 1
        # All of them are on their way before the first one fails.
        await settle()
        if not is_there:
            raise NotAnsweredError(Outcome.UNREACHABLE)
        return replica.id

    asked = [asyncio.create_task(answered(dispatcher, RoutingRequest(), carry)) for _ in range(5)]
    await until(lambda: not dispatcher.has_replicas("m"))
    for _ in range(5):
        # The time of the next attempt passes.
        pass_time(0.2)
        await settle()
    assert not dispatcher.has_replicas("m")
    assert not any(each.done() for each in asked)
    assert attempts == 5
    is_there = True
    async with await asyncio.start_server(lambda _, connection: connection.close(), host, port):
        pass_time(0.2)
        assert await asyncio.gather(*asked) == ["r0"] * 5
    assert attempts == 10


async def test_an_ejected_replica_that_can_be_reached_again_stays_ejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_module, "_FIRST_EJECTION_S", 3000.0)
    monkeypatch.setattr(replica_module, "_LONGEST_EJECTION_S", 3000.0)
    async with await asyncio.start_server(lambda _, connection: connection.close(), "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        metadata = {**replica_update("r0", 10).metadata, "address": f"http://{host}:{port}"}
        changes: list[bool] = []
        replica = Replica(
            replace(replica_update("r0", 10), metadata=metadata),
            False,
            lambda: changes.append(replica.is_open),
            lambda _: None,
        )
        replica.eject()
        replica.on_unreachable()
        await until(lambda: changes)
        assert changes == [False], "its address accepts connections"
        pass_time(3600)
        await until(lambda: len(changes) > 1)
        assert changes == [False, True]
        replica.close()


async def test_requests_that_reach_no_replica_end_in_time() -> None:
    replicas = Replicas(10)
    replicas.failing["r0"] = Outcome.UNREACHABLE
    with pytest.raises(UnavailableError, match=r"was running in time \(router.queue_timeout_s\)"):
        await replicas.ask()


@simulated
async def test_connections_that_time_out_use_up_the_time_of_a_request() -> None:
    found = replica_set(Queue(), *[1] * 50, queue_timeout_s=0.2)

    async def carry(replica: Replica, search: ReplicaSearch) -> None:
        await asyncio.sleep(0.15)
        raise NotAnsweredError(Outcome.UNREACHABLE)

    with pytest.raises(UnavailableError, match=r"could be reached in time \(router.queue_timeout_s\)"):
        await answered(Dispatcher({"m": found}), RoutingRequest(), carry)


async def test_a_replica_that_leaves_is_asked_no_more_and_requests_wait_for_the_next() -> None:
    replicas = Replicas(10)
    replicas.failing["r0"] = Outcome.DRAINING
    asked = [asyncio.create_task(replicas.ask()) for _ in range(5)]
    await settle()
    assert replicas.sent["r0"] <= 5
    assert not replicas.dispatcher.has_replicas("m")
    replicas.replica_set.update([replica_update("r0", 10), replica_update("new", 10)])
    assert await asyncio.gather(*asked) == ["new"] * 5


@pytest.mark.parametrize(
    ("outcome", "raised"), [(Outcome.LOST, SuspectError), (Outcome.FAILED, EngineError)], ids=["died", "failed"]
)
async def test_a_request_that_two_replicas_died_of_kills_no_third(outcome: Outcome, raised: type[Exception]) -> None:
    replicas = Replicas(10, 10, 10)
    replicas.failing = dict.fromkeys(("r0", "r1", "r2"), outcome)
    with pytest.raises(raised):
        await replicas.ask()
    assert replicas.sent.total() == 2


async def test_a_replica_that_takes_a_moment_to_die_is_one_loss() -> None:
    """Its socket may accept the same request again before the kernel has closed it."""
    found = replica_set(Queue(), 10)
    attempts = 0

    async def carry(replica: Replica, search: ReplicaSearch) -> str:
        nonlocal attempts
        attempts += 1
        if replica.id == "r0":
            if attempts == 3:
                replica.mark_draining()
                found.update([replica_update("r0", 10), replica_update("new", 10)])
            raise NotAnsweredError(Outcome.LOST)
        return replica.id

    assert await answered(Dispatcher({"m": found}), RoutingRequest(), carry) == "new"
    assert attempts == 4
    assert all(replica.suspects == 0 for replica in found.replicas.values())


async def test_of_many_requests_that_were_lost_together_only_the_guilty_one_is_refused() -> None:
    """Each replica dies once the guilty request has reached it, with all others that it has."""
    found = replica_set(Queue(), *[20] * 6)
    dispatcher = Dispatcher({"m": found})
    died = {name: asyncio.Event() for name in found.replicas}
    in_progress: Counter[str] = Counter()

    async def ask(number: int) -> int:
        async def carry(replica: Replica, search: ReplicaSearch) -> int:
            in_progress[replica.id] += 1
            if number == 7:
                await settle()
                died[replica.id].set()
                replica.mark_draining()
                raise NotAnsweredError(Outcome.LOST)
            done = asyncio.create_task(died[replica.id].wait())
            await asyncio.wait([done], timeout=0.2)
            if died[replica.id].is_set():
                raise NotAnsweredError(Outcome.LOST)
            return number

        return await answered(dispatcher, RoutingRequest(), carry)

    answers = await asyncio.gather(*(ask(number) for number in range(16)), return_exceptions=True)
    assert [answer for answer in answers if not isinstance(answer, SuspectError)] == [*range(7), *range(8, 16)]
    assert isinstance(answers[7], SuspectError)
    assert sum(each.is_set() for each in died.values()) <= 3


async def test_a_replica_that_fails_where_others_do_not_is_left_out_until_it_is_readmitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_module, "_FIRST_EJECTION_S", 3600.0)
    monkeypatch.setattr(replica_module, "_LONGEST_EJECTION_S", 3600.0)
    replicas = Replicas(10, 10)
    replicas.bad = {"r0"}
    failing = replicas.replica_set.replicas["r0"]
    # Which replica a request goes to is chance, and an ejection takes a number of failures and of successes elsewhere.
    for _ in range(1000):
        if not failing.is_open:
            break
        await replicas.ask()
    assert {await replicas.ask() for _ in range(20)} == {"r1"}
    replicas.bad = set()
    failing._readmit()
    assert "r0" in {await replicas.ask() for _ in range(100)}


async def test_replicas_that_all_fail_are_all_kept() -> None:
    replicas = Replicas(10, 10)
    replicas.bad = {"r0", "r1"}
    # A replica without replies counts as healthy, and which one gets the first requests is chance.
    for replica in replicas.replica_set.replicas.values():
        replica.on_reply(is_good=False)
    for _ in range(200):
        await replicas.ask()
    assert min(replicas.sent["r0"], replicas.sent["r1"]) > 20


async def test_the_only_replica_is_kept_however_it_fails() -> None:
    replicas = Replicas(10)
    replicas.bad = {"r0"}
    for _ in range(30):
        assert await replicas.ask() == "r0"


class Tenants:
    """A model with one slot, and requests of tenants that hold it until they are finished."""

    def __init__(self, limit: int = -1, queue_timeout_s: float = 60) -> None:
        self.replica_set = replica_set(Queue(limit), 1, queue_timeout_s=queue_timeout_s)
        self.served: list[str] = []
        self.errors: list[tuple[str, UnavailableError]] = []
        self.done = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    async def ask(self, tenant: str, work: int = 100, priority: Priority = Priority.STANDARD) -> None:
        async def send(_: Replica, search: ReplicaSearch) -> None:
            self.served.append(tenant)
            await self.done.wait()
            self.done.clear()
            search.served_tokens = work

        async def run() -> None:
            dispatcher = Dispatcher({"m": self.replica_set})
            try:
                await answered(dispatcher, RoutingRequest(work=work), send, priority, tenant)
            except UnavailableError as error:
                self.errors.append((tenant, error))

        self.tasks.append(asyncio.create_task(run()))
        await settle()

    async def finish(self) -> None:
        self.done.set()
        await settle()

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def test_a_tenant_with_a_hundred_requests_does_not_delay_one_with_a_few() -> None:
    at = Tenants()
    for _ in range(100):
        await at.ask("many", 1000)
    for _ in range(3):
        await at.ask("few", 1000)
    for _ in range(8):
        await at.finish()
    assert at.served[:8].count("few") == 3
    await at.close()


async def test_a_full_queue_refuses_the_newest_of_who_has_most_in_it() -> None:
    at = Tenants(limit=3)
    for tenant in ("holds", "many", "many", "many"):
        await at.ask(tenant)
    await at.ask("few")
    await at.ask("many")
    assert [tenant for tenant, _ in at.errors] == ["many", "many"]
    assert "no room for more requests" in str(at.errors[0][1])
    await at.ask("chat", priority=Priority.INTERACTIVE)
    assert [tenant for tenant, _ in at.errors] == ["many", "many", "many"]
    for _ in range(3):
        await at.finish()
    assert at.served == ["holds", "chat", "many", "few"]
    await at.close()


async def test_what_cannot_be_served_in_time_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, passed = asyncio.get_running_loop(), 0.0
    real = loop.time
    monkeypatch.setattr(loop, "time", lambda: real() + passed)
    at = Tenants(queue_timeout_s=70)
    for _ in range(12):
        await at.ask("a", 100)
    # 100 tokens each 5 seconds; six requests wait, which takes 30 s.
    for _ in range(5):
        passed += 5
        await at.finish()
    assert at.replica_set.waiting == 6
    await at.ask("a", 100)
    assert not at.errors
    for _ in range(20):
        await at.ask("a", 100)
    [(_, first), *_] = at.errors
    # The ninth waits for 40 s; a tenth would wait for 45 s, and 42 s are 60 % of the longest time in the queue.
    assert at.replica_set.waiting == 9
    assert first.retry_after_s in (4, 5)
    # The share of another tenant is free.
    await at.ask("b", 100)
    assert [tenant for tenant, _ in at.errors].count("b") == 0
    await at.close()


@simulated
async def test_a_request_put_back_waits_no_shorter_for_the_time_it_ran() -> None:
    found = replica_set(Queue(), 1, queue_timeout_s=0.3)
    attempts = 0

    async def send(_: Replica, search: ReplicaSearch) -> str:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            await asyncio.sleep(0.5)
            raise NotAnsweredError(Outcome.PREEMPTED)
        return search.waited_for

    assert await answered(Dispatcher({"m": found}), RoutingRequest(), send) == "requests of a higher class"


@simulated
async def test_a_request_waited_for_what_took_longest() -> None:
    found = replica_set(Queue())
    attempts = 0

    async def send(replica: Replica, search: ReplicaSearch) -> str:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            asyncio.get_running_loop().call_later(0.01, replica.credit.on_slot_freed, search.priority)
            raise NotAnsweredError(Outcome.FULL)
        return search.waited_for

    asking = asyncio.create_task(answered(Dispatcher({"m": found}), RoutingRequest(), send))
    await asyncio.sleep(0.3)
    found.update([replica_update("r", 1)])
    assert await asking == "a running replica"
    assert attempts == 2


class Many:
    """A hundred replicas, with the conversation that a request belongs to."""

    def __init__(self) -> None:
        self.found = replica_set(Queue(), *[2] * 100)
        self.found.configure("session", 10)

    async def ask(self, outcome: Outcome = Outcome.ANSWERED, tried: Sequence[str] = ()) -> tuple[str, bool]:
        """The replica that gets the request, and whether the request may wait there."""
        search = self.found.search(RoutingRequest(session="one"))
        search.tried += tried
        waits = []

        async def send(_: Replica, found: ReplicaSearch) -> Outcome:
            waits.append(found.waits)
            return outcome

        replica, _ = await self.found.attempt(search, send)
        return replica.id, waits[0]


async def test_of_many_replicas_a_session_has_one_and_then_its_neighbors() -> None:
    many = Many()
    first, _ = await many.ask()
    assert [await many.ask() for _ in range(5)] == [(first, False)] * 5
    second, _ = await many.ask(tried=[first])
    assert second != first
    assert await many.ask(tried=[first]) == (second, False)


async def test_a_request_waits_at_no_replica_while_one_of_many_has_room() -> None:
    many = Many()
    for _ in range(100):
        # Each refuses, for requests of other routers; the next is asked as long as there is one.
        assert not (await many.ask(Outcome.FULL))[1]
    assert len({replica.id for replica in many.found.replicas.values() if replica.credit.is_refused}) == 100
