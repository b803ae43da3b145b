"""The file of keys: YAML with the keys' hashes, on disk or in a bucket."""

import json
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from filelock import FileLock
from pydantic import Field, field_validator

from rayllm.access.key import Key, Keyring
from rayllm.config.base import Frozen
from rayllm.config.faults import validating
from rayllm.config.yaml import dump_yaml, parse_yaml
from rayllm.core.errors import ConfigError, StorageError
from rayllm.sources.storage import Folder

_SALT_BYTES = 32
# Larger files are written as JSON, which is YAML too, and is read a hundred times as fast.
_MAX_AS_YAML = 1000


class KeyList(Frozen):
    """The content of a key file."""

    salt: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Key of the hashes, in hexadecimal; `rayllm keys create` writes it."""
    keys: tuple[Key, ...] = ()

    @field_validator("keys")
    @classmethod
    def _differ(cls, keys: tuple[Key, ...]) -> tuple[Key, ...]:
        for field in ("name", "hash"):
            seen: set[str] = set()
            for key in keys:
                if getattr(key, field) in seen:
                    raise ValueError(f"two keys have the {field} of `{key.name}`; every key needs its own")
                seen.add(getattr(key, field))
        return keys

    @property
    def keyring(self) -> Keyring:
        return Keyring(bytes.fromhex(self.salt), self.keys)


class KeyFile:
    """A file of keys at a path, `s3://bucket/file` or `gs://bucket/file`. All methods block."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        folder, _, self._name = uri.rpartition("/")
        self.salt = b""
        self._folder = Folder(folder or ("/" if uri.startswith("/") else "."))

    def read(self) -> bytes:
        """Read the file's content. Raises StorageError if the file is missing or cannot be read."""
        try:
            return self._folder.read(self._name)
        except FileNotFoundError:
            raise StorageError(
                f"{self.uri}: there is no such file; `rayllm keys --file {self.uri} create --name NAME` creates it."
            ) from None

    def parse(self, content: bytes) -> KeyList:
        """Parse the file's content. Raises ConfigError with every fault, one a line."""
        with validating(self.uri, KeyList):
            return KeyList.model_validate(self._raw(content))

    def load(self) -> KeyList:
        """Read and parse the file. Raises StorageError or ConfigError, as `read` and `parse`."""
        return self.parse(self.read())

    @contextmanager
    def change(self) -> Iterator[list[Key]]:
        """The keys as a list, which is written back at the end of the block unless the block raises.

        Creates a missing file. Several processes may change a file on disk at once, but not a file in a bucket.
        """
        lock: AbstractContextManager[object] = nullcontext() if "://" in self.uri else FileLock(f"{self.uri}.lock")
        with lock:
            try:
                current = self.load()
            except StorageError:
                if self._folder.size(self._name) is not None:
                    raise
                current = KeyList(salt=secrets.token_hex(_SALT_BYTES))
            self.salt = bytes.fromhex(current.salt)
            keys = list(current.keys)
            yield keys
            self._folder.write(self._name, _text(current.salt, keys).encode(), mode=0o600)

    def _raw(self, content: bytes) -> Any:
        try:
            text = content.decode()
        except UnicodeDecodeError:
            raise ConfigError(f"{self.uri}: is not UTF-8 text.") from None
        if text.startswith("{"):
            with suppress(ValueError):
                return json.loads(text)
        raw = parse_yaml(text, self.uri)
        if not isinstance(raw, dict):
            raise ConfigError(f"{self.uri}: must be a mapping with `salt` and `keys`.")
        return raw


def _text(salt: str, keys: list[Key]) -> str:
    entries = [key.model_dump(mode="json", exclude_defaults=True) for key in keys]
    if len(entries) <= _MAX_AS_YAML:
        return dump_yaml({"salt": salt, "keys": entries})
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    return f'{{"salt": "{salt}", "keys": [\n{lines}\n]}}\n'


def check_key_file(uri: str | None) -> str:
    """Check a local file of keys; returns why it cannot be read, or "". Raises ConfigError for wrong content."""
    if uri is None or "://" in uri:
        return ""
    try:
        KeyFile(uri).load()
    except StorageError as error:
        return error.message
    return ""
