"""API keys as the key file has them, and the lookup of a request's caller by its key."""

import hashlib
import re
import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Self

from pydantic import AliasChoices, Field, field_validator, model_validator

from rayllm.access.caller import Caller
from rayllm.access.limits import limits_of
from rayllm.config.base import Frozen
from rayllm.core.errors import AuthenticationError
from rayllm.core.priority import Priority, PriorityName

PREFIX = "sk-rayllm-"
# Characters of the longest key that is looked up.
_LONGEST_KEY = 256
_SECRET_BYTES = 32
MAX_LABELS = 16
_HINT = "Send a valid key: `Authorization: Bearer <key>`."
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._@/-]{0,63}")


def new_key() -> str:
    """A new random key of 256 bits."""
    return PREFIX + secrets.token_urlsafe(_SECRET_BYTES)


def key_hash(key: str, salt: bytes) -> str:
    """BLAKE2b of a key, keyed with the file's salt, in hexadecimal.

    Keys are long and random, so a fast hash is enough: they cannot be guessed.
    """
    return hashlib.blake2b(key.encode(), key=salt, digest_size=32).hexdigest()


class Key(Frozen):
    """An API key."""

    name: str = Field(min_length=1, max_length=64)
    """Unique name; logs and traces show it."""
    hash: str
    """Keyed hash of the key, in hexadecimal; `rayllm keys create` writes it."""
    tenant: str | None = Field(None, min_length=1, max_length=64)
    """Who the key's files and batches belong to; keys of one tenant share them. Null is the key's name."""
    models: tuple[str, ...] | None = None
    """Models that the key may use: ids, aliases and `<model>:<adapter>`, with `*` for any text. Null are all."""
    requests_per_minute: int | None = Field(None, ge=1)
    """Most requests in any minute; null is no limit."""
    tokens_per_minute: int | None = Field(None, ge=1)
    """Most tokens in any minute, of prompts and answers; null is no limit."""
    tokens_per_day: int | None = Field(None, ge=1)
    """Most tokens in any 24 hours; null is no limit."""
    max_concurrent: int | None = Field(None, ge=1)
    """Most requests in progress at once; null is no limit."""
    priority: PriorityName = Field("standard", validation_alias=AliasChoices("priority", "class"))
    """Class of the key's requests: `interactive` ones go first, `batch` ones use what others leave idle. `class` is
    another name of this field."""
    expires: datetime | None = None
    """When the key stops working, with a time zone; null is never."""
    labels: dict[str, str] = Field({}, max_length=MAX_LABELS)
    """What usage can be grouped by, such as a team: at most 16, of plain names and values."""
    admin: bool = False
    """May load adapters, and see other keys' requests."""
    scrape: bool = False
    """May read `/metrics`, and nothing else."""

    @model_validator(mode="after")
    def _scrapes_only(self) -> Self:
        if self.scrape and self.admin:
            raise ValueError("a key with `scrape` may read metrics and nothing else, so it cannot be an `admin`'s")
        return self

    @field_validator("name", "tenant")
    @classmethod
    def _is_plain(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]*", value):
            raise ValueError("must be letters, digits, `.`, `_`, `@` and `-`, and begin with a letter or digit")
        return value

    @field_validator("labels")
    @classmethod
    def _are_short(cls, labels: dict[str, str]) -> dict[str, str]:
        for name, value in labels.items():
            if not _LABEL.fullmatch(name):
                raise ValueError(f"the name `{name[:40]}` must be at most 32 letters, digits, `.`, `_` and `-`")
            if not _LABEL_VALUE.fullmatch(value):
                raise ValueError(f"`{name}` must be at most 64 letters, digits, spaces, `.`, `_`, `@`, `/` and `-`")
        return labels

    @field_validator("hash")
    @classmethod
    def _is_a_hash(cls, value: str) -> str:
        if not re.fullmatch(r"[0-9a-f]{64}", value):
            # Not shown: it may be the key itself.
            raise ValueError("must be 64 hexadecimal digits; let `rayllm keys create` write it")
        return value

    @field_validator("expires")
    @classmethod
    def _has_a_zone(cls, value: datetime | None) -> datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError("needs a time zone, such as 2027-01-31T00:00:00Z")
        return value and value.astimezone(UTC)

    @property
    def has_expired(self) -> bool:
        return self.expires is not None and self.expires.timestamp() <= time.time()

    @property
    def caller(self) -> Caller:
        """The sender of requests with this key."""
        limits, priority, tenant = limits_of(self), Priority.named(self.priority), self.tenant or self.name
        return Caller(self.name, tenant, self.models, self.admin, limits, priority, self.labels, self.scrape)


class Keyring:
    """The keys of a service; finds a caller in the same time among ten keys and among 100,000."""

    def __init__(self, salt: bytes, keys: Sequence[Key]) -> None:
        self.keys = tuple(keys)
        self._salt = salt
        # The time of a lookup leaks nothing: without the salt, a client cannot choose the hash that is looked up.
        self._by_hash = {key.hash: (key, key.caller) for key in keys}
        self._by_name = {key.name: key.hash for key in keys}

    def find(self, presented: str) -> Caller:
        """The caller who sent a key. Raises AuthenticationError for an unknown or expired key."""
        if not presented:
            raise AuthenticationError(f"This service needs a key. {_HINT}")
        if len(presented) > _LONGEST_KEY:
            raise AuthenticationError(f"The key is not valid. {_HINT}")
        return self._caller(key_hash(presented, self._salt))

    def named(self, name: str) -> Caller:
        """The caller whose key has this name. Raises AuthenticationError for an unknown or expired key."""
        return self._caller(self._by_name.get(name, ""))

    def _caller(self, hashed: str) -> Caller:
        key, caller = self._by_hash.get(hashed, (None, None))
        if key is None or caller is None:
            raise AuthenticationError(f"The key is not valid. {_HINT}")
        if key.has_expired:
            raise AuthenticationError(f"The key `{key.name}` expired at {key.expires:%Y-%m-%dT%H:%M:%SZ}.")
        return caller


NO_KEYS = Keyring(b"", ())
"""Keys of a service that accepts only tokens."""
