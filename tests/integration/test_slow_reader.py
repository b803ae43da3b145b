"""A client that does not read: its answer waits for it, and nobody waits with it."""

from __future__ import annotations

import json
import socket
import time

import httpx

from tests.integration.service import Service
from tests.integration.test_accounting import ongoing
from tests.integration.test_explain import largest_part, record_of
from tests.integration.test_leaving import LONG, within

SEQUENCES = 8
# Far more bytes than the buffers of a connection hold.
BODY = {
    **LONG,
    "n": SEQUENCES,
    "stream": True,
    "stream_options": {"include_usage": True},
    "logprobs": True,
    "top_logprobs": 20,
}
DEMO = {"model": "rayllm-demo", "messages": [{"role": "user", "content": "What is the capital of France?"}]}


def test_it_holds_up_nobody_and_loses_nothing(service: Service, http: httpx.Client) -> None:
    host, port = service.url.removeprefix("http://").split(":")
    raw = json.dumps(BODY).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n"
    head += f"x-request-id: slow-reader\r\ncontent-length: {len(raw)}\r\n\r\n"
    assert within(60, lambda: ongoing() == [0])
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(60)
        slow.connect((host, int(port)))
        slow.sendall(head.encode() + raw)
        # The engine has begun when the reply has.
        assert slow.recv(1, socket.MSG_PEEK)
        for _ in range(5):
            assert "Paris" in http.post("/v1/chat/completions", json=DEMO).text
        # The engine has done its part; the exchange goes on, and counts.
        assert within(120, lambda: service.unfinished() == 0)
        assert ongoing() == [1]
        # Longer than the record must tell.
        time.sleep(6)
        answer = b"".join(iter(lambda: slow.recv(1 << 20), b""))
    assert len(answer) > 6 << 20
    lines = [line for line in answer.splitlines() if line.startswith(b"data: ")]
    assert lines[-1] == b"data: [DONE]"
    assert json.loads(lines[-2][6:])["usage"]["completion_tokens"] == SEQUENCES * LONG["max_tokens"]
    assert within(60, lambda: ongoing() == [0])
    record = record_of("slow-reader")
    assert record["blocked_s"] > 5
    assert record["parts"]["deliver"] > 5
    if largest_part(record) == "deliver":
        # On a slow machine, the last parts of the reply take long themselves.
        waited_for_client = record["blocked_s"] > record["parts"]["deliver"] / 2
        assert ("the client read slowly" in record["explanation"]) == waited_for_client
