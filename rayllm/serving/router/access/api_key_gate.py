"""ASGI middleware that admits requests by their keys, before their bodies are read."""

from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from rayllm.access import Caller
from rayllm.access.oidc import is_token
from rayllm.core.endpoints import BY_PATH, COUNT_TOKENS, MESSAGES
from rayllm.core.error_shapes import error_response
from rayllm.core.errors import AuthenticationError, PermissionDeniedError, RayLLMError
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
