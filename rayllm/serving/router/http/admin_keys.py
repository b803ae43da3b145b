"""Keys of administrators."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.requests import Request

from rayllm.errors import AuthenticationError, PermissionDeniedError


class AdminKeys:
    """Checks the key of a request that is for administrators only.

    Args:
        digests: SHA-256 of each key; without any, nobody is an administrator.
    """

    def __init__(self, digests: Sequence[bytes]) -> None:
        self._digests = digests

    def check(self, request: Request) -> None:
        """Check that an administrator sends the request.

        Raises:
            PermissionDeniedError: there are no keys.
            AuthenticationError: its key is none of them.
        """
        if not self._digests:
            raise PermissionDeniedError("This is for administrators, of whom there are none: set `router.admin_keys`.")
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        key = key.strip()
        digest = hashlib.sha256(key.encode()).digest()
        matches = [hmac.compare_digest(digest, registered) for registered in self._digests]
        # An environment variable may be set but empty: that is no key.
        if scheme.lower() != "bearer" or not key or not any(matches):
            raise AuthenticationError("This takes an administrator's key: `Authorization: Bearer <key>`.")
