"""Pictures and sound."""

from __future__ import annotations

import base64
import io
import math
import struct
import threading
import wave
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.integration.service import Service
from tests.integration.test_openai_api import CHAT, events, failure

CAPITALS = {"red": "Paris", "blue": "Berlin", "green": "Tokyo"}


def picture(colour: str) -> str:
    """A data URL."""
    buffer = io.BytesIO()
    Image.new("RGB", (64, 48), colour).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def question(url: str, **fields: Any) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is the capital?"}]
    return {
        "model": "vision",
        "messages": [{"role": "user", "content": parts}],
        "temperature": 0,
        "max_tokens": 24,
        **fields,
    }


def sound(seconds: float = 1.0, rate: int = 16_000, channels: int = 1) -> bytes:
    """A tone as a WAV file."""
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        samples = (int(8000 * math.sin(2 * math.pi * 440 * i / rate)) for i in range(int(seconds * rate)))
        file.writeframes(b"".join(struct.pack("<h", sample) * channels for sample in samples))
    return buffer.getvalue()


@pytest.mark.parametrize("colour", CAPITALS)
def test_a_picture_is_seen(kinds: httpx.Client, colour: str) -> None:
    reply = kinds.post(CHAT, json=question(picture(colour)))
    assert CAPITALS[colour] in reply.json()["choices"][0]["message"]["content"]


def test_a_picture_is_seen_in_a_stream_and_by_the_other_apis(kinds: httpx.Client) -> None:
    chunks = events(kinds.post(CHAT, json=question(picture("red"), stream=True)))
    assert "Paris" in "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    text = {"type": "input_text", "text": "What is the capital?"}
    seen = {"type": "input_image", "image_url": picture("blue"), "detail": "auto"}
    body = {"model": "vision", "input": [{"role": "user", "content": [seen, text]}], "max_output_tokens": 24}
    reply = kinds.post("/v1/responses", json={**body, "temperature": 0}).json()
    assert "Berlin" in reply["output"][-1]["content"][0]["text"]
    source = {"type": "base64", "media_type": "image/png", "data": picture("green").split(",")[1]}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "What is the capital?"}]
    body = {"model": "vision", "messages": [{"role": "user", "content": content}], "max_tokens": 24, "temperature": 0}
    assert "Tokyo" in kinds.post("/v1/messages", json=body).json()["content"][0]["text"]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:1/a.png", "one of the allowed domains"),
        ("https://example.com/a.png", "one of the allowed domains"),
        ("http://localhost@127.0.0.1:1/a.png", "one of the allowed domains"),
        ("file:///etc/passwd", "Send a data URL"),
        ("ftp://example.com/a.png", "URL"),
        ("data:image/png;base64,AAAA", "image"),
        ("data:image/png,plain", "base64"),
        ("data:", "data"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_media_from_elsewhere_and_broken_ones_are_refused(
    kinds: httpx.Client, url: str, said: str, stream: bool
) -> None:
    status, error = failure(kinds.post(CHAT, json=question(url, stream=stream)))
    assert (status, error["param"]) == (400, "messages"), error
    assert said.lower() in error["message"].lower()


@pytest.fixture
def host() -> Iterator[str]:
    """A web server on localhost: `/red.png`, and `/away`, which leads to another host."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/red.png":
                self.send_response(200)
                self.end_headers()
                self.wfile.write(base64.b64decode(picture("red").split(",")[1]))
            else:
                self.send_response(302)
                self.send_header("location", f"http://127.0.0.1:{self.server.server_port}/red.png")  # type: ignore[attr-defined]
                self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://localhost:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_host_on_the_list_is_asked_and_leads_nowhere_else(kinds: httpx.Client, host: str) -> None:
    reply = kinds.post(CHAT, json=question(f"{host}/red.png"))
    assert "Paris" in reply.json()["choices"][0]["message"]["content"]
    status, error = failure(kinds.post(CHAT, json=question(f"{host}/away")))
    assert status == 400, error


def test_a_model_of_text_takes_no_pictures(http: httpx.Client) -> None:
    status, error = failure(http.post(CHAT, json=question(picture("red"), model="rayllm-demo")))
    assert (status, error["param"]) == (400, "messages"), error


@pytest.mark.parametrize("kind", ["transcriptions", "translations"])
def test_sound_is_heard(kinds: httpx.Client, kind: str) -> None:
    # A few words: the model is of chance, and a hair between two sounds may turn a later one.
    form = {"model": "whisper", "temperature": "0", "max_completion_tokens": "3"}
    replies = [
        kinds.post(f"/v1/audio/{kind}", data=form, files={"file": ("a.wav", wav, "audio/wav")})
        for wav in (sound(), sound(rate=44_100, channels=2))
    ]
    texts = [reply.json()["text"] for reply in replies]
    assert texts[0]
    # Another rate and two channels are the same sound.
    assert texts[0] == texts[1]


def test_openais_client_transcribes(surface: Service) -> None:
    client = surface.openai()
    reply = client.audio.transcriptions.create(model="whisper", file=("a.wav", sound()), language="en", temperature=0)
    assert reply.text


@pytest.mark.parametrize(
    ("form", "file", "status", "param"),
    [
        ({"model": "whisper"}, b"no sound", 400, "file"),
        ({"model": "whisper", "language": "klingon"}, None, 400, "language"),
        ({"model": "whisper", "temperature": "hot"}, None, 400, "temperature"),
        ({"model": "whisper", "response_format": "pdf"}, None, 400, "response_format"),
        ({"model": "whisper", "timestamp_granularities[]": "era"}, None, 400, "timestamp_granularities[]"),
        ({"model": "nobody"}, None, 404, "model"),
        ({}, None, 400, "model"),
        ({"model": "extras"}, None, 400, "model"),
    ],
)
def test_wrong_forms(
    kinds: httpx.Client, form: dict[str, str], file: bytes | None, status: int, param: str | None
) -> None:
    files = {"file": ("a.wav", file or sound(), "audio/wav")}
    got, error = failure(kinds.post("/v1/audio/transcriptions", data=form, files=files))
    assert (got, error["param"]) == (status, param), error
    status, error = failure(kinds.post("/v1/audio/transcriptions", json=form))
    assert "multipart form" in error["message"]
