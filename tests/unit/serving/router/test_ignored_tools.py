"""Hosted tools, which a router leaves out of requests and names in replies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rayllm.core.endpoints import CHAT, MESSAGES, RESPONSES
from rayllm.core.headers import IGNORED_TOOLS
from rayllm.core.json_body import is_light
from rayllm.serving.router.requests.body_reader import BodyReader
from rayllm.serving.router.requests.body_summary import summarize
from tests.fakes.answers import Answer
from tests.fakes.clock import pass_time
from tests.fakes.replica import Replica
from tests.fakes.router import LANES, RouterApplication, served, service, waiting_stream
from tests.unit.core.test_hosted_tools import ANTHROPIC_SEARCH, FUNCTION, MCP, SEARCH

PREVIEW = {"type": "web_search_preview"}
OWN = {"name": "f", "input_schema": {"type": "object"}}


async def ask(router: RouterApplication, path: str, answer: Answer, **fields: Any) -> tuple[Any, dict[str, Any]]:
    """The reply, and the body that the replica got."""
    reply = await router.ask(path=path, **fields)
    return reply, json.loads(answer.bodies[-1]) if answer.bodies else {}


@LANES
@pytest.mark.parametrize("stream", [False, True])
async def test_hosted_tools_are_left_out_and_named(lane: str, stream: bool) -> None:
    answer = Answer(*([b"data: 1\n\n", b"data: [DONE]\n\n"] if stream else [b"{}"]))
    async with served(lane, answer) as router:
        tools = [SEARCH, FUNCTION, {"type": "file_search"}, SEARCH]
        reply, body = await ask(router, RESPONSES, answer, input="x", tools=tools, tool_choice="auto", stream=stream)
        assert (reply.status_code, reply.headers[IGNORED_TOOLS]) == (200, "web_search, file_search")
        assert body == {"model": "m", "input": "x", "tools": [FUNCTION], "tool_choice": "auto", "stream": stream}
        reply, body = await ask(router, MESSAGES, answer, messages=[], tools=[OWN, ANTHROPIC_SEARCH], stream=stream)
        assert (reply.headers[IGNORED_TOOLS], body["tools"]) == ("web_search_20250305", [OWN])


async def test_a_request_without_any_other_tool_has_none() -> None:
    answer = Answer(b"{}")
    async with served("handover", answer) as router:
        _, body = await ask(router, RESPONSES, answer, input="x", tools=[SEARCH], tool_choice="auto")
        assert body == {"model": "m", "input": "x", "tools": None, "tool_choice": None}


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (RESPONSES, {"tools": [FUNCTION]}),
        (RESPONSES, {"tools": []}),
        (RESPONSES, {"tools": [SEARCH, MCP]}),
        (RESPONSES, {"tools": [SEARCH] * 1001}),
        (CHAT, {"tools": [SEARCH]}),
        (MESSAGES, {"tools": [OWN]}),
    ],
)
async def test_other_requests_go_on_as_they_are(path: str, fields: dict[str, Any]) -> None:
    """A replica says what is wrong with them, if anything."""
    answer = Answer(b"{}")
    async with served("handover", answer) as router:
        reply, body = await ask(router, path, answer, **fields)
        assert (IGNORED_TOOLS in reply.headers, body) == (False, {"model": "m", **fields})


async def test_the_configuration_may_have_them_refused_by_the_replica() -> None:
    answer = Answer(b"{}")
    async with served("relay", answer, hosted_tools="refuse") as router:
        reply, body = await ask(router, RESPONSES, answer, tools=[SEARCH])
        assert (IGNORED_TOOLS in reply.headers, body) == (False, {"model": "m", "tools": [SEARCH]})


@pytest.mark.parametrize(
    ("path", "tools", "choice"),
    [
        (RESPONSES, [SEARCH, FUNCTION], {"type": "web_search"}),
        (RESPONSES, [SEARCH], "required"),
        (RESPONSES, [SEARCH], {"type": "allowed_tools", "mode": "required", "tools": [SEARCH]}),
        (MESSAGES, [ANTHROPIC_SEARCH, OWN], {"type": "tool", "name": "web_search"}),
        (MESSAGES, [ANTHROPIC_SEARCH], {"type": "any"}),
    ],
)
async def test_a_choice_that_cannot_be_met_is_refused(path: str, tools: list[Any], choice: Any) -> None:
    async with service("relay", {"m": []}) as router:
        reply = await router.ask(path=path, tools=tools, tool_choice=choice)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "tool_choice")


async def test_a_stream_that_waits_for_a_replica_names_them_too() -> None:
    async with (
        Replica(Answer(b"data: 1\n\n", b"data: 2\n\n")).listening() as replica,
        service("relay", {"m": []}) as router,
        waiting_stream(router, RESPONSES, input="x", tools=[SEARCH]) as reply,
    ):
        assert reply.headers[IGNORED_TOOLS] == "web_search"
        router.set_replicas("m", replica)
        assert [part async for part in reply.aiter_raw()]


async def test_a_model_with_a_tool_server_keeps_what_that_runs() -> None:
    answer = Answer(b"{}")
    model = {"engine_kwargs": {"tool_server": "demo"}}
    async with served("handover", answer, model=model) as router:
        reply, body = await ask(router, RESPONSES, answer, tools=[PREVIEW, SEARCH, FUNCTION, MCP])
        assert (reply.headers[IGNORED_TOOLS], body["tools"]) == ("web_search", [FUNCTION, PREVIEW, MCP])
        _, body = await ask(router, RESPONSES, answer, tools=[PREVIEW], tool_choice={"type": "web_search_preview"})
        assert body["tools"] == [PREVIEW]


async def test_a_type_cannot_break_the_header() -> None:
    answer = Answer(b"{}")
    types = ["a\r\nx-evil: 1", "ü" * 100, *(f"t{number}" for number in range(50))]
    async with served("handover", answer) as router:
        reply, _ = await ask(router, RESPONSES, answer, tools=[{"type": each} for each in types])
        assert "x-evil" not in reply.headers
        named = reply.headers[IGNORED_TOOLS].split(", ")
        assert named[:3] == ["a__x-evil__1", "_" * 64, "t0"]
        assert (len(named), named[-1]) == (21, "...")


async def test_a_large_body_is_read_in_another_process_with_its_tools() -> None:
    messages = [{"role": "user", "content": "x"}] * 20_000
    raw = json.dumps({"model": "m", "input": messages, "tools": [SEARCH, FUNCTION]}).encode()
    assert not is_light(raw)
    found = (await BodyReader().read(raw)).tools
    assert found is not None
    assert (found, found.hosted[0].type) == (summarize(raw).tools, "web_search")


async def test_an_error_names_them_as_well() -> None:
    async with service("relay", {"m": []}) as router:
        asking = router.asking(path=RESPONSES, tools=[SEARCH])
        await router.queued()
        pass_time(60)
        reply = await asking
        assert (reply.status_code, reply.headers[IGNORED_TOOLS]) == (503, "web_search")
        await router.record()
