"""Keys of administrators."""

import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.requests import Request

from rayllm.access import ANYONE, caller_of
from rayllm.access.key import key_hash
from rayllm.core.errors import AuthenticationError, PermissionDeniedError


class AdminKeys:
    """Checks the key of a request that is for administrators only.

    Args:
        digests: of each key, in hexadecimal; without any, nobody is an administrator.
        salt: that of the digests.
    """

    def __init__(self, digests: Sequence[str], salt: bytes = b"") -> None:
        self._digests = digests
        self._salt = salt

    def check(self, request: Request) -> None:
        """Check that an administrator sends the request.

        Raises PermissionDeniedError if there are no keys, or the key is another's, else AuthenticationError.
        """
        caller = caller_of(request.scope)
        if caller.is_admin or self.has(request.headers):
            return
        if caller != ANYONE:
            raise PermissionDeniedError(f"This is for administrators; the key `{caller.name}` is not one's.")
        if not self._digests:
            raise PermissionDeniedError("This is for administrators, of whom there are none: set `router.admin_keys`.")
        raise AuthenticationError("This takes an administrator's key: `Authorization: Bearer <key>`.")

    def has(self, headers: Headers) -> bool:
        """Whether a request with these headers has an administrator's key."""
        key = bearer_key(headers)
        digest = key_hash(key, self._salt)
        matches = [hmac.compare_digest(digest, registered) for registered in self._digests]
        # An environment variable may be set but empty: that is no key.
        return bool(key) and any(matches)


def bearer_key(headers: Headers) -> str:
    """The key in `Authorization: Bearer <key>`; empty if there is none."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""
