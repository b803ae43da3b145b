"""Requests for tasks that a model does not support."""

from __future__ import annotations

import json
from typing import Any

from rayllm.engine.middleware.supported_tasks import TaskMiddleware

EMBEDDER = {"/v1/embeddings", "/v2/embed", "/pooling", "/tokenize", "/detokenize", "/some/other"}


async def ask(path: str) -> list[Any]:
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send("reached")

    async def send(message: Any) -> None:
        sent.append(message)

    await TaskMiddleware(app, EMBEDDER, "m")({"type": "http", "path": path}, None, send)  # type: ignore[arg-type]
    return sent


async def test_what_the_model_does_passes() -> None:
    assert await ask("/v1/embeddings") == ["reached"]


async def test_what_it_does_not_is_answered_with_what_it_does() -> None:
    start, body = await ask("/v1/chat/completions")
    error = json.loads(body["body"])["error"]
    assert (start["status"], error["param"]) == (400, "model")
    assert error["message"] == (
        "The model `m` does not support chat (/v1/chat/completions). It supports embeddings (/v1/embeddings, /v2/embed)"
        "; pooling (/pooling); tokenization (/tokenize, /detokenize)."
    )


async def test_a_path_of_vllms_that_we_do_not_offer_is_closed() -> None:
    assert (await ask("/some/other"))[0]["status"] == 400
