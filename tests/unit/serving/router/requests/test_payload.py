"""JSON bodies and multipart forms: the requested model, and the same request for another model."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from rayllm.core.errors import RequestError, UnavailableError
from rayllm.serving.router.requests.body_summary import summarize
from rayllm.serving.router.requests.payload import FormPayload, JsonPayload
from tests.unit.serving.router.requests.bodies import gaps, large_form

SOUND = b"RIFF\x00\r\n--x\xff"


def form(fields: dict[str, Any], file: bytes | None = SOUND) -> tuple[bytes, Request]:
    """A form as a client writes it, and the request that it came in."""
    sent = httpx.Request("POST", "http://h/", data=fields, files={"file": ("a.wav", file, "audio/wav")})
    headers = [(key.lower(), value) for key, value in sent.headers.raw]
    return sent.read(), Request({"type": "http", "method": "POST", "headers": headers})


@pytest.mark.parametrize(
    "body", [{}, {"model": None}, {"model": 3}, {"model": ""}, {"model": ["x"]}, {"model": "x" * 1025}]
)
def test_a_request_names_its_model(body: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        summarize(json.dumps(body).encode())
    assert caught.value.param == "model"


@pytest.mark.parametrize(
    "raw", [b'{"model": "a",  "x": [1]}', b' {"x": [1], "model": "a"}\n\t ', b'{"model":"a","x":[1]\r}']
)
async def test_json_for_another_model(raw: bytes) -> None:
    payload = JsonPayload.from_raw(raw, "application/json", summarize(raw))
    other = await (await payload.for_model("b")).for_model('c"\\')
    assert json.loads(other.raw) == {"model": 'c"\\', "x": [1]}
    assert (payload.model, other.model) == ("a", 'c"\\')
    assert summarize(other.raw).routing == payload.routing == other.routing


async def test_a_form_for_another_model_keeps_its_file() -> None:
    raw, request = form({"model": "a", "language": "en", "timestamp_granularities[]": ["word", "segment"]})
    payload = await FormPayload.parse(raw, request)
    assert (payload.model, payload.raw) == ("a", raw)
    other = await payload.for_model("b")
    headers = [(b"content-type", other.content_type.encode())]
    again = await FormPayload.parse(other.raw, Request({"type": "http", "method": "POST", "headers": headers}))
    assert again.model == "b"

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": again.raw}

    async with Request({"type": "http", "method": "POST", "headers": headers}, receive).form() as fields:
        assert fields.getlist("timestamp_granularities[]") == ["word", "segment"]
        file = fields["file"]
        assert not isinstance(file, str)
        assert (file.filename, file.content_type, await file.read()) == ("a.wav", "audio/wav", SOUND)


async def test_the_log_gets_the_texts_of_a_form_and_not_its_file() -> None:
    payload = await FormPayload.parse(*form({"model": "a", "prompt": "a secret\nline"}))
    assert payload.for_log == rf"model='a', prompt='a secret\nline', file='a.wav' ({len(SOUND)} bytes)"


async def test_what_is_no_form_is_refused() -> None:
    raw, request = form({"language": "en"})
    with pytest.raises(RequestError, match="`model` is required") as caught:
        await FormPayload.parse(raw, request)
    assert caught.value.param == "model"
    with pytest.raises(RequestError, match="no multipart form"):
        await FormPayload.parse(b"junk", request)
    json_request = Request({"type": "http", "method": "POST", "headers": [(b"content-type", b"application/json")]})
    with pytest.raises(RequestError, match="must be a multipart form"):
        await FormPayload.parse(b"{}", json_request)


async def test_a_form_that_the_disk_has_no_room_for_may_come_again(full_disk: Callable[[], None]) -> None:
    raw, headers = large_form(3 << 20)
    full_disk()
    with pytest.raises(UnavailableError, match="no room for uploads") as caught:
        await FormPayload.parse(raw, Request({"type": "http", "method": "POST", "headers": headers}))
    assert caught.value.headers()


async def test_a_large_form_leaves_the_loop_its_turns() -> None:
    raw, headers = large_form(16 << 20)
    request = Request({"type": "http", "method": "POST", "headers": headers})
    async with gaps() as seen:
        assert (await FormPayload.parse(raw, request)).model == "x"
    # In one piece it takes a quarter of a second, or ten times that on a machine under load.
    assert len(seen) > 50
