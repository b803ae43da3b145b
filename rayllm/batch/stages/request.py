"""Send OpenAI-style requests to an engine in the worker, or to a running application."""

import asyncio
import json
import logging
from concurrent.futures import Future
from typing import Any

from ray.exceptions import RayActorError

from rayllm.access import ANYONE, Caller
from rayllm.batch.execution.engine_worker import EngineWorker
from rayllm.batch.execution.row_loop import RowLoop
from rayllm.batch.rows import Row
from rayllm.config import ModelConfig
from rayllm.core import headers
from rayllm.core.asgi import Response, call
from rayllm.core.endpoints import IN_BATCHES
from rayllm.core.errors import ModelNotFoundError, PermissionDeniedError, RequestError
from rayllm.lora import resolve_adapter

logger = logging.getLogger(__name__)

_BUSY = (429, 503)
# A 5xx may come from a replica that died, perhaps of another request.
_MAX_FAILURES = 2
_MAX_WAIT_S = 30.0


class EngineRequestStage:
    """Adds `status_code` and `response` to rows with `url` and `body`, from an engine in this process."""

    def __init__(self, model: ModelConfig, caller: Caller = ANYONE, **options: Any) -> None:
        self._model = model
        self._caller = caller
        self._worker = EngineWorker(model, **options)

    def __call__(self, rows: list[Row]) -> list[Row]:
        return self._worker.map(self._request, rows)

    def close(self) -> None:
        self._worker.close()

    async def _request(self, row: Row) -> Row:
        body = _encoded_body(row)
        try:
            request_headers = {"content-type": "application/json", **self._model_headers(row["body"])}
        except (ModelNotFoundError, PermissionDeniedError) as error:
            return {**row, "status_code": error.status, "response": error.body()}
        response = await call(self._worker.server.app, row["url"], body, request_headers)
        if response.status >= 500:
            await self._worker.check()
        return {**row, **_result(response)}

    def _model_headers(self, body: Any) -> dict[str, str]:
        """Headers that name the requested model, as a router sends them to a replica."""
        name = body.get("model") if isinstance(body, dict) else None
        if not isinstance(name, str):
            raise RequestError("`body.model` must name the model.", "model")
        adapter = resolve_adapter(self._model, name)
        self._caller.check_model(name, str(adapter) if adapter else self._model.model_id)
        return {headers.MODEL: name} | ({headers.ADAPTER: adapter.name} if adapter else {})


class DeployedRequestStage:
    """Adds `status_code` and `response` from a running application; retries until the job is stopped."""

    def __init__(self, app_name: str, max_pending: int, caller: Caller = ANYONE) -> None:
        from ray import serve
        from ray.serve.exceptions import RayServeException

        self._unavailable = (RayActorError, RayServeException)
        self._caller = caller
        self._rows = RowLoop()
        self._rows.limit(max_pending)
        self._router = serve.get_deployment_handle("Router", app_name)
        # Serve logs at INFO, once in each worker of each job.
        logging.getLogger(serve.__name__).setLevel(logging.WARNING)

    def __call__(self, rows: list[Row]) -> list[Row]:
        return self._rows.map(self._request, rows)

    def start(self, row: Row) -> Future[Row]:
        """Start one request, which cancelling the future stops."""
        return self._rows.start(self._request, row)

    async def _request(self, row: Row) -> Row:
        body, wait_s, failures = _encoded_body(row), 1.0, 0
        while True:
            response = await self._send(row["url"], body)
            if response.status not in _BUSY or response.headers.get("x-should-retry") == "false":
                failures += 1
                if response.status < 500 or failures > _MAX_FAILURES:
                    return {**row, **_result(response)}
            # The models are busy, starting or restarting; a batch has time.
            await asyncio.sleep(max(wait_s, float(response.headers.get("retry-after", 0))))
            wait_s = min(2 * wait_s, _MAX_WAIT_S)

    async def _send(self, url: str, body: bytes) -> Response:
        try:
            json_headers = {"content-type": "application/json"}
            sender = self._caller.name, self._caller.models, self._caller.tenant
            answer = await self._router.answer.remote(url, body, json_headers, *sender)
            return Response(*answer)
        except self._unavailable as error:
            logger.info("The router is unavailable: %r", error)
            return Response(503)


def _encoded_body(row: Row) -> bytes:
    """The row's `body` as JSON. Raises RequestError if the row is not a request that batches support."""
    url, body = row.get("url"), row.get("body")
    if url is None or body is None:
        raise RequestError("a row needs a `url`, such as `/v1/chat/completions`, and a `body`.")
    if url not in IN_BATCHES:
        raise RequestError(f"`{url}` is not available in batches; use one of {', '.join(IN_BATCHES)}.")
    if not isinstance(body, dict):
        raise RequestError("`body` must be an object.")
    if body.get("stream"):
        raise RequestError("batches do not stream; leave `stream` out.")
    return json.dumps(body).encode()


def _result(response: Response) -> Row:
    try:
        content: Any = json.loads(response.body)
    except ValueError:
        content = response.body.decode(errors="replace")
    return {"status_code": response.status, "response": content}
