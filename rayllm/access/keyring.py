"""The keys of a service, by their hashes."""

from __future__ import annotations

from collections.abc import Sequence

from rayllm.access.caller import Caller
from rayllm.access.key import LONGEST_KEY, Key, key_hash
from rayllm.core.errors import AuthenticationError

_HINT = "Send a valid key: `Authorization: Bearer <key>`."


class Keyring:
    """Finds the caller of a request by its key, in the same time for ten keys and for 100,000."""

    def __init__(self, salt: bytes, keys: Sequence[Key]) -> None:
        self.keys = tuple(keys)
        self._salt = salt
        # A lookup leaks nothing by its time: without the salt, nobody can choose the hash that is looked up.
        self._by_hash = {key.hash: (key, key.caller) for key in keys}
        self._by_name = {key.name: key.hash for key in keys}

    def find(self, presented: str) -> Caller:
        """The caller that has a key.

        Raises:
            AuthenticationError: no such key, or it has expired.
        """
        if not presented:
            raise AuthenticationError(f"This service needs a key. {_HINT}")
        if len(presented) > LONGEST_KEY:
            raise AuthenticationError(f"The key is not valid. {_HINT}")
        return self._caller(key_hash(presented, self._salt))

    def named(self, name: str) -> Caller:
        """The caller whose key has a name.

        Raises:
            AuthenticationError: no such key, or it has expired.
        """
        return self._caller(self._by_name.get(name, ""))

    def _caller(self, hashed: str) -> Caller:
        key, caller = self._by_hash.get(hashed, (None, None))
        if key is None or caller is None:
            raise AuthenticationError(f"The key is not valid. {_HINT}")
        if key.has_expired:
            raise AuthenticationError(f"The key `{key.name}` expired at {key.expires:%Y-%m-%dT%H:%M:%SZ}.")
        return caller


NO_KEYS = Keyring(b"", ())
"""Of a service that takes tokens only."""
