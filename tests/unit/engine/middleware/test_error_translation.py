"""Translation of vLLM's errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rayllm.core.endpoints import CHAT, MESSAGES, RESPONSES
from rayllm.core.error_shapes import error_body
from rayllm.core.errors import ConstraintNotCheckedError
from rayllm.engine.middleware.error_translation import ErrorMiddleware


async def reply(*bodies: bytes, status: int = 200, path: str = CHAT) -> tuple[int, dict[str, str], list[bytes]]:
    """Status, headers and body messages that come out when vLLM's application sends `bodies`."""
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"x")]})
        for index, body in enumerate(bodies):
            await send({"type": "http.response.body", "body": body, "more_body": index < len(bodies) - 1})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await ErrorMiddleware(app)({"type": "http", "path": path, "headers": [(b"x-request-id", b"r7")]}, None, send)  # type: ignore[arg-type]
    start, *rest = sent
    headers = {key.decode(): value.decode() for key, value in start["headers"]}
    return start["status"], headers, [message["body"] for message in rest]


def error(message: str, code: int, param: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": "BadRequestError", "param": param, "code": code}}


async def translated(status: int, body: dict[str, Any], path: str = CHAT) -> tuple[int, dict[str, Any]]:
    got, _, [raw] = await reply(json.dumps(body).encode(), status=status, path=path)
    return got, json.loads(raw)["error"]


async def test_a_good_reply_passes_untouched() -> None:
    bodies = [b"data: {}\n\n", b'data: {"x": "data: {\\"error\\""}\n\n', b"data: [DONE]\n\n", b""]
    assert await reply(*bodies) == (200, {"content-type": "x"}, bodies)


def response_event(kind: str, number: int, **fields: Any) -> bytes:
    data = {"type": f"response.{kind}", "sequence_number": number, **fields}
    return f"event: {data['type']}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def ended(status: str, name: str) -> list[bytes]:
    """The end of a stream: the last item is done, and the response."""
    items = [{"id": "a", "status": "completed"}, {"id": "é", "status": status}]
    done = response_event("output_item.done", 7, item=items[-1])
    return [done, response_event(name, 8, response={"status": status, "output": items})]


@pytest.mark.parametrize("status", ["completed", "incomplete"])
async def test_the_last_events_of_a_response_have_its_status(status: str) -> None:
    done, last = ended(status, "completed")
    sent = [response_event("created", 0), done.replace(b"incomplete", b"completed"), last, b""]
    _, _, bodies = await reply(*sent, path=RESPONSES)
    assert b"".join(bodies) == sent[0] + b"".join(ended(status, status))


async def test_a_response_without_items_may_be_cut_too() -> None:
    """Its first three events are one."""
    sent = [response_event(kind, number) for number, kind in enumerate(("created", "in_progress"))]
    response = {"status": "incomplete", "output": []}
    _, _, bodies = await reply(*sent, response_event("completed", 2, response=response), path=RESPONSES)
    assert b"".join(bodies) == b"".join(sent) + response_event("incomplete", 2, response=response)


async def test_an_error_follows_the_last_item_that_is_done() -> None:
    done = response_event("output_item.done", 7, item={"id": "a"})
    sent = [response_event("output_item.added", 6), done, b'data: {"error": {"message": "Cold.", "code": 500}}\n\n']
    _, _, bodies = await reply(*sent, path=RESPONSES)
    text = b"".join(bodies)
    assert text.startswith(sent[0] + done)
    assert b'"sequence_number": 8' in text[len(sent[0] + done) :]


async def test_a_code_is_a_word_or_null_and_the_param_a_field() -> None:
    status, said = await translated(400, error("Too hot.", 400, "temperature"))
    assert status == 400
    assert said == {"message": "Too hot.", "type": "invalid_request_error", "param": "temperature", "code": None}


@pytest.mark.parametrize(("path", "field"), [(CHAT, "messages"), ("/v1/completions", "prompt")])
async def test_the_length_of_the_prompt_is_the_prompts_fault(path: str, field: str) -> None:
    _, said = await translated(400, error("Longer than the maximum.", 400, "input_tokens"), path)
    assert (said["param"], said["code"]) == (field, "context_length_exceeded")


async def test_internals_do_not_leave_the_server(caplog: pytest.LogCaptureFixture) -> None:
    status, said = await translated(500, error("/secret/path: object at 0x7f", 500))
    assert status == 500
    assert "secret" not in json.dumps(said)
    assert "request r7" in caplog.text
    assert "/secret/path" in caplog.text


async def test_a_full_queue_is_told_when_to_come_back() -> None:
    status, headers, _ = await reply(json.dumps(error("full", 503)).encode(), status=503)
    assert (status, headers["retry-after"]) == (503, "1")


async def test_a_constraint_that_was_not_checked_keeps_its_code() -> None:
    ours = error_body(ConstraintNotCheckedError("busy"), CHAT)
    status, headers, [raw] = await reply(json.dumps(ours).encode(), status=503)
    assert (status, headers["retry-after"], json.loads(raw)) == (503, "5", ours)


async def test_a_stream_that_begins_with_an_error_becomes_a_plain_reply() -> None:
    event = b"data: " + json.dumps(error("No.", 400, "messages")).encode() + b"\n\n"
    status, headers, [body] = await reply(b"", event, b"data: [DONE]\n\n", b"")
    assert (status, headers["content-type"]) == (400, "application/json")
    assert json.loads(body)["error"]["param"] == "messages"


async def test_an_error_in_the_middle_of_a_stream_is_an_event_in_our_shape() -> None:
    event = b"data: " + json.dumps(error("/internal", 500)).encode() + b"\n\n"
    _, _, bodies = await reply(b"data: {}\n\n", event, b"data: [DONE]\n\n", b"")
    said = json.loads(bodies[1].removeprefix(b"data: "))["error"]
    assert said["code"] is None
    assert "internal" not in said["message"]
    assert bodies[1].endswith(b"\n\n")
    assert len(bodies) == 2, "[DONE] would say that the answer is complete"


async def test_anthropics_clients_get_their_own_shape() -> None:
    status, said = await translated(400, error("No.", 400, "messages"), MESSAGES)
    assert (status, said["type"]) == (400, "invalid_request_error")
    event = b'event: error\ndata: {"type":"error","error":{"type":"internal_error","message":"/secret"}}\n\n'
    _, _, bodies = await reply(b"event: message_start\ndata: {}\n\n", event, b"", path=MESSAGES)
    first, second = bodies[1].split(b"\n", 1)
    assert first == b"event: error"
    body = json.loads(second.removeprefix(b"data: "))
    assert (body["type"], body["error"]["type"]) == ("error", "api_error")
    assert "secret" not in bodies[1].decode()


ANNOUNCED = [
    b'event: response.created\ndata: {"sequence_number":0}\n\n',
    b'event: response.in_progress\ndata: {"sequence_number":1}\n\n',
]


async def test_an_error_of_the_responses_api_is_its_last_event() -> None:
    event = b"data: " + json.dumps(error("/internal", 500)).encode() + b"\n\n"
    delta = b'event: response.output_text.delta\ndata: {"sequence_number":2,"delta":"x"}\n\n'
    _, _, bodies = await reply(*ANNOUNCED, delta, event, b"", path=RESPONSES)
    assert bodies[0] == b"".join([*ANNOUNCED, delta])
    assert len(bodies) == 2
    said = json.loads(bodies[1].removeprefix(b"event: error\ndata: "))
    assert (said["type"], said["sequence_number"], said["code"]) == ("error", 3, "server_error")
    assert said["message"] == said["error"]["message"]


async def test_what_is_announced_before_the_engine_refuses_is_not_sent() -> None:
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for body in ANNOUNCED:
            await send({"type": "http.response.body", "body": body, "more_body": True})
        raise LookupError

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    translator = ErrorMiddleware(app, lambda raised: error("No.", 400, "tools")["error"])
    await translator({"type": "http", "path": RESPONSES, "headers": []}, None, send)  # type: ignore[arg-type]
    start, body = sent
    assert start["status"] == 400
    assert json.loads(body["body"])["error"]["param"] == "tools"


def chunk(*calls: dict[str, Any]) -> bytes:
    parsed = {"id": "x", "choices": [{"index": 0, "delta": {"tool_calls": list(calls)}, "finish_reason": None}]}
    return b"data: " + json.dumps(parsed, ensure_ascii=False).encode() + b"\n\n"


async def test_deltas_of_one_tool_call_are_one_delta() -> None:
    name = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": '{"a": "\u00e9'}}
    other = {"index": 1, "id": "c2", "type": "function", "function": {"name": "g"}}
    end = {"index": 1, "function": {"arguments": "{}"}}
    _, _, [body, *_] = await reply(chunk(name, more, other, end), b"data: [DONE]\n\n")
    [choice] = json.loads(body.removeprefix(b"data: "))["choices"]
    assert choice["delta"]["tool_calls"] == [
        {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": "\u00e9'}},
        {"index": 1, "id": "c2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]
    assert choice["finish_reason"] is None
    assert body.endswith(b"\n\n")


async def test_a_stream_is_parsed_only_where_a_chunk_has_two_deltas(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda text: parsed.append(text) or loads(text))
    text = b'data: {"choices":[{"index":0,"delta":{"content":"\\"tool_calls\\": \\"function\\":"}}]}\n\n'
    one = chunk({"index": 0, "function": {"arguments": "{}"}})
    assert await reply(text, one, b"data: [DONE]\n\n") == (200, {"content-type": "x"}, [text, one, b"data: [DONE]\n\n"])
    assert not parsed


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
async def test_an_engine_that_raises_is_told_to_the_client(begun: bool, path: str) -> None:
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True})
        raise RuntimeError("/secret")

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await ErrorMiddleware(app)({"type": "http", "path": path, "headers": []}, None, send)  # type: ignore[arg-type]
    assert sent[0]["status"] == (200 if begun else 500)
    assert (b"api_error" if path == MESSAGES else b"server_error") in sent[-1]["body"]
    assert not sent[-1].get("more_body")
    assert "secret" not in str(sent)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("top_p must be in (0, 1].", "top_p"),
        ("Cannot set both `continue_final_message` and `add_generation_prompt` to True.", "continue_final_message"),
        ('tool_choice="required" requires --tool-call-parser to be set', "tool_choice"),
        ('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set', "tool_choice"),
        ("The chat message's role must be known.", "messages"),
        ("Something else.", None),
    ],
)
async def test_the_field_is_found_in_the_sentence(message: str, param: str | None) -> None:
    _, said = await translated(400, error(message, 400))
    assert said["param"] == param
    assert "--" not in said["message"]


@pytest.mark.parametrize(
    ("path", "message", "param"),
    [
        ("/v1/audio/transcriptions", "Unsupported language: 'x'.  Must be one of ['en'].", "language"),
        ("/v1/audio/translations", "Invalid or unsupported audio file.", "file"),
        ("/v1/audio/transcriptions", "Expected 'file' to be a file-like object, not 'str'.", "file"),
        ("/v1/embeddings", "Model 'm' only supports Matryoshka representation with [64].", "dimensions"),
        ("/v1/embeddings", "Token id 10000000 is out of vocabulary", "input"),
        ("/classify", "This model's maximum context length is 512 tokens.", "input"),
        ("/v1/score", "At least one text element must be given", "text_1"),
        ("/score", "Input lengths must be either 1:1, 1:N or N:N", "text_2"),
        ("/v2/rerank", "At least one text_pair element must be given", "documents"),
    ],
)
async def test_the_field_of_every_endpoint_is_told(path: str, message: str, param: str) -> None:
    _, said = await translated(400, error(message, 400), path)
    assert said["param"] == param


async def test_an_untrusted_template_is_told_with_the_way_out() -> None:
    text = "Chat template is passed with request, but --trust-request-chat-template is not set."
    _, said = await translated(400, error(text, 400))
    assert said["param"] == "chat_template"
    assert "trust_request_chat_template: true" in said["message"]


@pytest.mark.parametrize("text", ["Cannot load local files without `--allowed-local-media-path`.", "Invalid model."])
async def test_no_word_makes_a_failure_a_fault_of_the_request(text: str) -> None:
    status, said = await translated(500, error(text, 500))
    assert (status, said["type"]) == (500, "server_error")


async def test_a_model_is_missing_if_vllm_looked_for_one() -> None:
    missing = {"message": "`x` does not exist.", "type": "NotFoundError", "param": None, "code": 404}
    status, said = await translated(404, {"error": missing})
    assert (status, said["code"], said["param"]) == (404, "model_not_found", "model")
    # Of FastAPI, for a path.
    status, said = await translated(404, {"error": {**missing, "message": "No such model.", "type": "Not Found"}})
    assert (status, said["code"]) == (400, None)


async def test_a_parameter_may_stand_for_the_prompt() -> None:
    for parameter in ("input_tokens", "media"):
        _, said = await translated(400, error("No.", 400, parameter))
        assert said["param"] == "messages"


@pytest.mark.parametrize("content", [b'"reasoning":"Hm."', b'"reasoning":null'])
async def test_a_plain_reply_says_its_length_as_it_is_sent(content: bytes) -> None:
    _, headers, bodies = await reply(b'{"choices":[{"message":{' + content + b"}}]}")
    assert headers["content-length"] == str(len(b"".join(bodies)))


async def test_reasoning_has_its_older_name_beside() -> None:
    said = json.dumps('It "rains": \\ "reasoning":"no"', ensure_ascii=False).encode()
    chunk = b'data: {"choices":[{"delta":{"reasoning":' + said + b',"content":' + said + b"}}]}\n\n"
    _, _, [changed] = await reply(chunk)
    delta = json.loads(changed.removeprefix(b"data: "))["choices"][0]["delta"]
    assert delta == dict.fromkeys(("reasoning", "reasoning_content", "content"), json.loads(said))
    for other in (b'data: {"choices":[{"delta":{"reasoning":null}}]}\n\n', b"data: [DONE]\n\n"):
        assert (await reply(other))[2] == [other]
    assert (await reply(chunk, path=RESPONSES))[2] == [chunk]
