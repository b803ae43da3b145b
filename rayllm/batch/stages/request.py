"""Requests in OpenAI's form, answered as the service answers them."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from ray.exceptions import RayActorError

from rayllm import headers
from rayllm.asgi import Response, call
from rayllm.batch.engine_worker import EngineWorker
from rayllm.batch.row_loop import RowLoop
from rayllm.batch.rows import Row
from rayllm.config import ModelConfig
from rayllm.endpoints import BY_PATH
from rayllm.engine.arguments import Workers
from rayllm.errors import ModelNotFoundError, RequestError
from rayllm.lora import adapter_of

logger = logging.getLogger(__name__)

_BUSY = (429, 503)
# A replica may die of a request, or of another one beside it.
_FAILURES = 2
_MOST_WAIT_S = 30.0


class EngineRequestStage:
    """Adds `status_code` and `response` to rows with `url` and `body`, from an engine in this process.

    Args:
        model: the model.
        workers, gpu_share, max_pending: as for `EngineWorker`.
    """

    def __init__(
        self, model: ModelConfig, workers: Workers, gpu_share: float = 0.0, max_pending: int | None = None
    ) -> None:
        self._model = model
        self._worker = EngineWorker(model, workers, gpu_share, max_pending)

    def __call__(self, rows: list[Row]) -> list[Row]:
        return self._worker.map(self._answer, rows)

    def close(self) -> None:
        """Stop the engine."""
        self._worker.close()

    async def _answer(self, row: Row) -> Row:
        sent = _sent(row)
        try:
            told = {"content-type": "application/json", **_names(self._model, row["body"])}
        except ModelNotFoundError as error:
            return {**row, "status_code": error.status, "response": error.body()}
        answer = await call(self._worker.server.app, row["url"], sent, told)
        if answer.status >= 500:
            await self._worker.check()
        return {**row, **_told(answer)}


class DeployedRequestStage:
    """The same from the models of a running application, through its router. It tries until the job is stopped.

    Args:
        app_name: the application on this cluster.
        max_pending: requests under way at once.
    """

    def __init__(self, app_name: str, max_pending: int) -> None:
        from ray import serve
        from ray.serve.exceptions import RayServeException

        self._away = (RayActorError, RayServeException)
        self._rows = RowLoop()
        self._rows.open_window(max_pending)
        self._router = serve.get_deployment_handle("Router", app_name)
        # Serve's library tells of its own business, once in each worker of each job.
        logging.getLogger(serve.__name__).setLevel(logging.WARNING)

    def __call__(self, rows: list[Row]) -> list[Row]:
        return self._rows.map(self._answer, rows)

    async def _answer(self, row: Row) -> Row:
        sent, wait_s, failures = _sent(row), 1.0, 0
        while True:
            answer = await self._ask(row["url"], sent)
            if answer.status not in _BUSY:
                failures += 1
                if answer.status < 500 or failures > _FAILURES:
                    return {**row, **_told(answer)}
            # The models are busy with their clients, starting, or just gone: a batch has time.
            await asyncio.sleep(max(wait_s, float(answer.headers.get("retry-after", 0))))
            wait_s = min(2 * wait_s, _MOST_WAIT_S)

    async def _ask(self, url: str, body: bytes) -> Response:
        try:
            return Response(*await self._router.answer.remote(url, body, {"content-type": "application/json"}))
        except self._away as error:
            logger.info("The router is away: %r", error)
            return Response(503)


def _names(model: ModelConfig, body: Any) -> dict[str, str]:
    """The headers by which a router tells a replica whom a request means."""
    asked = body.get("model") if isinstance(body, dict) else None
    if not isinstance(asked, str):
        raise RequestError("`body.model` must name the model.", "model")
    adapter = adapter_of(model, asked)
    return {headers.MODEL: asked} | ({headers.ADAPTER: adapter.adapter} if adapter else {})


def _sent(row: Row) -> bytes:
    """The body for the endpoint; an answer is whole, so it is not streamed."""
    url, body = row.get("url"), row.get("body")
    if url is None or body is None:
        raise RequestError("a row needs a `url`, such as `/v1/chat/completions`, and a `body`.")
    if url not in BY_PATH or BY_PATH[url].is_form:
        known = ", ".join(path for path, endpoint in BY_PATH.items() if not endpoint.is_form)
        raise RequestError(f"`{url}` takes no requests of a batch; these do: {known}.")
    if not isinstance(body, dict):
        raise RequestError("`body` must be an object.")
    if body.get("stream"):
        raise RequestError("answers of a batch are whole; leave `stream` out.")
    return json.dumps(body).encode()


def _told(answer: Response) -> Row:
    try:
        response: Any = json.loads(answer.body)
    except ValueError:
        response = answer.body.decode(errors="replace")
    return {"status_code": answer.status, "response": response}
