"""ASGI middleware that admits requests before their bodies are read: by their keys, or else by where they come from."""

import re
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from rayllm.access import Caller
from rayllm.access.oidc import is_token
from rayllm.config import RouterConfig
from rayllm.core.endpoints import BY_PATH, COUNT_TOKENS, MESSAGES
from rayllm.core.error_shapes import error_response
from rayllm.core.errors import AuthenticationError, PermissionDeniedError, RayLLMError
from rayllm.core.hosts import is_loopback
from rayllm.core.shares import Shares
from rayllm.serving.router.access.credentials import Credentials
from rayllm.serving.router.http.admin_keys import AdminKeys, bearer_key
from rayllm.serving.router.http.errors import path_of

# Open to load balancers, which have no keys.
_OPEN = "/health"
_METRICS = "/metrics"
# No key or token can have this name.
_ADMINISTRATOR = Caller("router:admin", is_admin=True)
# Header of the key from Anthropic's clients.
_API_KEY = "x-api-key"
_HOST = re.compile(r"(?:\[([\da-f:.]+)\]|([^\[\]:/@\s]+))(?::\d*)?")
# Methods without effect.
_SAFE = ("GET", "HEAD", "OPTIONS")


@dataclass(eq=False)
class ApiKeyGate:
    """Finds the caller of each request, and puts the caller into the scope as `user`.

    Args:
        refused: called with the error of each refused request.
        open_requests: shares of requests in progress; the forwarder counts requests to models there.
        open_paths: further paths that need no key, but may tell callers with a key more.
    """

    app: ASGIApp
    credentials: Credentials
    admin_keys: AdminKeys
    refused: Callable[[RayLLMError], None]
    open_requests: Shares
    open_paths: Collection[str] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Calls in process have a user already.
        with ExitStack() as share:
            if scope["type"] == "http" and "user" not in scope and (path := path_of(Request(scope))) != _OPEN:
                try:
                    scope["user"] = caller = await self._caller(scope, path)
                    if path not in BY_PATH:
                        share.enter_context(self.open_requests.holding(caller.tenant))(1)
                except RayLLMError as error:
                    if path not in self.open_paths:
                        self.refused(error)
                        await error_response(error, path)(scope, receive, send)
                        return
            await self.app(scope, receive, send)

    async def _caller(self, scope: Scope, path: str) -> Caller:
        headers = Headers(scope=scope)
        if self.admin_keys.has(headers):
            return _ADMINISTRATOR
        key = bearer_key(headers)
        if not key and path in (MESSAGES, COUNT_TOKENS):
            key = headers.get(_API_KEY, "").strip()
        if not key and b"key=" in scope["query_string"]:
            raise AuthenticationError(
                "Send the key in a header, `Authorization: Bearer <key>`; keys in URLs end up in logs, so they are "
                "not accepted there."
            )
        issuer = self.credentials.issuer
        if issuer and is_token(key):
            return await issuer.caller(key)
        caller = self.credentials.keyring.find(key)
        if caller.is_scraper and path != _METRICS:
            raise PermissionDeniedError(f"The key `{caller.name}` may read {_METRICS}, and nothing else.")
        return caller


class BrowserGate:
    """Without keys: admits requests that name this machine, and changes only from pages of this or an allowed origin.

    Other web pages can send requests to this machine: to a name of theirs that resolves to it (DNS rebinding), with
    access to the replies, or blindly to a loopback address. `refused` is called with the error of each refused request.
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
