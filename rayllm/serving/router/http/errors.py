"""Error replies in the shape of the API that the request's path belongs to."""

import logging

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from rayllm.core.error_shapes import error_response
from rayllm.core.errors import EngineError, MethodNotAllowedError, RayLLMError, RequestError, RouteNotFoundError
from rayllm.core.logs import printable

logger = logging.getLogger(__name__)


def path_of(request: Request) -> str:
    """The request's path below `route_prefix`."""
    path: str = request.scope["path"]
    return path.removeprefix(request.scope.get("root_path", "").rstrip("/"))


def install_error_handlers(app: FastAPI) -> None:
    """Map all exceptions, ours, the framework's and unexpected ones, to replies of the API's shape."""
    app.add_exception_handler(RayLLMError, _rayllm_error)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(ClientDisconnect, _client_disconnect)
    app.add_exception_handler(Exception, _unexpected_error)


async def _rayllm_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RayLLMError)  # noqa: S101  (registered for it)
    return error_response(error, path_of(request))


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  (registered for it)
    path = path_of(request)
    if error.status_code == 404:
        # HEAD gets the headers of GET.
        method = "GET" if request.method == "HEAD" else request.method
        return error_response(RouteNotFoundError(f"There is no {method} {path}."), path)
    if error.status_code == 405:
        response = error_response(MethodNotAllowedError(f"{path} does not take {request.method}."), path)
        response.headers.update(error.headers or {})
        return response
    return error_response(RequestError(str(error.detail)), path)


async def _unexpected_error(request: Request, error: Exception) -> Response:
    logger.error("Unexpected error on %s", printable(request.scope["path"]), exc_info=error)
    return error_response(EngineError("The server failed on this request; its log says why."), path_of(request))


async def _client_disconnect(request: Request, error: Exception) -> Response:
    # Never sent; the status shows in the access log, as with nginx.
    return Response(status_code=499)
