"""The OpenID Connect issuer of a service, whose public keys are fetched every five minutes."""

import asyncio
import hashlib
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import aiohttp
import jwt

from rayllm.access import Caller
from rayllm.access.oidc import key_id, verify
from rayllm.config import OidcConfig
from rayllm.core.errors import AuthenticationError, UnavailableError
from rayllm.serving.cluster.background import in_background

logger = logging.getLogger(__name__)

_PERIOD_S = 300.0
# Seconds between two fetches for tokens with unknown keys, which anyone can send.
_UNKNOWN_S = 10.0
_TIMEOUT_S = 10.0
_MAX_BYTES = 1024 * 1024
# Verified tokens remembered: a verification takes a tenth of a millisecond.
_MAX_TOKENS = 10_000


class TokenIssuer:
    """Finds the callers of requests by their tokens."""

    def __init__(self, config: OidcConfig, now: Callable[[], float] = time.time) -> None:
        self.config = config
        self._now = now
        self._keys: dict[str, jwt.PyJWK] | None = None
        self._fetched_at = float("-inf")
        self._fetching: asyncio.Task[None] | None = None
        self._callers: OrderedDict[bytes, tuple[Caller, float]] = OrderedDict()
        self._refreshing: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._refreshing = asyncio.create_task(self._refresh())

    def stop(self) -> None:
        if self._refreshing:
            self._refreshing.cancel()

    async def caller(self, token: str) -> Caller:
        """The caller who sent a token. Raises AuthenticationError, or UnavailableError before the keys are fetched."""
        digest = hashlib.sha256(token.encode()).digest()
        caller, expires_at = self._callers.get(digest, (None, 0.0))
        if caller is None or expires_at <= self._now():
            self._callers.pop(digest, None)
            caller, expires_at = verify(token, await self._key(key_id(token)), self.config)
            self._callers[digest] = caller, expires_at
            if len(self._callers) > _MAX_TOKENS:
                self._callers.popitem(last=False)
        return caller

    async def _key(self, kid: str) -> jwt.PyJWK:
        if kid not in (self._keys or {}):
            await self._fetched(_UNKNOWN_S)
        if self._keys is None:
            message = "The keys of the tokens' issuer cannot be fetched; try again."
            raise UnavailableError(message, None, "keys_unavailable", 5)
        if kid not in self._keys:
            raise AuthenticationError("The token is signed with a key that its issuer does not have.")
        return self._keys[kid]

    async def _refresh(self) -> None:
        while True:
            await self._fetched(0)
            await asyncio.sleep(_PERIOD_S if self._keys is not None else _UNKNOWN_S)

    async def _fetched(self, seconds: float) -> None:
        """Wait for the running fetch; start a fetch if the last is longer ago than `seconds`."""
        has_ended = self._fetching is None or self._fetching.done()
        if has_ended and time.monotonic() - self._fetched_at > seconds:
            self._fetching = in_background(self._fetch())
        if self._fetching:
            await asyncio.shield(self._fetching)

    async def _fetch(self) -> None:
        """Fetch the keys; after a failure, the last keys stay in force."""
        self._fetched_at = time.monotonic()
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_TIMEOUT_S)) as session:
                url = self.config.jwks_url or await self._discover(session)
                keys = jwt.PyJWKSet.from_dict(await _json(session, url)).keys
            self._keys = {key.key_id or "": key for key in keys}
            # A removed key may have been stolen.
            self._callers.clear()
        # An issuer may send anything.
        except Exception as error:
            logger.error("The keys of %s cannot be fetched: %s", self.config.issuer, str(error) or repr(error))

    async def _discover(self, session: aiohttp.ClientSession) -> str:
        """Source: https://openid.net/specs/openid-connect-discovery-1_0.html"""
        found = await _json(session, self.config.issuer.rstrip("/") + "/.well-known/openid-configuration")
        if found.get("issuer") != self.config.issuer:
            raise ValueError(f"its configuration is of another issuer, {str(found.get('issuer'))[:200]}")
        return str(found["jwks_uri"])


async def _json(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with session.get(url) as response:
        response.raise_for_status()
        body = b""
        async for part in response.content.iter_any():
            body += part
            if len(body) > _MAX_BYTES:
                raise ValueError(f"{url} has more than {_MAX_BYTES} bytes")
    values = json.loads(body)
    if not isinstance(values, dict):
        raise TypeError(f"{url} has no JSON object")
    return values
