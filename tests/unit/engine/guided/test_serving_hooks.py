"""The hooks around vLLM's calls, with fakes of vLLM's objects: replies with each kind of backend."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from rayllm.engine.guided.backend import Backends
from rayllm.engine.guided.failure_reports import Failures
from rayllm.engine.guided.serving_hooks import ERROR_TYPE, guide_calls

BACKEND = """
from contextvars import ContextVar

seen = ContextVar("seen", default="nothing")

async def get_custom_guided_decoding_logits_processor(request, tokenizer):
    return None

async def set_custom_guided_decoding_parameters(request):
    if request.prompt == "bad request":
        raise ValueError("secret")
    if request.prompt == "exit":
        raise SystemExit(3)
    request.temperature = 0.5
    seen.set(request.prompt)

async def get_guided_decoding_constrained_generator(response, raw_request):
    if seen.get() == "bad response":
        raise ValueError("secret")
    if seen.get() == "nothing":
        return None
    if not hasattr(response, "__aiter__"):
        response.text = f"{seen.get()}: {response.text} ({raw_request})"
        return response
    async def events():
        if seen.get() == "bad stream":
            raise ValueError("secret")
        if seen.get() == "exit in stream":
            raise SystemExit(3)
        token = seen.set("inside")
        async for event in response:
            yield event.replace("data", seen.get())
        seen.reset(token)
    return events()
"""
PLAIN = "async def get_custom_guided_decoding_logits_processor(request, tokenizer):\n    return None\n"


class Request(BaseModel):
    """The fields of vLLM's requests that matter."""

    model_config = ConfigDict(extra="allow")
    prompt: str = "hello"
    stream: bool = False
    use_beam_search: bool = False
    temperature: float | None = None
    vllm_xargs: dict[str, Any] | None = None


class Format(BaseModel):
    """A request's `response_format`."""

    type: str


class Reply(BaseModel):
    """A response or, with a status, an error."""

    text: str
    type: str = ""
    status: int = 200
    param: str | None = None


class Serving:
    """vLLM's serving object: `events` are its stream, and `work` is run while it makes a reply."""

    def __init__(self, work: Callable[[Any], Any] | None = None) -> None:
        self.work = work
        self.requests: list[Any] = []
        self.ended = False

    def create_error_response(
        self, message: str, err_type: str = "Bad", code: HTTPStatus = HTTPStatus.BAD_REQUEST, param: str | None = None
    ) -> Reply:
        return Reply(text=message, type=err_type, status=code.value, param=param)

    async def create_completion(self, request: Any, raw_request: Any = None) -> Any:
        self.requests.append(request)
        if request.stream:
            return self.events(request)
        if self.work:
            await self.work(request)
        return Reply(text="answer")

    async def events(self, request: Any) -> AsyncIterator[str]:
        try:
            for index in range(3):
                if index == 2 and self.work:
                    await self.work(request)
                yield f"data: {index}\n\n"
            yield "data: [DONE]\n\n"
        finally:
            self.ended = True


class Setup:
    """A wrapped serving object with the backends `fancy` and `plain`."""

    def __init__(self, folder: Path, default: str | None = None) -> None:
        for name, text in {"fancy": BACKEND, "plain": PLAIN}.items():
            (folder / name).mkdir()
            (folder / name / "backend.py").write_text(text)
        self.failures = Failures()
        self.serving = Serving()
        state = SimpleNamespace(openai_serving_chat=None, openai_serving_completion=self.serving)
        guide_calls(state, Backends.load(folder, default, folder / "_cache"), self.failures)

    async def ask(self, backend: Any = "fancy", **fields: Any) -> Any:
        nvext = {} if backend is None else {"nvext": {"guided_decoding_backend": backend}}
        return await self.serving.create_completion(Request(**nvext, **fields), "raw")

    def envelope(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.serving.requests[-1].vllm_xargs["rayllm_guided"])
        return found

    def worker_fails(self) -> None:
        """From now on the worker reports a failure for each request, in the middle of it."""

        async def work(request: Any) -> None:
            self.failures.fail(json.loads(request.vllm_xargs["rayllm_guided"])["ticket"], "its logits processor ran")

        self.serving.work = work


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


async def read(stream: Any) -> list[str]:
    return [event async for event in stream]


async def test_a_request_without_a_backend_passes_untouched(setup: Setup) -> None:
    assert await setup.ask(None, vllm_xargs={"mine": 1}) == Reply(text="answer")
    assert setup.serving.requests[0].vllm_xargs == {"mine": 1}
    await setup.ask(None, nvext={"other": 1})
    assert setup.serving.requests[1].vllm_xargs is None


async def test_the_worker_is_told_the_request_as_it_came(setup: Setup) -> None:
    await setup.ask("fancy", vllm_xargs={"mine": 1})
    assert setup.envelope() == {
        "backend": "fancy",
        "type": "completion",
        "request": {"vllm_xargs": {"mine": 1}, "nvext": {"guided_decoding_backend": "fancy"}},
        "ticket": setup.envelope()["ticket"],
    }
    assert setup.serving.requests[0].temperature == 0.5
    assert setup.serving.requests[0].vllm_xargs["mine"] == 1


async def test_the_default_is_for_requests_that_name_none(tmp_path: Path) -> None:
    setup = Setup(tmp_path, "plain")
    await setup.ask(None)
    assert setup.envelope()["backend"] == "plain"
    await setup.ask("fancy")
    assert setup.envelope()["backend"] == "fancy"


@pytest.mark.parametrize(
    ("nvext", "param", "said"),
    [
        (
            {"guided_decoding_backend": "x"},
            "nvext.guided_decoding_backend",
            "no guided decoding backend `x`; there is",
        ),
        ({"guided_decoding_backend": 7}, "nvext.guided_decoding_backend", "must be a string"),
        ("fancy", "nvext", "must be an object"),
    ],
)
async def test_a_bad_choice_is_refused_by_its_field(setup: Setup, nvext: Any, param: str, said: str) -> None:
    reply = await setup.ask(None, nvext=nvext)
    assert (reply.status, reply.param) == (400, param)
    assert said in reply.text
    assert not setup.serving.requests


async def test_beam_search_is_refused_since_it_would_not_be_guided(setup: Setup) -> None:
    reply = await setup.ask(use_beam_search=True)
    assert (reply.status, reply.param) == (400, "use_beam_search")
    assert (await setup.ask(None, use_beam_search=True)).text == "answer"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("structured_outputs", {"regex": "a"}),
        ("response_format", Format(type="json_object")),
        ("tool_choice", "required"),
        ("tool_choice", {"function": {"name": "f"}}),
    ],
)
async def test_vllms_own_constraints_go_with_no_backend(setup: Setup, field: str, value: Any) -> None:
    reply = await setup.ask(**{field: value})
    assert (reply.status, reply.param) == (400, field)


@pytest.mark.parametrize("fields", [{"response_format": Format(type="text")}, {"tool_choice": "auto"}])
async def test_what_constrains_nothing_goes_with_a_backend(setup: Setup, fields: dict[str, Any]) -> None:
    assert (await setup.ask(**fields)).status == 200


async def test_what_is_set_is_seen_by_the_response(setup: Setup) -> None:
    first, second = await asyncio.gather(setup.ask(prompt="one"), setup.ask(prompt="two"))
    assert (first.text, second.text) == ("one: answer (raw)", "two: answer (raw)")


async def test_a_stream_runs_in_the_requests_context_whoever_reads_it(setup: Setup) -> None:
    stream = await setup.ask(prompt="one", stream=True)
    first, second = await asyncio.gather(
        asyncio.create_task(read(stream)), asyncio.create_task(read(await setup.ask("plain", stream=True)))
    )
    assert first == ["inside: 0\n\n", "inside: 1\n\n", "inside: 2\n\n", "inside: [DONE]\n\n"]
    assert second[-1] == "data: [DONE]\n\n"


async def test_a_reader_that_leaves_ends_the_engines_stream(setup: Setup) -> None:
    stream = await setup.ask("plain", stream=True)
    assert await anext(stream) == "data: 0\n\n"
    await stream.aclose()
    assert setup.serving.ended


@pytest.mark.parametrize(
    ("prompt", "stage"),
    [
        ("bad request", "it read the request"),
        ("bad response", "it looked at the response"),
        ("nothing", "it looked at"),
    ],
)
async def test_a_hook_that_raises_fails_its_request_only(
    setup: Setup, prompt: str, stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = await asyncio.gather(setup.ask(prompt=prompt), setup.ask(prompt="one"))
    assert (bad.status, bad.type) == (500, ERROR_TYPE)
    assert f"The guided decoding backend `fancy` failed while {stage}" in bad.text
    assert "secret" not in bad.text
    assert "Traceback" in caplog.text
    assert good.text == "one: answer (raw)"


@pytest.mark.parametrize("prompt", ["bad stream", "exit in stream"])
async def test_a_stream_hook_that_raises_ends_with_an_error_event(setup: Setup, prompt: str) -> None:
    stream = await setup.ask(prompt=prompt, stream=True)
    error, done = await read(stream)
    assert json.loads(error.removeprefix("data: "))["type"] == ERROR_TYPE
    assert done == "data: [DONE]\n\n"
    assert "secret" not in error


async def test_a_failure_of_the_engine_is_not_blamed_on_a_backend_without_hooks(setup: Setup) -> None:
    async def work(_: Any) -> None:
        raise ValueError("of the engine")

    setup.serving.work = work
    with pytest.raises(ValueError, match="of the engine"):
        await setup.ask("plain")
    with pytest.raises(ValueError, match="of the engine"):
        await read(await setup.ask("plain", stream=True))


async def test_a_failure_in_the_worker_replaces_the_answer(setup: Setup) -> None:
    setup.worker_fails()
    reply = await setup.ask("plain")
    assert (reply.status, reply.type) == (500, ERROR_TYPE)
    assert reply.text == (
        "The guided decoding backend `plain` failed while its logits processor ran; the server's log says why."
    )


async def test_a_failure_in_the_worker_ends_the_stream_with_an_error(setup: Setup) -> None:
    setup.worker_fails()
    events = await read(await setup.ask("plain", stream=True))
    assert events[:2] == ["data: 0\n\n", "data: 1\n\n"]
    assert "failed while its logits processor ran" in events[2]
    assert events[3:] == ["data: [DONE]\n\n"]
    assert setup.serving.ended


async def test_a_failure_ends_a_request_that_would_go_on(setup: Setup) -> None:
    ended = asyncio.Event()

    async def work(request: Any) -> None:
        setup.failures.fail(setup.envelope()["ticket"], "its logits processor ran")
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    setup.serving.work = work
    assert (await asyncio.wait_for(setup.ask("plain"), 5)).status == 500
    assert ended.is_set()
    ended.clear()
    events = await asyncio.wait_for(read(await setup.ask("plain", stream=True)), 5)
    assert len(events) == 4
    assert "failed while" in events[2]
    assert ended.is_set()
    assert setup.serving.ended


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_the_work(setup: Setup, stream: bool) -> None:
    ended, begun = asyncio.Event(), asyncio.Event()

    async def work(_: Any) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    setup.serving.work = work

    async def ask() -> Any:
        reply = await setup.ask("plain", stream=stream)
        return await read(reply) if stream else reply

    asking = asyncio.create_task(ask())
    await begun.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert ended.is_set()
