"""Bodies of 32 MiB do not block the event loop."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import psutil
import pytest

from rayllm.core.errors import RequestError
from rayllm.core.json_body import is_light
from rayllm.serving.router.requests import body_reader
from rayllm.serving.router.requests.body_reader import BodyReader
from rayllm.serving.router.requests.body_summary import summarize
from tests.unit.serving.router.requests.bodies import SHAPES

SIZE = 32 << 20


def readers() -> list[psutil.Process]:
    """The processes that read bodies now; other tests have children of their own."""
    return [child for child in psutil.Process().children() if "rayllm.core.limited_process" in child.cmdline()]


@pytest.mark.parametrize("shape", SHAPES)
async def test_large_bodies_are_read_in_another_process(shape: str) -> None:
    reading = asyncio.create_task(BodyReader().read(SHAPES[shape](SIZE)))
    while not (found := readers()) and not reading.done():
        await asyncio.sleep(0)
    assert found
    with suppress(RequestError):
        assert (await reading).model == "x"
    assert not readers()


@pytest.mark.parametrize("messages", [10, 20_000])
async def test_heavy_bodies_mean_the_same(messages: int) -> None:
    turns = [{"role": "user", "content": f"Question {number}: why?"} for number in range(messages)]
    raw = json.dumps({"model": "a", "stream": 1, "messages": turns}).encode()
    assert is_light(raw) == (messages == 10)
    assert await BodyReader().read(raw) == summarize(raw)
    assert (await BodyReader().texts(raw))[-1] == f"Question {messages - 1}: why?"


async def test_heavy_bodies_are_refused_with_the_reason() -> None:
    text = "a" * (3 << 20)
    with pytest.raises(RequestError, match="`model` is required") as caught:
        await BodyReader().read(json.dumps({"prompt": text}).encode())
    assert caught.value.param == "model"
    with pytest.raises(RequestError, match="Expecting ',' delimiter"):
        await BodyReader().read(b'{"prompt": "' + text.encode() + b'" 1}')


async def test_a_process_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_reader, "_TIMEOUT_S", 0.01)
    with pytest.raises(RequestError, match="takes too long"):
        await BodyReader().read(SHAPES["floats"](SIZE))
    assert not readers()


async def test_a_client_that_leaves_takes_the_process_along() -> None:
    reading = asyncio.create_task(BodyReader().read(SHAPES["floats"](SIZE)))
    while not readers():
        await asyncio.sleep(0.01)
    reading.cancel()
    with suppress(asyncio.CancelledError):
        await reading
    assert not readers()
