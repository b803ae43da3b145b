"""Other models that answer while a model is unavailable."""

from __future__ import annotations

import json

from tests.fakes.answers import Answer
from tests.fakes.clock import until
from tests.fakes.replica import Replica
from tests.fakes.router import LANES, service


@LANES
async def test_a_model_where_too_many_wait_is_503_and_its_fallback_is_tried(lane: str) -> None:
    full = Replica(Answer(b'{"from": "a"}'), capacity=0)
    async with full.listening() as a, Replica(Answer(b'{"from": "b"}')).listening() as b:
        async with service(lane, {"a": [a], "b": [b]}) as router:
            router.queues["a"].limit = 0
            reply = await router.ask("a")
            assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
            assert reply.json()["error"]["type"] == "overloaded_error"
        async with service(lane, {"a": [a], "b": [b]}, fallbacks={"a": ["b"]}) as router:
            router.queues["a"].limit = 0
            assert (await router.ask("a")).json() == {"from": "b"}


@LANES
async def test_every_fallback_is_tried_in_turn(lane: str) -> None:
    async with (
        Replica(Answer(), capacity=0).listening() as a,
        Replica(Answer(), capacity=0).listening() as b,
        Replica(Answer(b'{"from": "c"}')).listening() as c,
        service(lane, {"a": [a], "b": [b], "c": [c]}, fallbacks={"a": ["b", "c"], "b": ["a"]}) as router,
    ):
        router.queues["a"].limit = router.queues["b"].limit = 0
        assert (await router.ask("a")).json() == {"from": "c"}
        c.count.capacity, router.queues["c"].limit = 0, 0
        assert (await router.ask("a")).status_code == 503


@LANES
async def test_a_fallback_is_asked_by_its_own_name_and_not_for_the_adapter(lane: str) -> None:
    """vLLM answers 404 to a name that it does not serve."""
    full, free = Answer(b"{}", status=503), Answer(b"{}")
    async with Replica(full).listening() as a, Replica(free).listening() as b:
        async with service(lane, {"a": [a], "b": [b]}, fallbacks={"a": ["b"]}) as router:
            assert (await router.ask("a:y", x=1)).status_code == 200
        assert json.loads(free.bodies[0]) == {"model": "b", "x": 1}
        headers = dict(free.scopes[0]["headers"])
        assert headers[b"x-rayllm-model"] == b"b"
        assert b"x-rayllm-adapter" not in headers
        await until(lambda: not a.count.held and not b.count.held)


@LANES
async def test_the_record_of_a_request_that_a_fallback_answered(lane: str) -> None:
    async with (
        Replica(Answer(b"{}")).listening() as a,
        Replica(Answer(b"{}")).listening() as b,
        service(lane, {"a": [a], "b": [b]}, fallbacks={"a": ["b"]}) as router,
    ):
        router.queues["a"].limit = 0
        router.set_replicas("a")
        await router.ask("a")
        record = await router.record()
    assert (record.model_id, record.status, record.fallbacks) == ("b", 200, 1)
