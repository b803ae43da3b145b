"""Guards, as clients of a router meet them; a scripted replica plays the guard."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rayllm.core.endpoints import CHAT, COMPLETIONS, MESSAGES, MODERATIONS, RESPONSES
from rayllm.serving.router.guard.guard import parts_of
from tests.fakes.answers import Answer
from tests.fakes.clock import until
from tests.fakes.replica import Replica
from tests.fakes.router import LANES, RouterApplication, served, service
from tests.unit.serving.router.guard.test_stream import chat


class Oracle:
    """The guard's replica: finds `bomb` unsafe, and fails at `crash`."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any], dict[str, str]]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = json.loads((await receive())["body"])
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.requests.append((scope["path"], body, headers))
        text = body["messages"][-1]["content"] if "messages" in body else body["input"]
        status = 500 if "crash" in text else 200
        reply: dict[str, Any] = {"error": {"message": "no"}}
        if status == 200 and scope["path"] == CHAT:
            reply = {"choices": [{"message": {"content": "unsafe\nS9" if "bomb" in text else "safe"}}]}
        elif status == 200:
            reply = {"data": [{"probs": [0.1, 0.8, 0.1] if "bomb" in text else [0.9, 0.1, 0.0]}]}
        kind = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": kind})
        await send({"type": "http.response.body", "body": json.dumps(reply).encode()})

    @property
    def texts(self) -> list[str]:
        """What it was asked about."""
        return [
            body["messages"][-1]["content"] if "messages" in body else body["input"] for _, body, _ in self.requests
        ]


class Guarded:
    """A router before a model and a guard."""

    def __init__(self, answer: Answer | None = None, lane: str = "handover", **guard: Any) -> None:
        self.answer = answer or Answer(b'{"choices": [{"message": {"role": "assistant", "content": "fine"}}]}')
        self.oracle = Oracle()
        self._lane = lane
        self._guards = [{"model": "guard", "verdict": "llama_guard", **guard}]
        self._replicas = [Replica(self.answer), Replica(self.oracle)]

    async def __aenter__(self) -> Guarded:
        self._open = [replica.listening() for replica in self._replicas]
        model, oracle = [await each.__aenter__() for each in self._open]
        self._service = service(self._lane, {"m": [model], "guard": [oracle]}, guards=self._guards)
        self.router: RouterApplication = await self._service.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._service.__aexit__(*error)
        for each in self._open:
            await each.__aexit__(*error)

    async def post(self, body: dict[str, Any], path: str = CHAT) -> tuple[int, dict[str, Any]]:
        reply = await self.router.client.post(path, json={"model": "m", **body})
        return reply.status_code, reply.json()

    async def ask(self, text: str) -> tuple[int, dict[str, Any]]:
        status, reply = await self.post({"messages": [{"role": "user", "content": text}]})
        return status, reply.get("error", {})


async def test_a_safe_request_is_forwarded_and_an_unsafe_request_refused() -> None:
    async with Guarded() as guarded:
        assert (await guarded.ask("hello"))[0] == 200
        status, error = await guarded.ask("a bomb")
        assert (status, error["code"]) == (400, "content_policy_violation")
        assert "`guard` of this service refuses the request (S9)" in error["message"]
        assert len(guarded.answer.bodies) == 1
        path, body, headers = guarded.oracle.requests[0]
        assert (path, body["model"], body["temperature"]) == (CHAT, "guard", 0)
        assert body["messages"] == [{"role": "user", "content": "hello"}]
        assert headers["x-rayllm-usage"] == "router:guard"
        await until(lambda: len(guarded.router.records) == 4)
        records = {record.model_id + record.refusal: record for record in guarded.router.records}
        assert records["mguard"].status == 400
        assert 0 < records["m"].guards_s < records["m"].total_s
        assert sum(seconds for _, seconds in records["m"].parts()) == pytest.approx(records["m"].total_s)


async def test_a_classifier_is_asked_for_its_labels() -> None:
    async with Guarded(verdict="labels", thresholds={"violence": 0.7}) as guarded:
        assert (await guarded.ask("hello"))[0] == 200
        status, error = await guarded.ask("a bomb")
        assert (status, "(violence)" in error["message"]) == (400, True)
    async with Guarded(verdict="labels", thresholds={"violence": 0.7, "hate": 0.5}) as guarded:
        assert (await guarded.ask("hello"))[1]["code"] == "guard_failed"


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        (CHAT, {"messages": [{"content": [{"type": "text", "text": "bomb"}]}]}, "bomb"),
        (CHAT, {"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "bomb"}]}, "a\n\nbomb"),
        (CHAT, {"messages": [{"content": "a"}], "documents": [{"text": "bomb"}]}, "bomb\n\na"),
        (COMPLETIONS, {"prompt": ["a", "bomb"], "suffix": "c"}, "a\n\nbomb\n\nc"),
        (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_text", "text": "bomb"}]}]}, "bomb"),
        (RESPONSES, {"instructions": "a", "input": "bomb"}, "a\n\nbomb"),
        (MESSAGES, {"system": [{"type": "text", "text": "a"}], "messages": [{"content": "bomb"}]}, "a\n\nbomb"),
        (MESSAGES, {"messages": [{"content": [{"type": "tool_result", "content": "bomb"}]}]}, "bomb"),
    ],
)
async def test_every_text_of_a_request_is_asked_about(path: str, body: dict[str, Any], text: str) -> None:
    async with Guarded() as guarded:
        status, reply = await guarded.post(body, path)
        assert (status, guarded.oracle.texts) == (400, [text])
        assert (reply.get("type") == "error") == (path == MESSAGES)


async def test_what_a_template_may_print_is_asked_about() -> None:
    hidden: list[dict[str, Any]] = [
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a bomb": {}}}}}]},
        {"chat_template_kwargs": {"date_string": "a bomb"}},
        {"messages": [{"role": "a bomb", "content": ""}]},
        {"messages": [{"role": "user", "content": [{"type": "file", "source": "a bomb", "file": "b"}]}]},
    ]
    async with Guarded() as guarded:
        for body in hidden:
            status, reply = await guarded.post({"messages": [], **body})
            assert (status, reply["error"]["code"]) == (400, "content_policy_violation"), body


async def test_the_prompt_beside_a_recording_is_asked_about() -> None:
    async with Guarded(check=["input", "output"]) as guarded:
        for prompt, status in (("hello", 200), ("a bomb", 400)):
            fields, files = {"model": "m", "language": "en", "prompt": prompt}, {"file": ("a.wav", b"RIFF")}
            reply = await guarded.router.client.post("/v1/audio/transcriptions", data=fields, files=files)
            assert reply.status_code == status
        assert guarded.oracle.texts == ["hello", "a bomb"]


async def test_token_ids_are_refused_because_no_guard_reads_them() -> None:
    async with Guarded() as guarded:
        for prompt in ([1, 2], [[1], [2]]):
            status, reply = await guarded.post({"prompt": prompt}, COMPLETIONS)
            assert (status, reply["error"]["param"]) == (400, "prompt")


async def test_long_texts_are_asked_about_in_parts_that_overlap() -> None:
    async with Guarded(question_chars=100, window_chars=10) as guarded:
        text = "x" * 97 + " bomb " + "y" * 100
        assert (await guarded.ask(text))[0] == 400
        assert sum(map(len, guarded.oracle.texts)) > len(text)
        status, error = await guarded.ask("x" * 10_000)
        assert (status, "6,400 characters" in error["message"]) == (400, True)


def test_parts_cover_the_text() -> None:
    assert parts_of("", 100) == []
    assert parts_of("x" * 100, 100) == ["x" * 100]
    text = "".join(chr(33 + index % 90) for index in range(1000))
    parts = parts_of(text, 100)
    assert parts[0] + "".join(part[10:] for part in parts[1:]) == text


@pytest.mark.parametrize(("on_error", "status"), [("refuse", 503), ("allow", 200)])
async def test_a_guard_that_fails(on_error: str, status: int) -> None:
    async with Guarded(on_error=on_error) as guarded:
        answered, error = await guarded.ask("crash")
        assert (answered, error.get("code")) == (status, "guard_failed" if status == 503 else None)
        assert (await guarded.ask("hello"))[0] == 200


async def test_only_the_named_models_are_guarded_and_guards_never() -> None:
    async with Guarded(models=["other*"]) as guarded:
        assert (await guarded.ask("a bomb"))[0] == 200
    async with Guarded() as guarded:
        status, reply = await guarded.post({"model": "guard", "messages": [{"role": "user", "content": "a bomb"}]})
        assert (status, reply["choices"][0]["message"]["content"]) == (200, "unsafe\nS9")
        assert len(guarded.oracle.requests) == 1


@LANES
async def test_a_whole_reply_is_asked_about_before_it_is_sent(lane: str) -> None:
    reply = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "a bomb"}}]}
    async with Guarded(Answer(json.dumps(reply).encode()), lane, check=["output"]) as guarded:
        status, error = await guarded.ask("hello")
        assert (status, "refuses the reply (S9)" in error["message"]) == (400, True)
        [(_, body, _)] = guarded.oracle.requests
        assert [message["role"] for message in body["messages"]] == ["user", "assistant"]
        assert [message["content"] for message in body["messages"]] == ["hello", "a bomb"]


@LANES
async def test_a_safe_stream_comes_through_whole(lane: str) -> None:
    chunks = [chat("Paris "), chat("is big"), b"data: [DONE]\n\n"]
    async with Guarded(Answer(*chunks), lane, check=["output"], window_chars=5) as guarded:
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
        reply = await guarded.router.client.post(CHAT, json=body)
        assert reply.headers["content-type"].startswith("text/event-stream")
        assert reply.content == b"".join(chunks)
        assert guarded.oracle.texts == ["Paris ", "aris is big"]
        record = (await _records(guarded, 3))["m"]
        assert sum(seconds for _, seconds in record.parts()) == pytest.approx(record.total_s)


@LANES
@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
async def test_an_unsafe_stream_ends_with_an_error_event(lane: str, path: str) -> None:
    answer = Answer(chat("all is fine"), chat(", now a bomb"), chat(" goes off"), pause_after=2)
    async with Guarded(answer, lane, check=["output"], window_chars=5) as guarded:
        reply = await guarded.router.client.post(path, json={"model": "m", "stream": True})
        assert reply.status_code == 200
        *events, last = reply.text.strip().split("\n\n")
        assert ("all is fine" in events[0], "bomb" in reply.text) == (True, False)
        assert last.startswith("event: error\n") == (path != CHAT)
        assert json.loads(last.partition("data: ")[2])["error"]["code"] == "content_policy_violation"
        await answer.left.wait()
        record = (await _records(guarded, 3))["mguard"]
        assert (record.status, record.outcome) == (200, 400)


async def test_a_stream_that_is_unsafe_from_the_start_is_a_plain_error() -> None:
    answer = Answer(chat("a bomb"), chat("goes off"), pause_after=1)
    async with Guarded(answer, check=["output"], window_chars=5) as guarded:
        body = {"stream": True, "messages": [{"role": "user", "content": "hello"}]}
        assert (await guarded.post(body))[0] == 400
        await answer.left.wait()


async def _records(guarded: Guarded, count: int) -> dict[str, Any]:
    """The records of requests by model and refusal."""
    await until(lambda: len(guarded.router.records) == count)
    return {record.model_id + record.refusal: record for record in guarded.router.records}


@pytest.mark.parametrize(
    ("value", "flagged"),
    [
        ("a bomb", [True]),
        (["a bomb", "hello"], [True, False]),
        ([{"type": "text", "text": "hello"}, {"type": "text", "text": "a bomb"}], [True]),
        ("", [False]),
    ],
)
async def test_moderations(value: Any, flagged: list[bool]) -> None:
    async with Guarded(check=[]) as guarded:
        assert (await guarded.ask("a bomb"))[0] == 200, "it checks nothing else"
        reply = (await guarded.router.client.post(MODERATIONS, json={"input": value})).json()
        assert (reply["model"], [each["flagged"] for each in reply["results"]]) == ("guard", flagged)
        assert reply["id"].startswith("modr-")


@pytest.mark.parametrize(
    ("body", "status", "param", "said"),
    [
        ({}, 400, "input", "must be a text"),
        ({"input": []}, 400, "input", "must be a text"),
        ({"input": [7]}, 400, "input[0]", "content part"),
        ({"input": ["x"] * 101}, 400, "input", "100 texts at most"),
        ({"input": [{"type": "image_url", "image_url": {"url": "data:,"}}]}, 400, "input[0]", "see no images"),
        ({"input": "x", "model": "m"}, 400, "model", "The model `m` is not a guard. Guards here: `guard`"),
        ({"input": "x", "model": "none"}, 404, "model", "does not exist"),
        ({"input": "x", "model": 7}, 400, "model", "must be a guard's name"),
        ({"input": "crash"}, 503, None, "answered 500"),
    ],
)
async def test_wrong_moderations_are_refused(body: dict[str, Any], status: int, param: str | None, said: str) -> None:
    async with Guarded() as guarded:
        reply = await guarded.router.client.post(MODERATIONS, json=body)
        error = reply.json()["error"]
        assert (reply.status_code, error["param"], said in error["message"]) == (status, param, True), error


async def test_moderations_without_a_guard_say_which_key_to_set() -> None:
    async with served("relay", Answer(b"{}")) as router:
        reply = await router.client.post(MODERATIONS, json={"input": "x"})
        assert (reply.status_code, "`router.guards`" in reply.json()["error"]["message"]) == (404, True)
