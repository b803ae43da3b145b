"""The states of an exchange."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from rayllm.core.errors import UnavailableError
from rayllm.serving.wire.exchange import Exchange
from rayllm.serving.wire.record import RequestRecord
from rayllm.serving.wire.states import STEPS, State

PATH = "/v1/chat/completions"


class Client:
    """A client that keeps what it is sent."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        request = Request({"type": "http", "headers": []})
        self.exchange = Exchange(request, PATH, self._send, RequestRecord(PATH))

    async def _send(self, message: Any) -> None:
        self.messages.append(message)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def heads(self) -> int:
        return sum(message["type"] == "http.response.start" for message in self.messages)


def in_state(state: State) -> Exchange:
    exchange = Client().exchange
    for step in {State.NEW: [], State.DONE: [State.TAKEN, State.DONE]}.get(state, [State.TAKEN, state]):
        if exchange.state is not step:
            exchange.enter(step)
    return exchange


@pytest.mark.parametrize(("before", "after"), itertools.product(State, State))
def test_an_exchange_makes_the_steps_of_the_table_and_no_others(before: State, after: State) -> None:
    exchange = in_state(before)
    if (before, after) in STEPS:
        exchange.enter(after)
        assert exchange.state is after
    else:
        with pytest.raises(RuntimeError, match=f"{before.name} cannot become {after.name}"):
            exchange.enter(after)
        assert exchange.state is before


def test_no_step_leads_out_of_an_end() -> None:
    assert not [before for before, _ in STEPS if before in (State.DONE, State.BROKEN)]


async def test_a_request_that_a_replica_returns_may_go_to_another_replica() -> None:
    exchange = Client().exchange
    for _ in range(2):
        exchange.sent()
        assert exchange.state is State.TAKEN
        exchange.returned()
        assert exchange.state is State.NEW


async def test_an_error_is_the_whole_reply_before_the_beginning_of_a_stream() -> None:
    client = Client()
    async with client.exchange.answering():
        client.exchange.sent()
        raise UnavailableError("No room.", "model")
    assert (client.exchange.state, client.heads) == (State.DONE, 1)
    assert client.messages[0]["status"] == 503


async def test_an_error_is_the_last_event_of_a_stream_that_has_begun() -> None:
    client = Client()
    async with client.exchange.answering():
        client.exchange.sent()
        client.exchange.began()
        await client.exchange.start_stream(200, {"content-type": "text/event-stream"})
        await client.exchange.relay(b"data: 1\n\n", is_last=False)
        raise UnavailableError("No room.", "model")
    assert (client.exchange.state, client.heads) == (State.BROKEN, 1)
    assert client.messages[0]["status"] == 200
    assert client.body.startswith(b"data: 1\n\n")
    assert b"No room." in client.body
    assert not client.messages[-1]["more_body"]


async def test_a_client_that_leaves_gets_nothing() -> None:
    client = Client()
    async with client.exchange.answering():
        client.exchange.sent()
        raise ClientDisconnect
    assert (client.exchange.state, client.messages) == (State.BROKEN, [])


async def test_a_complete_reply_ends_the_exchange() -> None:
    client = Client()
    async with client.exchange.answering():
        client.exchange.sent()
        client.exchange.began()
        await client.exchange.send_response(Response(b"{}"))
    assert (client.exchange.state, client.body) == (State.DONE, b"{}")
