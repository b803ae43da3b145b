"""The router's own HTTP server, used where Ray Serve's proxies are disabled."""

import asyncio
import logging
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from ray.serve.config import ProxyLocation
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rayllm.cluster.ray_internals import name_request_in_logs, raylet_pid, serve_controller
from rayllm.config import RouterConfig
from rayllm.core.error_shapes import error_response
from rayllm.core.errors import ClusterError, RayLLMError, RequestTimeoutError, RouteNotFoundError, UnavailableError
from rayllm.core.headers import LONGEST_REQUEST_ID, REQUEST_ID
from rayllm.core.logs import printable
from rayllm.serving.http.uvicorn_server import embedded_server
from rayllm.serving.router.http.protocol import LimitedProtocol
from rayllm.serving.router.http.upload_timeout import BodyWithDeadline
from rayllm.serving.wire.connection import CONNECTION, Connection
from rayllm.serving.wire.listener.listener import KeptListener, LocalListener
from rayllm.serving.wire.record import CLIENT_LEFT

logger = logging.getLogger(__name__)

_ID = REQUEST_ID.encode()
# Of the id in replies; Anthropic's clients look for the second.
_NAMES = (REQUEST_ID, "request-id")


@dataclass(eq=False)
class HttpServer:
    """An HTTP server in the router's process.

    Args:
        root_path: the application's route prefix, "" for none.
        limits: those of requests from now on; they may be set.
        refused: called with the error of each request that the application never sees.
    """

    app: ASGIApp
    listener: LocalListener
    root_path: str
    limits: RouterConfig
    refused: Callable[[RayLLMError], None] = lambda error: None

    def __post_init__(self) -> None:
        self._in_progress = 0
        protocol = partial(LimitedProtocol, limits=lambda: self.limits, opened=self._opened, refused=self.refused)
        self._server = embedded_server(
            self._serve, protocol, interface="asgi3", server_header=False, date_header=False, timeout_keep_alive=90
        )
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to listen. Raises OSError if the address is not available."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[]))
        while not self._server.started:
            if self._serving.done():
                await self._serving
            await asyncio.sleep(0.005)
        try:
            await self.listener.start(self._accepted)
        except BaseException:
            await self.stop(0)
            raise

    async def stop(self, timeout_s: float, is_deleted: bool = True) -> None:
        """Accept no more connections, and return when requests in progress are answered.

        Args:
            timeout_s: seconds after which it returns anyway.
            is_deleted: whether no other router will accept connections that wait.
        """
        if self._serving is None:
            return
        deadline = time.monotonic() + timeout_s
        await self.listener.stop(is_deleted)
        connections: Any = self._server.server_state.connections
        # A client that has connected may be about to send its first request, or the next one.
        while not is_deleted and connections and time.monotonic() < deadline:
            for connection in connections:
                connection.end_after_reply()
            await asyncio.sleep(0.05)
        self._server.should_exit = True
        await asyncio.wait([self._serving], timeout=timeout_s)

    async def _accepted(self, connection: socket.socket) -> None:
        # asyncio sets it only on sockets that say their protocol, and accepted ones do not.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().connect_accepted_socket(self._server.new_protocol, connection)

    def _opened(self, scope: Scope, cycle: Any, transport: asyncio.Transport) -> None:
        scope["extensions"] = {CONNECTION: Connection(cycle, transport, self.limits.send_timeout_s)}

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Assign a request id, and log a line about the request."""
        request_id = _request_id(scope)
        name_request_in_logs(request_id)
        scope["headers"] = [h for h in scope["headers"] if h[0] != _ID] + [(_ID, request_id.encode("latin-1"))]
        scope["root_path"] = self.root_path
        connection: Connection = scope["extensions"][CONNECTION]
        connection.reply_headers |= dict.fromkeys(_NAMES, request_id)
        began, status = time.perf_counter(), 0

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), *_router_headers(status, request_id)]}
            await send(message)

        try:
            await self._answer(scope, receive, send_named)
        finally:
            took = 1000 * (time.perf_counter() - began)
            # As a trusted proxy says, once the application has run.
            client = printable(scope["client"][0]) if scope["client"] else "-"
            path = printable(scope["path"])
            status = connection.status or status or CLIENT_LEFT
            logger.info("%s %s %s %s %d %.1f ms", request_id, client, scope["method"], path, status, took)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application, unless too many requests are in progress."""
        if not scope["path"].startswith(f"{self.root_path}/"):
            error = RouteNotFoundError(f"There is no {scope['method']} {scope['path']}.")
            await error_response(error, scope["path"])(scope, receive, send)
        elif scope["path"].removeprefix(self.root_path) == "/health":
            await self.app(scope, receive, send)
        else:
            await self._answer_limited(scope, receive, send)

    async def _answer_limited(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_counted = False

        def arrived() -> None:
            # Uploads in progress do not count, so that they do not displace complete requests.
            nonlocal is_counted
            if self._in_progress >= self.limits.max_ongoing_requests:
                raise UnavailableError("This service has too many requests in progress (router.max_ongoing_requests).")
            is_counted = True
            self._in_progress += 1

        body = BodyWithDeadline(receive, scope, self.limits, arrived)
        try:
            if self._in_progress >= self.limits.max_ongoing_requests:
                arrived()
            body.begin()
            await self.app(scope, body, send)
        except UnavailableError as error:
            self.refused(error)
            await error_response(error, scope["path"])(scope, receive, send)
        finally:
            self._in_progress -= is_counted


async def open_http_server(
    app: ASGIApp, app_name: str, config: RouterConfig, refused: Callable[[RayLLMError], None]
) -> HttpServer | None:
    """Start the application's server if the configuration, or Ray Serve, names an address.

    Raises ClusterError if the address is not available, or belongs to another application.
    """
    controller = serve_controller()
    details = await asyncio.to_thread(controller.get_serve_details)
    address = config.address or _serve_address(controller, details, app_name)
    if address is None:
        return None
    route_prefix = (details["applications"].get(app_name) or {}).get("route_prefix") or "/"
    listener = KeptListener(*address, raylet_pid(), app_name)
    server = HttpServer(app, listener, route_prefix.rstrip("/"), config, refused)
    try:
        await server.start()
    except OSError as error:
        raise ClusterError(f"cannot listen on {address[0]}:{address[1]}: {error.strerror}.") from None
    return server


async def listening_hosts(config: RouterConfig) -> list[str]:
    """The hosts on which the routers, or Ray Serve's proxies, listen."""
    return [host for _, host in await asyncio.to_thread(listening_addresses, config)]


def listening_addresses(config: RouterConfig) -> list[tuple[str, str]]:
    """Hosts with the configuration keys that set them; Ray Serve's only while Serve runs. Blocks."""
    own = [("router.listen", config.address[0])] if config.address else []
    client = serve_controller(required=False) if ray.is_initialized() else None
    if client is None:
        return own
    # Without proxies, Serve's address is the routers', unless they have their own.
    has_proxies = client.get_serve_details()["proxy_location"] != ProxyLocation.Disabled
    return [*own, ("http_options.host", client.http_config.host or "127.0.0.1")] if has_proxies or not own else own


def _serve_address(controller: Any, details: dict[str, Any], app_name: str) -> tuple[str, int] | None:
    """The address of Serve's HTTP options, if Serve's proxies are disabled."""
    if details["proxy_location"] != ProxyLocation.Disabled:
        return None
    for other, application in details["applications"].items():
        if other != app_name and "Router" in application["deployments"]:
            # The applications would share the port, and the kernel would mix up their clients.
            raise ClusterError(
                f"The application `{other}` listens here already: give each its own `router.listen`, or leave out "
                "`proxy_location: Disabled`, so that Ray Serve's proxies tell them apart."
            )
    return controller.http_config.host or "127.0.0.1", controller.http_config.port


def _router_headers(status: int, request_id: str) -> list[tuple[bytes, bytes]]:
    headers = [(name.encode(), request_id.encode("latin-1")) for name in _NAMES]
    if status == RequestTimeoutError.status:
        # The client may still be sending.
        headers.append((b"connection", b"close"))
    return headers


def _request_id(scope: Scope) -> str:
    sent_id = next((value for key, value in scope["headers"] if key == _ID), b"")
    text = sent_id.decode("latin-1")
    return text if text and len(text) <= LONGEST_REQUEST_ID and text.isprintable() else uuid.uuid4().hex
