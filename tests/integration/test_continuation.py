"""Streams that continue in the next replica: one replica at a time on the real stack, and answers that are known."""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import product
from typing import Any

import httpx
import psutil
import pytest
from ray import serve

from benchmarks.faults.application import APP, MODEL, application, delete
from benchmarks.faults.cluster import Cluster
from tests.integration.message_stream import MessageStream
from tests.integration.response_stream import check_stream
from tests.integration.test_leaving import within
from tests.servers.process import free_port

CHAT = "/v1/chat/completions"
# The longest answer that the model was taught: beyond it, tokens are so close to each other that rounding decides.
STORY = "Tell me a story."
MESSAGES = {"messages": [{"role": "user", "content": STORY}], "max_tokens": 900}
# Chats as well.
STRUCTURED, REPETITION, FREQUENCY = "structured output", "repetition penalty", "frequency penalty"
# A tool's call in a response.
CALL = "/v1/responses?call"
NOTE = {
    "type": "function",
    "name": "note",
    "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
}
SAID = '\n{"name": "note", "arguments": {"text": "' + "Paris and Berlin, " * 60 + '"}}\n'
PROMPT = f"<|im_start|>user\n{STORY}<|im_end|>\n<|im_start|>assistant\n"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {**MESSAGES, "stream_options": {"include_usage": True}},
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 900, "stream_options": {"include_usage": True}},
    "/v1/messages": MESSAGES,
    "/v1/responses": {"input": STORY, "max_output_tokens": 900},
    CALL: {
        "input": STORY,
        "tools": [NOTE],
        "structured_outputs": {"grammar": f"start: <tool_call> {json.dumps(SAID)} </tool_call>"},
    },
    # All of the text is fixed, and the grammar has to know how much of it is there.
    STRUCTURED: {**MESSAGES, "structured_outputs": {"regex": "(Paris and Berlin, ){60}"}},
    REPETITION: {**MESSAGES, "repetition_penalty": 1.01},
    FREQUENCY: {**MESSAGES, "frequency_penalty": 0.02},
}
# A browser's request from another origin is relayed, as all are whose replica is on another node.
HANDED_OVER: Mapping[str, str] = {}
WAYS: dict[str, Mapping[str, str]] = {"handed over": HANDED_OVER, "relayed": {"origin": "http://elsewhere"}}
# Two answers to one request, long ones.
TWO = {"n": 2, "temperature": 1, "min_tokens": 900, "ignore_eos": True}
# The path of each stream that has ended.
ENDED: list[str] = []
DELTAS = ("response.output_text.delta", "response.function_call_arguments.delta", "content_block_delta")
USAGE = re.compile(r'"usage":\{[^}]*')


@pytest.fixture(scope="module")
def url(proxy_url: str) -> Iterator[str]:
    """An application of its own: its replicas are killed."""
    port = free_port()
    serve.run(application(port, num_replicas=1, graceful_shutdown_timeout_s=0.3), name=APP, route_prefix="/faults")
    yield f"http://127.0.0.1:{port}/faults"
    delete()


@pytest.fixture
def processes(url: str) -> Cluster:
    """The application's processes, all of them there."""
    processes = Cluster(replicas=1)
    assert within(120, lambda: is_whole(processes))
    return processes


def is_whole(processes: Cluster) -> bool:
    """Whether the replica and its engine run. Ray Serve may not have noticed yet that they have died."""
    return len(processes.replicas()) == len(processes.engines()) == 1 and processes.is_whole()


class Paused:
    """Holds all engines while a fault is caused, so that no stream ends meanwhile."""

    def __init__(self, processes: Cluster) -> None:
        self.engines = [processes.engine(replica) for replica in processes.replicas()]

    def __enter__(self) -> Paused:
        return self

    def __exit__(self, *_: object) -> None:
        self._resume()

    def end(self, fault: Callable[[], object]) -> None:
        """Cause a fault, and let the engines that are left go on."""
        for engine in self.engines:
            engine.suspend()
        fault()
        self._resume()

    def _resume(self) -> None:
        for engine in self.engines:
            with suppress(psutil.NoSuchProcess):
                engine.resume()


def text_of(reply: str) -> str:
    """What a stream says, without its ids and times."""
    said = []
    for line in reply.splitlines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        event = json.loads(line.removeprefix("data: "))
        assert "error" not in event, event
        if event.get("type") in DELTAS:
            delta = event["delta"]
            said.append(delta if isinstance(delta, str) else delta.get("text", ""))
        for choice in event.get("choices", ()):
            said.append(choice.get("text") or choice.get("delta", {}).get("content") or "")
    return "".join(said)


def last_event(reply: str) -> str:
    """The type of a stream's last event, or `[DONE]`."""
    data = reply.rstrip().rpartition("\ndata: ")[2]
    return data if data == "[DONE]" else str(json.loads(data)["type"])


def stream(
    url: str,
    path: str,
    interrupt: Callable[[], object] | None = None,
    headers: Mapping[str, str] = HANDED_OVER,
    **more: Any,
) -> str:
    """A whole stream; `interrupt` is called once it has begun."""
    body = {"model": MODEL, "stream": True, "temperature": 0, **BODIES[path], **more}
    with (
        httpx.Client(timeout=120, headers=headers) as client,
        client.stream("POST", url + (path if path.startswith("/") else CHAT), json=body) as reply,
    ):
        assert reply.status_code == 200, reply.read()
        pieces = reply.iter_text()
        received = next(pieces)
        if interrupt:
            interrupt()
        received += "".join(pieces)
        ENDED.append(path)
        return received


def continuations(url: str) -> int:
    """How many streams have gone on in another replica so far, by the application's metrics."""

    def count(name: str) -> int:
        page = httpx.get(f"{url}/metrics", timeout=60).text
        counts = re.findall(rf"^{name}\{{[^}}]*\}} (\S+)", page, re.MULTILINE)
        return sum(int(float(count)) for count in counts)

    # A router counts a stream only after its client has got the end.
    assert within(60, lambda: count("rayllm_requests_total") == len(ENDED))
    return count("rayllm_continuations_total")


def test_streams_outlive_their_replica(url: str, processes: Cluster) -> None:
    """Two of each API, one of them relayed. There is no replica left, so they go on in the next one that starts."""
    with ThreadPoolExecutor(len(BODIES)) as clients:
        expected = dict(zip(BODIES, clients.map(partial(stream, url), BODIES), strict=True))
    continued = 0
    # A stream may have ended before the last one began.
    while continued < 2 * len(BODIES):
        assert within(120, lambda: is_whole(processes))
        before = continuations(url)
        received = interrupted(url, processes)
        continued = continuations(url) - before
    for (path, _), text in received.items():
        if path == "/v1/messages":
            assert MessageStream(text).message["stop_reason"]
        assert text_of(text) == text_of(expected[path])
        assert last_event(text) == last_event(expected[path])
        assert USAGE.findall(text)[-1:] == USAGE.findall(expected[path])[-1:]
        ids = re.findall(r'^data: \{"id":"([^"]*)"', text, re.MULTILINE)
        assert len(set(ids)) <= 1, "one stream has one id"
        if path in ("/v1/responses", CALL):
            [item] = check_stream(text)["output"]
            assert item["type"] == ("function_call" if path == CALL else "message")


def interrupted(url: str, processes: Cluster) -> dict[tuple[str, str], str]:
    """A stream of each API and each way, whose replica was killed in the middle."""
    kinds = list(product(BODIES, WAYS))
    with Paused(processes) as paused, ThreadPoolExecutor(len(kinds)) as clients:
        begun = threading.Barrier(len(kinds) + 1)
        asking = {
            (path, way): clients.submit(stream, url, path, partial(begun.wait, 60), WAYS[way]) for path, way in kinds
        }
        begun.wait(60)
        paused.end(processes.replicas()[0].kill)
        return {kind: each.result(120) for kind, each in asking.items()}


def test_all_streams_of_a_replica_outlive_its_engine(url: str, processes: Cluster) -> None:
    expected = text_of(stream(url, CHAT))
    before = continuations(url)
    # All may have ended before the last one began.
    while continuations(url) == before:
        assert within(120, lambda: is_whole(processes))
        with Paused(processes) as paused, ThreadPoolExecutor(16) as clients:
            begun = threading.Barrier(17)
            ways = [*WAYS.values()] * 8
            asking = [clients.submit(stream, url, CHAT, partial(begun.wait, 60), way) for way in ways]
            begun.wait(60)
            paused.end(paused.engines[0].kill)
            received = [each.result(120) for each in asking]
        assert [text_of(each) for each in received] == [expected] * 16


@pytest.mark.parametrize("way", list(WAYS))
def test_a_stream_is_moved_when_its_replica_has_to_end(url: str, processes: Cluster, way: str) -> None:
    """The stream takes longer than the replicas of this application have to finish what they do."""
    # Where all are relayed, the router has no channel to the replica, and is not told that it ends.
    expected = text_of(stream(url, CHAT, headers=WAYS[way]))
    before = continuations(url)

    def end() -> None:
        [replica] = processes.replicas()
        replica.send_signal(signal.SIGTERM)
        replica.wait(60)

    # It may have ended before the engine was held.
    while continuations(url) == before:
        assert within(120, lambda: is_whole(processes))
        with Paused(processes) as paused:
            received = stream(url, CHAT, partial(paused.end, end), WAYS[way])
        assert text_of(received) == expected
    assert continuations(url) == before + 1


@pytest.mark.parametrize("way", list(WAYS))
def test_a_stream_that_cannot_go_on_says_so(url: str, processes: Cluster, way: str) -> None:
    with Paused(processes) as paused:
        kill = processes.replicas()[0].kill
        received = stream(url, CHAT, partial(paused.end, kill), WAYS[way], **TWO)
    events = [line for line in received.splitlines() if line.startswith("data: ")]
    assert "broke off" in json.loads(events[-1].removeprefix("data: "))["error"]["message"]
    assert "[DONE]" not in received
