"""ASGI middleware for services without keys: refuses what browsers send on behalf of other web pages.

A web page can send requests to this machine: to a name of its own that resolves to this machine (DNS rebinding), with
access to the replies, or blindly to a loopback address.
"""

import re
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from rayllm.config import RouterConfig
from rayllm.core.error_shapes import error_response
from rayllm.core.errors import PermissionDeniedError, RayLLMError
from rayllm.core.hosts import is_loopback
from rayllm.serving.router.http.errors import path_of

_HOST = re.compile(r"(?:\[([\da-f:.]+)\]|([^\[\]:/@\s]+))(?::\d*)?")
# Methods without effect.
_SAFE = ("GET", "HEAD", "OPTIONS")


class BrowserGate:
    """Admits requests that name this machine, and changes only from pages of this or an allowed origin.

    `refused` is called with the error of each refused request.
    """

    def __init__(self, app: ASGIApp, config: RouterConfig, refused: Callable[[RayLLMError], None]) -> None:
        self._app = app
        self._hosts = {host.lower() for host in config.allowed_hosts}
        if config.address:
            self._hosts.add(config.address[0].lower())
        self._origins = config.cors.allow_origins if config.cors else ()
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Calls in process have a user.
        if scope["type"] == "http" and "user" not in scope:
            try:
                headers = Headers(scope=scope)
                self._check_hosts(headers)
                if scope["method"] not in _SAFE:
                    self._check_origin(headers, scope["scheme"])
            except RayLLMError as error:
                self._refused(error)
                await error_response(error, path_of(Request(scope)))(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check_hosts(self, headers: Headers) -> None:
        for host in headers.getlist("host"):
            if not self._is_ours(host.lower()):
                raise PermissionDeniedError(
                    f"The Host header is `{host[:200]}`, but without API keys only names of this machine are answered, "
                    "so that web pages cannot reach it by a name of theirs: add the host to `router.allowed_hosts`, or "
                    "set `router.keys`."
                )

    def _is_ours(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        name = (found[1] or found[2]).removesuffix(".") if found else host
        # Clients that are no browsers may leave it empty.
        return not name or name in self._hosts or is_loopback(name) or name.endswith(".localhost")

    def _check_origin(self, headers: Headers, scheme: str) -> None:
        origin = headers.get("origin", "")
        own = f"{scheme}://{headers.get('host', '')}".lower()
        is_foreign = origin.lower() != own if origin else headers.get("sec-fetch-site") == "cross-site"
        if is_foreign and origin not in self._origins and "*" not in self._origins:
            raise PermissionDeniedError(
                f"A web page of `{origin[:200] or 'another site'}` sends this, and without API keys pages of other "
                "origins may change nothing: add the origin to `router.cors.allow_origins`, or set `router.keys`. "
                "Behind a proxy that terminates TLS, name it in `router.trusted_proxies`."
            )
